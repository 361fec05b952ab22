// SPDX-License-Identifier: Apache-2.0

package metricsapi

import (
	"context"
	"strings"
	"testing"

	"github.com/gpupilot/gpupilot/internal/promql/source"
)

// named has one metric in all namespaces, with one value.
type named struct {
	name  string
	value float64
}

func (n named) Names() []string           { return []string{n.name} }
func (n named) Has(_, metric string) bool { return metric == n.name }
func (n named) Values(context.Context, source.ExternalQuery) ([]source.ExternalValue, error) {
	return []source.ExternalValue{{Value: n.value}}, nil
}

// The first source that has a metric answers.
func TestExternals(t *testing.T) {
	all := Externals{named{"a", 1}, named{"b", 2}, named{"a", 3}}
	if got := strings.Join(all.Names(), " "); got != "a b a" {
		t.Error(got)
	}
	for metric, want := range map[string]float64{"a": 1, "b": 2} {
		v, err := all.Values(t.Context(), source.ExternalQuery{Namespace: "ml", Metric: metric})
		if err != nil || len(v) != 1 || v[0].Value != want || !all.Has("ml", metric) {
			t.Errorf("%s: %v, %v", metric, v, err)
		}
	}
	if v, err := all.Values(t.Context(), source.ExternalQuery{Metric: "c"}); v != nil || err != nil || all.Has("ml", "c") {
		t.Errorf("c: %v, %v", v, err)
	}
}

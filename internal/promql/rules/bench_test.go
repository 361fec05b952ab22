// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	k8slabels "k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/gpupilot/gpupilot/internal/base/fair"
	"github.com/gpupilot/gpupilot/internal/promql/source"
)

// manyResults is a manager with the results of rules: metrics with a value for each of
// many Deployments of one namespace.
func manyResults(b testing.TB, metrics, objects int) (m *Manager, now time.Time, names []string) {
	store := NewStore(10*time.Minute, 1<<32)
	m, now = New(Config{}, Deps{Store: store}), time.Unix(1_800_000_000, 0)
	for i := range objects {
		names = append(names, fmt.Sprintf("web-%05d", i))
	}
	for i := range metrics {
		samples := make([]Sample, objects)
		for j, name := range names {
			samples[j] = Sample{labels.FromStrings("__name__", fmt.Sprintf("team:metric_%03d:avg", i), "namespace", "ml", "deployment", name), float64(j)}
		}
		if _, err := store.append(&writer{rule: fmt.Sprint(i), interval: time.Second}, now, nil, samples); err != nil {
			b.Fatal(err)
		}
	}
	return m, now, names
}

// The index of objects has exactly the series that there are: their rule may become
// trusted, and they end.
func TestObjectsOfSeries(t *testing.T) {
	m, now, _ := manyResults(t, 2, 3)
	s := m.deps.Store
	node := Sample{labels.FromStrings("__name__", "n", "namespace", "ml", "node", "n1"), 1}
	list := func() string {
		var all []string
		for _, i := range m.Metrics() {
			all = append(all, i.String())
		}
		return strings.Join(all, " ")
	}
	const deployments = "deployments.apps/team:metric_000:avg(namespaced) deployments.apps/team:metric_001:avg(namespaced)"
	for i, w := range []writer{{rule: "a", payer: fair.Namespace("ml")}, {rule: "b", trusted: true}, {rule: "a", payer: fair.Namespace("ml")}} {
		at := now.Add(time.Duration(i) * time.Minute)
		series, err := s.append(&w, at, nil, []Sample{node})
		if err != nil {
			t.Fatal(err)
		}
		want := deployments + " namespaces/n"
		if w.trusted {
			want = deployments + " nodes/n"
		}
		if got := list(); got != want {
			t.Errorf("%+v: %s, want %s", w, got, want)
		}
		s.end(at.Add(time.Second), series)
	}
	s.Sweep(now.Add(11 * time.Minute))
	if got := list(); got != "namespaces/n" {
		t.Errorf("after the window of the others: %s", got)
	}
	if ns := s.Namespaces(); len(ns) != 1 || ns[0] != "ml" {
		t.Errorf("the namespaces are %q", ns)
	}
	set := s.byName["n"]
	s.Sweep(now.Add(time.Hour))
	if ns := s.Namespaces(); len(ns) > 0 || len(s.byName) > 0 || len(set.objects) > 0 || len(set.resources) > 0 || list() != "" {
		t.Errorf("%d metrics, %d objects and %d resources remain", len(s.byName), len(set.objects), len(set.resources))
	}
}

// BenchmarkValues reads a rule's metric of one and of all of 10,000 Deployments of a
// namespace. The time for one does not grow with the others.
func BenchmarkValues(b *testing.B) {
	m, now, names := manyResults(b, 1, 10_000)
	for _, n := range []int{1, 10_000} {
		b.Run(fmt.Sprint("objects=", n), func(b *testing.B) {
			q := source.Query{
				Resource: schema.GroupResource{Group: "apps", Resource: "deployments"}, Namespace: "ml", Names: names[:n],
				Metric: "team:metric_000:avg", Selector: k8slabels.Everything(), Now: now,
			}
			b.ReportAllocs()
			for b.Loop() {
				if values, err := m.Values(b.Context(), q); err != nil || len(values) != n {
					b.Fatal(len(values), err)
				}
			}
		})
	}
}

// BenchmarkMetrics lists the custom metrics of 300 rules with 200 results each, after one
// series has changed.
func BenchmarkMetrics(b *testing.B) {
	m, now, _ := manyResults(b, 300, 200)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		l := labels.FromStrings("__name__", "team:metric_000:avg", "namespace", "ml", "deployment", fmt.Sprint("new-", i))
		if err := m.deps.Store.Append(now, []Sample{{l, 1}}); err != nil {
			b.Fatal(err)
		}
		if n := len(m.Metrics()); n != 300 {
			b.Fatal(n)
		}
	}
}

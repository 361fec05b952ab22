// SPDX-License-Identifier: Apache-2.0

package objective

import (
	"os"
	"regexp"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/gpupilot/gpupilot/internal/scale/budget"
	"github.com/gpupilot/gpupilot/internal/scale/promise"
)

type collector struct {
	Metrics

	reports []Report
}

func (c *collector) Describe(ch chan<- *prometheus.Desc) { c.Metrics.Describe(ch) }
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	c.Metrics.Collect(ch, "llm", "chat", c.reports)
}

// An objective with a plan that falls short has every metric that the page names.
func TestMetricsAreThoseOfThePage(t *testing.T) {
	page, err := os.ReadFile("../../../docs/controller-metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	var want []string
	for _, name := range regexp.MustCompile("gpupilot_slo_[a-z_]+").FindAllString(string(page), -1) {
		if !slices.Contains(want, name) {
			want = append(want, name)
		}
	}
	slices.Sort(want)

	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(&collector{NewMetrics(), []Report{{
		Signal: "requests", Objective: 0.99, Over: 24 * time.Hour,
		Report: budget.Report{Ended: 100, Missed: 1, MissedMost: 2, Burns: [len(budget.Windows)]budget.Burn{{Requests: 10, Rate: 1}}},
		Plan:   promise.Plan{Target: 8, Replicas: 3, Looser: 2.5, Stricter: 3.5, Short: true, Needs: 4},
	}}})
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, f := range families {
		got = append(got, f.GetName())
	}
	if !slices.Equal(got, want) {
		t.Errorf("metrics\n%v, the page has\n%v", got, want)
	}
}

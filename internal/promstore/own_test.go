// SPDX-License-Identifier: Apache-2.0

package promstore

import (
	"fmt"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

func TestOwnMetricsAreSeries(t *testing.T) {
	r := newRig(t)
	registry := prometheus.NewRegistry()
	c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "gpupilot_things_total"}, []string{"job"})
	h := prometheus.NewHistogram(prometheus.HistogramOpts{Name: "gpupilot_seconds", Buckets: []float64{1}})
	registry.MustRegister(c, h)
	s := New(Config{Keep: KeepUsed, Instance: "pod-1"}, Deps{Windows: r.windows, Own: registry})
	s.now = func() time.Time { return r.now }
	r.store = s
	c.WithLabelValues("x").Add(3)
	h.Observe(0.5)
	s.collectOwn(at(0)) // learns the names
	r.wants("gpupilot_things_total", at(0), "")
	s.Want("gpupilot_seconds_bucket")
	r.now = at(1)
	s.collectOwn(at(1))
	r.wants("gpupilot_things_total", at(1), fmt.Sprintf(`{__name__="gpupilot_things_total", exported_job="x", instance="pod-1", job="gpupilot-controller"} => 3 @[%d]`, msOf(at(1))))
	r.wants("sum by (le) (gpupilot_seconds_bucket)", at(1), fmt.Sprintf("{le=\"+Inf\"} => 1 @[%d]\n{le=\"1\"} => 1 @[%d]", msOf(at(1)), msOf(at(1))))
	r.now = at(2)
	s.collectOwn(at(2))
	r.wants("sum(rate(gpupilot_things_total[5s]))", at(2), fmt.Sprintf("{} => 0 @[%d]", msOf(at(2))))
}

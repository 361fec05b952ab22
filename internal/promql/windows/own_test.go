// SPDX-License-Identifier: Apache-2.0

package windows

import (
	"fmt"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// The controller's own metrics name the namespaces of API objects: they need no pod that
// confirms them, unlike an exporter's.
func TestOwnMetricsKeepTheirNamespace(t *testing.T) {
	r := newRig(t)
	registry := prometheus.NewRegistry()
	g := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "gpupilot_autoscaler_gpus"}, []string{"namespace", "name"})
	registry.MustRegister(g)
	g.WithLabelValues("ml", "chat").Set(4)
	s := New(Config{Keep: KeepAll, Instance: "pod-1"}, Deps{Windows: r.windows, Pods: r.pods, Own: registry})
	s.now = func() time.Time { return r.now }
	s.check(r.now)
	r.store = s
	r.now = at(20)
	s.collectOwn(at(20))
	r.wants(`gpupilot_autoscaler_gpus{namespace="ml"}`, at(20),
		fmt.Sprintf(`{__name__="gpupilot_autoscaler_gpus", instance="pod-1", job="gpupilot-controller", name="chat", namespace="ml"} => 4 @[%d]`, msOf(at(20))))
}

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
	s.Want("gpupilot_seconds_bucket", "gpupilot_things_total")
	r.now = at(1)
	s.collectOwn(at(1))
	r.wants("gpupilot_things_total", at(1), fmt.Sprintf(`{__name__="gpupilot_things_total", exported_job="x", instance="pod-1", job="gpupilot-controller"} => 3 @[%d]`, msOf(at(1))))
	r.wants("sum by (le) (gpupilot_seconds_bucket)", at(1), fmt.Sprintf("{le=\"+Inf\"} => 1 @[%d]\n{le=\"1\"} => 1 @[%d]", msOf(at(1)), msOf(at(1))))
	r.now = at(2)
	s.collectOwn(at(2))
	r.wants("sum(rate(gpupilot_things_total[5s]))", at(2), fmt.Sprintf("{} => 0 @[%d]", msOf(at(2))))
}

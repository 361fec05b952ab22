// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpupilot/gpupilot/internal/autoscaler/objective"
	"github.com/gpupilot/gpupilot/internal/scale"
	"github.com/gpupilot/gpupilot/internal/window/discovery"
)

// meters holds the controller's own metrics.
type meters struct {
	leading   func() bool
	workloads func() []*workload
	excess    func() int // targets that are not scraped

	decisions         *prometheus.CounterVec
	decisionDuration  prometheus.Histogram
	writes            *prometheus.CounterVec
	reaction          prometheus.Histogram
	actuationDuration prometheus.Histogram

	workload           workloadDescs
	objectives         objective.Metrics
	leader, excessDesc *prometheus.Desc
}

func newMeters(leading func() bool, workloads func() []*workload, excess func() int) *meters {
	m := &meters{
		leading: leading, workloads: workloads, excess: excess,
		decisions: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "gpupilot_decisions_total", Help: "Decisions by the rule that made them, and whether they change the number of replicas.",
		}, []string{"rule", "changes"}),
		decisionDuration: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "gpupilot_decision_duration_seconds", Help: "Time that one decision took, observation included.",
			Buckets: prometheus.ExponentialBuckets(20e-6, 4, 9),
		}),
		writes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "gpupilot_scale_requests_total", Help: "Writes of a scale subresource by their result; outdated ones were not sent, because their GPUAutoscaler was changed or deleted.",
		}, []string{"result"}),
		reaction: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "gpupilot_reaction_seconds", Help: "From when the newest sample was measured until the API server accepted the scale that follows from it.",
			Buckets: []float64{.025, .05, .1, .15, .2, .3, .4, .5, .75, 1, 1.5, 2.5, 5, 10},
		}),
		actuationDuration: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "gpupilot_actuation_seconds", Help: "From when an observation began until the API server accepted the scale that follows from it.",
			Buckets: prometheus.ExponentialBuckets(.001, 2, 13),
		}),
		workload: newWorkloadDescs(), objectives: objective.NewMetrics(),
		excessDesc: prometheus.NewDesc("gpupilot_scrape_excess_targets",
			fmt.Sprintf("Ports and paths of pods that are not scraped because their pod has more than %d of them.", discovery.MaxPerPod), nil, nil),
		leader: prometheus.NewDesc("gpupilot_leader", "Whether this replica of the controller writes.", nil, nil),
	}
	for _, result := range []string{"accepted", "conflict", "error", "outdated"} {
		m.writes.WithLabelValues(result)
	}
	return m
}

// register registers all metrics.
func (m *meters) register(reg prometheus.Registerer) {
	reg.MustRegister(m, m.decisions, m.decisionDuration, m.writes, m.reaction, m.actuationDuration)
}

// Describe implements prometheus.Collector.
func (m *meters) Describe(ch chan<- *prometheus.Desc) {
	m.workload.describe(ch)
	m.objectives.Describe(ch)
	ch <- m.leader
	ch <- m.excessDesc
}

// Collect implements prometheus.Collector.
func (m *meters) Collect(ch chan<- prometheus.Metric) {
	leading := 0.0
	if m.leading() {
		leading = 1
	}
	ch <- prometheus.MustNewConstMetric(m.leader, prometheus.GaugeValue, leading)
	ch <- prometheus.MustNewConstMetric(m.excessDesc, prometheus.GaugeValue, float64(m.excess()))
	for _, w := range m.workloads() {
		m.collectWorkload(ch, w.key, w)
	}
}

// collectWorkload collects the metrics of one GPUAutoscaler.
func (m *meters) collectWorkload(ch chan<- prometheus.Metric, key types.NamespacedName, w *workload) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i := range w.conditions {
		value := 0.0
		if w.conditions[i].Status == metav1.ConditionTrue {
			value = 1
		}
		ch <- prometheus.MustNewConstMetric(m.workload.condition, prometheus.GaugeValue, value, key.Namespace, key.Name, w.conditions[i].Type)
	}
	m.collectFlaws(ch, key, w.flaws.Load())
	m.workload.collect(ch, key, &w.measures)
	m.objectives.Collect(ch, key.Namespace, key.Name, w.reports)
	n := w.counts
	if !n.ok {
		return
	}
	for _, s := range []struct {
		name string
		n    int32
	}{{"current", n.current}, {"desired", n.desired}, {"serving", n.serving}, {"starting", n.starting}, {"unschedulable", n.unschedulable}} {
		ch <- prometheus.MustNewConstMetric(m.workload.replicas, prometheus.GaugeValue, float64(s.n), key.Namespace, key.Name, s.name)
	}
}

// collectFlaws collects the parts of a GPUAutoscaler that cannot be decoded.
func (m *meters) collectFlaws(ch chan<- prometheus.Metric, key types.NamespacedName, f *flaws) {
	if f.spec != nil {
		ch <- prometheus.MustNewConstMetric(m.workload.malformed, prometheus.GaugeValue, 1, key.Namespace, key.Name, "spec")
	}
	if f.status != nil {
		ch <- prometheus.MustNewConstMetric(m.workload.malformed, prometheus.GaugeValue, 1, key.Namespace, key.Name, "status")
	}
}

func (m *meters) recordDecision(d *scale.Decision, took time.Duration) {
	changes := "false"
	if d.Changes() {
		changes = "true"
	}
	m.decisions.WithLabelValues(string(d.Rule), changes).Inc()
	m.decisionDuration.Observe(took.Seconds())
}

// recordScale counts an accepted write of a scale, with the time since the newest
// sample, if there was one, and since the observation began.
func (m *meters) recordScale(afterSample time.Duration, none bool, afterObservation time.Duration) {
	m.writes.WithLabelValues("accepted").Inc()
	if !none {
		m.reaction.Observe(afterSample.Seconds())
	}
	m.actuationDuration.Observe(afterObservation.Seconds())
}

// SPDX-License-Identifier: Apache-2.0

// Package meters has the controller's own metrics: of its decisions and writes, and of each
// GPUAutoscaler, with the names under which the history keeps minutes of them.
package meters

import (
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpupilot/gpupilot/internal/autoscaler/objective"
	"github.com/gpupilot/gpupilot/internal/scale"
	"github.com/gpupilot/gpupilot/internal/window/discovery"
)

// Deps are what the metrics are read from when they are collected.
type Deps struct {
	Leading func() bool // whether this replica writes
	// Each calls yield for each GPUAutoscaler. Nothing changes the Workload during the call.
	Each   func(yield func(key types.NamespacedName, w *Workload))
	Excess func() int // targets that are not scraped
}

// Meters are the controller's own metrics.
type Meters struct {
	deps Deps

	decisions         *prometheus.CounterVec
	decisionDuration  prometheus.Histogram
	writes            *prometheus.CounterVec
	faults            prometheus.Counter
	reaction          prometheus.Histogram
	actuationDuration prometheus.Histogram

	workload           workloadDescs
	objectives         objective.Metrics
	leader, excessDesc *prometheus.Desc
}

// New makes the metrics. Register registers them.
func New(deps Deps) *Meters {
	m := &Meters{
		deps: deps,
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
		faults: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "gpupilot_faults_total", Help: "Passes of GPUAutoscalers that ended with a panic: a fault of the controller. The log has the stack.",
		}),
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
	for _, result := range []Result{Accepted, Conflict, Failed, Outdated} {
		m.writes.WithLabelValues(string(result))
	}
	return m
}

// Register registers all metrics.
func (m *Meters) Register(reg prometheus.Registerer) {
	reg.MustRegister(m, m.decisions, m.decisionDuration, m.writes, m.faults, m.reaction, m.actuationDuration)
}

// Describe implements prometheus.Collector.
func (m *Meters) Describe(ch chan<- *prometheus.Desc) {
	m.workload.describe(ch)
	m.objectives.Describe(ch)
	ch <- m.leader
	ch <- m.excessDesc
}

// Collect implements prometheus.Collector.
func (m *Meters) Collect(ch chan<- prometheus.Metric) {
	ch <- prometheus.MustNewConstMetric(m.leader, prometheus.GaugeValue, oneIf(m.deps.Leading()))
	ch <- prometheus.MustNewConstMetric(m.excessDesc, prometheus.GaugeValue, float64(m.deps.Excess()))
	m.deps.Each(func(key types.NamespacedName, w *Workload) {
		m.workload.collect(ch, key, w)
		m.objectives.Collect(ch, key.Namespace, key.Name, w.Objectives)
	})
}

// RecordDecision counts a decision, with the time that it took.
func (m *Meters) RecordDecision(d *scale.Decision, took time.Duration) {
	changes := "false"
	if d.Changes() {
		changes = "true"
	}
	m.decisions.WithLabelValues(string(d.Rule), changes).Inc()
	m.decisionDuration.Observe(took.Seconds())
}

// RecordFault counts a pass that ended with a panic.
func (m *Meters) RecordFault() { m.faults.Inc() }

// RecordScale counts an accepted write of a scale, with the time since the newest
// sample, if there was one, and since the observation began.
func (m *Meters) RecordScale(afterSample time.Duration, none bool, afterObservation time.Duration) {
	m.RecordWrite(Accepted)
	if !none {
		m.reaction.Observe(afterSample.Seconds())
	}
	m.actuationDuration.Observe(afterObservation.Seconds())
}

// Result is the result of a write of a scale subresource.
type Result string

// The results.
const (
	Accepted Result = "accepted" // RecordScale counts these
	Conflict Result = "conflict"
	Failed   Result = "error"
	Outdated Result = "outdated" // not sent
)

// RecordWrite counts a write of a scale subresource.
func (m *Meters) RecordWrite(r Result) { m.writes.WithLabelValues(string(r)).Inc() }

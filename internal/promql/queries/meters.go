// SPDX-License-Identifier: Apache-2.0

package queries

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"
)

// meters holds the metrics of query signals. Their labels are namespaces with signals,
// and kinds of errors.
type meters struct {
	total      *prometheus.CounterVec
	duration   *prometheus.SummaryVec
	wait       prometheus.Histogram
	rejections *prometheus.CounterVec
	distinct   *prometheus.Desc
}

func newMeters() *meters {
	m := &meters{
		total: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "gpupilot_queries_total", Help: "PromQL queries for signals by their result, and by the reason of a failure; an answer that is not one number is a failure.",
		}, []string{"result", "reason"}),
		duration: prometheus.NewSummaryVec(prometheus.SummaryOpts{
			Name: "gpupilot_query_duration_seconds", Help: "Time that the PromQL backend took for the queries of a namespace, without waiting for a turn.",
		}, []string{"namespace"}),
		wait: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "gpupilot_query_wait_duration_seconds", Help: "Time that a due PromQL query waited for its turn.",
			Buckets: []float64{.001, .01, .1, .5, 1, 2.5, 5, 10, 30, 60},
		}),
		rejections: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "gpupilot_query_rejections_total", Help: "PromQL queries that were not sent: too long or too deep (length), not PromQL (syntax), of another namespace (namespace), or too many in their namespace (limit).",
		}, []string{"reason"}),
		distinct: prometheus.NewDesc("gpupilot_query_signals", "Different PromQL queries by namespace and state: asked, backing_off after failures, or rejected because the namespace has too many.",
			[]string{"namespace", "state"}, nil),
	}
	m.total.WithLabelValues("answered", "")
	for _, reason := range []string{"length", "syntax", "namespace", "limit"} {
		m.rejections.WithLabelValues(reason)
	}
	return m
}

// observe counts one evaluation. Scheduler.mu is held.
func (m *meters) observe(namespace string, e *evaluation) {
	result, reason := "answered", ""
	if e.err != nil {
		result, reason = "failed", "other"
		if f, ok := errors.AsType[publicError](e.err); ok {
			reason = f.Reason()
		}
	}
	m.total.WithLabelValues(result, reason).Inc()
	m.wait.Observe(e.waited.Seconds())
	m.duration.WithLabelValues(namespace).Observe(e.took.Seconds())
}

// recordRejected counts a query that is not allowed.
func (m *meters) recordRejected(err error) {
	reason := "other"
	if r, ok := errors.AsType[interface {
		error
		RejectedFor() string
	}](err); ok {
		reason = r.RejectedFor()
	}
	m.rejections.WithLabelValues(reason).Inc()
}

// recordRefused counts the signals that are beyond the limit now and were not before.
func (m *meters) recordRefused(before, now map[Key]refusal) {
	for key, r := range now {
		if r.signal && !before[key].signal {
			m.rejections.WithLabelValues("limit").Inc()
		}
	}
}

// forget deletes the series of a namespace without signals. Scheduler.mu is held.
func (m *meters) forget(namespace string) { m.duration.DeleteLabelValues(namespace) }

// Describe implements prometheus.Collector.
func (s *Scheduler) Describe(ch chan<- *prometheus.Desc) {
	m := s.meters
	for _, c := range []prometheus.Collector{m.total, m.duration, m.wait, m.rejections} {
		c.Describe(ch)
	}
	ch <- m.distinct
}

// Collect implements prometheus.Collector.
func (s *Scheduler) Collect(ch chan<- prometheus.Metric) {
	m := s.meters
	for _, c := range []prometheus.Collector{m.total, m.duration, m.wait, m.rejections} {
		c.Collect(ch)
	}
	for k, n := range s.countSignals() {
		ch <- prometheus.MustNewConstMetric(m.distinct, prometheus.GaugeValue, float64(n), k.namespace, k.state)
	}
}

// signals are the labels of gpupilot_query_signals.
type signals struct{ namespace, state string }

// countSignals counts the different query signals.
func (s *Scheduler) countSignals() map[signals]int {
	n := map[signals]int{}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, q := range s.queries {
		state := "asked"
		if q.backsOff() {
			state = "backing_off"
		}
		for namespace := range q.askers {
			if q.isSignalOf(namespace) {
				n[signals{namespace, state}]++
			}
		}
	}
	for namespace, t := range s.tenants {
		for _, r := range t.refused {
			if r.signal {
				n[signals{namespace, "rejected"}]++
			}
		}
	}
	return n
}

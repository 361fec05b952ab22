// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// queryMeters holds the metrics of queries. Their labels are namespaces with queries,
// and kinds of errors.
type queryMeters struct {
	total      *prometheus.CounterVec
	duration   *prometheus.SummaryVec
	wait       prometheus.Histogram
	rejections *prometheus.CounterVec
	distinct   *prometheus.Desc
	known      map[string]bool // namespaces with a duration; guarded by queries.mu
}

func newQueryMeters() *queryMeters {
	m := &queryMeters{
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
		known: map[string]bool{},
	}
	m.total.WithLabelValues("answered", "")
	for _, reason := range []string{"length", "syntax", "namespace", "limit"} {
		m.rejections.WithLabelValues(reason)
	}
	return m
}

// observe counts one evaluation. queries.mu is held.
func (m *queryMeters) observe(namespace string, waited, took time.Duration, err error) {
	result, reason := "answered", ""
	if err != nil {
		result, reason = "failed", "other"
		if f, ok := errors.AsType[queryError](err); ok {
			reason = f.Reason()
		}
	}
	m.total.WithLabelValues(result, reason).Inc()
	m.wait.Observe(waited.Seconds())
	m.duration.WithLabelValues(namespace).Observe(took.Seconds())
}

// rejected counts a query that is not allowed.
func (m *queryMeters) rejected(err error) {
	reason := "other"
	if r, ok := errors.AsType[interface {
		error
		RejectedFor() string
	}](err); ok {
		reason = r.RejectedFor()
	}
	m.rejections.WithLabelValues(reason).Inc()
}

// forget deletes the series of namespaces without queries. queries.mu is held.
func (m *queryMeters) forget(asked map[queryKey]*queryState) {
	now := map[string]bool{}
	for _, x := range asked {
		now[x.namespace] = true
	}
	for namespace := range m.known {
		if !now[namespace] {
			m.duration.DeleteLabelValues(namespace)
		}
	}
	m.known = now
}

// register adds the metrics.
func (m *queryMeters) register(reg prometheus.Registerer, q *signalQueries) {
	reg.MustRegister(m.total, m.duration, m.wait, m.rejections, querySignals{q})
}

// querySignals collects gpupilot_query_signals.
type querySignals struct{ q *signalQueries }

// Describe implements prometheus.Collector.
func (s querySignals) Describe(ch chan<- *prometheus.Desc) { ch <- s.q.meter.distinct }

// Collect implements prometheus.Collector.
func (s querySignals) Collect(ch chan<- prometheus.Metric) {
	type series struct{ namespace, state string }
	n := map[series]int{}
	s.q.mu.Lock()
	for _, x := range s.q.running {
		state := "asked"
		if x.backsOff() {
			state = "backing_off"
		}
		for _, ns := range x.namespaces() {
			n[series{ns, state}]++
		}
	}
	for r := range s.q.overLimit {
		n[series{r.namespace, "rejected"}]++
	}
	s.q.mu.Unlock()
	for k, v := range n {
		ch <- prometheus.MustNewConstMetric(s.q.meter.distinct, prometheus.GaugeValue, float64(v), k.namespace, k.state)
	}
}

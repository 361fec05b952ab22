// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"errors"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/prometheus/promql"

	"github.com/gpupilot/gpupilot/internal/base/fair"
)

// maxPayers bounds the payers that are named on /metrics. The others count as other.
const (
	maxPayers  = 100
	otherPayer = "other"
)

// meters counts queries. It is the engine's prometheus.Collector.
type meters struct {
	mu      sync.Mutex
	results map[string]uint64
	limited map[limitedPayer]uint64
	payers  map[string]bool // that are named
	seconds float64
}

type limitedPayer struct {
	of    string // the payer's name
	limit Limit
}

func newMeters() *meters {
	return &meters{results: map[string]uint64{}, limited: map[limitedPayer]uint64{}, payers: map[string]bool{}}
}

// observe counts one query.
func (m *meters) observe(q Query, took time.Duration, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.seconds += took.Seconds()
	m.results[resultOf(err)]++
	l := limitOf(err)
	if l == "" {
		return
	}
	name := q.Payer.String()
	if !m.payers[name] {
		if len(m.payers) >= maxPayers {
			name = otherPayer
		} else {
			m.payers[name] = true
		}
	}
	m.limited[limitedPayer{name, l}]++
}

// resultOf returns the label of a query's result.
func resultOf(err error) string {
	var canceled promql.ErrQueryCanceled
	switch {
	case err == nil:
		return "success"
	case limitOf(err) != "":
		return "limited"
	case errors.As(err, &canceled):
		return "canceled"
	}
	if _, ok := errors.AsType[*SyntaxError](err); ok {
		return "syntax"
	}
	return "failed"
}

var (
	queriesDesc = prometheus.NewDesc("gpupilot_promql_queries_total", "PromQL queries, by result.", []string{"result"}, nil)
	limitedDesc = prometheus.NewDesc("gpupilot_promql_limited_total", "PromQL queries that a limit ended, by limit and by the namespace that pays for them.", []string{"payer", "limit"}, nil)
	secondsDesc = prometheus.NewDesc("gpupilot_promql_duration_seconds_total", "Total time of PromQL queries, waiting included.", nil, nil)
	runningDesc = prometheus.NewDesc("gpupilot_promql_running", "PromQL queries that run now, by slot: reserved for rules and signals, or shared.", []string{"slots"}, nil)
	waitingDesc = prometheus.NewDesc("gpupilot_promql_waiting", "PromQL queries that wait for a slot.", []string{"slots"}, nil)
)

// Describe implements prometheus.Collector.
func (e *Engine) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{queriesDesc, limitedDesc, secondsDesc, runningDesc, waitingDesc} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (e *Engine) Collect(ch chan<- prometheus.Metric) {
	e.meters.mu.Lock()
	for result, n := range e.meters.results {
		ch <- prometheus.MustNewConstMetric(queriesDesc, prometheus.CounterValue, float64(n), result)
	}
	for k, n := range e.meters.limited {
		ch <- prometheus.MustNewConstMetric(limitedDesc, prometheus.CounterValue, float64(n), k.of, string(k.limit))
	}
	ch <- prometheus.MustNewConstMetric(secondsDesc, prometheus.CounterValue, e.meters.seconds)
	e.meters.mu.Unlock()
	for kind, s := range map[string]*fair.Slots{"shared": e.slots, "reserved": e.reserved} {
		running, waiting := s.Counts()
		ch <- prometheus.MustNewConstMetric(runningDesc, prometheus.GaugeValue, float64(running), kind)
		ch <- prometheus.MustNewConstMetric(waitingDesc, prometheus.GaugeValue, float64(waiting), kind)
	}
}

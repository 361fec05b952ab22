// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// GroupState is a group that runs.
type GroupState struct {
	Source   *Source
	Group    *Group
	Interval time.Duration
	Rules    []RuleState
	Missed   uint64 // evaluations that were left out because an earlier one took too long
}

// Groups returns the groups that run, sorted by source and name.
func (m *Manager) Groups() []GroupState {
	m.mu.Lock()
	out := make([]GroupState, 0, len(m.running))
	for _, r := range m.running {
		r.mu.Lock()
		out = append(out, GroupState{r.source, r.group, r.interval, slices.Clone(r.states), r.missed})
		r.mu.Unlock()
	}
	m.mu.Unlock()
	slices.SortFunc(out, func(a, b GroupState) int {
		return cmp.Or(strings.Compare(a.Source.ID, b.Source.ID), strings.Compare(a.Group.Name, b.Group.Name))
	})
	return out
}

// maxNamed bounds the sources that are named on /metrics.
const maxNamed = 100

var (
	groupsDesc  = prometheus.NewDesc("gpupilot_rules_groups", "Groups of recording rules that are evaluated.", nil, nil)
	rulesDesc   = prometheus.NewDesc("gpupilot_rules", "Recording rules that are evaluated, by the result of the last evaluation.", []string{"result"}, nil)
	missedDesc  = prometheus.NewDesc("gpupilot_rules_missed_total", "Evaluations of running groups that were left out because an earlier one took too long.", nil, nil)
	wrongDesc   = prometheus.NewDesc("gpupilot_rules_source_wrong", "1 for each rule file or PrometheusRule whose newest version is refused; of the first 100.", []string{"source"}, nil)
	seriesDesc  = prometheus.NewDesc("gpupilot_rules_series", "Series of results in memory.", nil, nil)
	bytesDesc   = prometheus.NewDesc("gpupilot_rules_bytes", "Bytes of memory that the results of rules are charged for.", nil, nil)
	descsOfAll  = []*prometheus.Desc{groupsDesc, rulesDesc, missedDesc, wrongDesc, seriesDesc, bytesDesc}
	resultNames = []string{"success", "failed", "pending"}
)

// Describe implements prometheus.Collector.
func (m *Manager) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range descsOfAll {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (m *Manager) Collect(ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64, l ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, l...)
	}
	groups := m.Groups()
	results, missed := map[string]int{}, uint64(0)
	for i := range groups {
		missed += groups[i].Missed
		for j := range groups[i].Rules {
			results[groups[i].Rules[j].result()]++
		}
	}
	gauge(groupsDesc, float64(len(groups)))
	for _, name := range resultNames {
		gauge(rulesDesc, float64(results[name]), name)
	}
	ch <- prometheus.MustNewConstMetric(missedDesc, prometheus.CounterValue, float64(missed))
	for _, id := range m.wrong() {
		gauge(wrongDesc, 1, id)
	}
	s := m.deps.Store.Stats()
	gauge(seriesDesc, float64(s.Series))
	gauge(bytesDesc, float64(s.Bytes))
}

// result returns the label of a rule's last evaluation.
func (s *RuleState) result() string {
	switch {
	case s.At.IsZero():
		return "pending"
	case s.Error != "":
		return "failed"
	}
	return "success"
}

// wrong returns the sorted names of the sources that are refused.
func (m *Manager) wrong() (out []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for id, o := range m.offered {
		if o.problem != "" {
			out = append(out, id)
		}
	}
	slices.Sort(out)
	return out[:min(len(out), maxNamed)]
}

// SPDX-License-Identifier: Apache-2.0

package main

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/gpupilot/gpupilot/internal/kube"
	"github.com/gpupilot/gpupilot/internal/scrape"
	"github.com/gpupilot/gpupilot/internal/series"
)

// meters give what the adapters count.
type meters struct {
	scraper  *scrape.Scraper
	store    *series.Store
	recorder *kube.Recorder
	pods     *kube.Pods
}

// Describe gives nothing: what is collected is not known beforehand, and
// nothing else has these names.
func (m *meters) Describe(chan<- *prometheus.Desc) {}

// Collect is prometheus.Collector's.
func (m *meters) Collect(ch chan<- prometheus.Metric) {
	counter := func(name, help string, v float64) { ch <- constant(name, help, prometheus.CounterValue, v) }
	gauge := func(name, help string, v float64) { ch <- constant(name, help, prometheus.GaugeValue, v) }

	s := m.scraper.Stats()
	gauge("gpupilot_scrape_targets", "Expositions that are scraped.", float64(s.Targets))
	gauge("gpupilot_scrape_refused_targets", "Expositions that are not scraped because there are too many for the memory limit.", float64(s.Refused))
	counter("gpupilot_scrapes_total", "Scrapes.", float64(s.Scrapes))
	for reason, n := range s.Failures {
		ch <- constant("gpupilot_scrape_failures_total", "Scrapes that failed, by reason.", prometheus.CounterValue, float64(n), "reason", reason)
	}
	counter("gpupilot_scrape_repeated_total", "Scrapes that brought nothing new: asked too early.", float64(s.Repeated))
	counter("gpupilot_scrape_samples_total", "Values read.", float64(s.Samples))
	counter("gpupilot_scrape_bad_lines_total", "Lines of expositions that could not be read.", float64(s.BadLines))
	counter("gpupilot_scrape_duration_seconds_total", "Time that all scrapes took together.", s.Took.Seconds())

	m.collectWindows(ch)
	gauge("gpupilot_pods_watched", "Pods that are watched.", float64(m.pods.Len()))
	counter("gpupilot_events_lost_total", "Events that could not be written.", float64(m.recorder.Dropped()))
}

// maxNamed bounds how many targets are named on /metrics.
const maxNamed = 20

// collectWindows gives what the store of windows counts.
func (m *meters) collectWindows(ch chan<- prometheus.Metric) {
	counter := func(name, help string, v float64) { ch <- constant(name, help, prometheus.CounterValue, v) }
	gauge := func(name, help string, v float64) { ch <- constant(name, help, prometheus.GaugeValue, v) }

	w := m.store.Stats()
	gauge("gpupilot_window_series", "Series in memory.", float64(w.Series))
	gauge("gpupilot_window_bytes", "Bytes of their samples.", float64(w.Bytes))
	gauge("gpupilot_window_memory_bytes", "Memory that scrape targets take: samples, series, names, owners, connections and buffers.", float64(w.Memory))
	gauge("gpupilot_window_memory_limit_bytes", "Limit of that memory (--window-memory).", float64(w.Limit))
	gauge("gpupilot_window_short_targets", "Targets whose window the memory limit keeps shorter than --window.", float64(w.Short))
	gauge("gpupilot_window_limited_targets", "Targets that were refused something within the last minute, or have a short window.", float64(w.Limited))
	limited := m.store.Limited()
	for i := range limited[:min(len(limited), maxNamed)] {
		x := &limited[i]
		ch <- constant("gpupilot_window_limited_target_bytes", "Memory of each limited target; of the 20 largest.", prometheus.GaugeValue, float64(x.Bytes), "target", x.Target)
	}
	counter("gpupilot_window_samples_total", "Values stored.", float64(w.Samples))
	for reason, n := range map[string]uint64{"repeated": w.Repeated, "rewound": w.Rewound, "unknown": w.Unknown, "overflown": w.Refused[series.RefusedSeries]} {
		ch <- constant("gpupilot_window_dropped_total", "What was not stored, by reason.", prometheus.CounterValue, float64(n), "reason", reason)
	}
	for r, n := range w.Refused {
		ch <- constant("gpupilot_window_refused_total", "What targets were refused by a bound or by the memory limit.", prometheus.CounterValue, float64(n), "reason", series.Refused(r).String())
	}
}

// constant is a metric with pairs of label names and values.
func constant(name, help string, kind prometheus.ValueType, v float64, pairs ...string) prometheus.Metric {
	var names, values []string
	for i := 0; i+1 < len(pairs); i += 2 {
		names, values = append(names, pairs[i]), append(values, pairs[i+1])
	}
	return prometheus.MustNewConstMetric(prometheus.NewDesc(name, help, names, nil), kind, v, values...)
}

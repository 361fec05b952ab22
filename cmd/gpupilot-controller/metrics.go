// SPDX-License-Identifier: Apache-2.0

package main

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/gpupilot/gpupilot/internal/autoscaler/events"
	"github.com/gpupilot/gpupilot/internal/autoscaler/index"
	"github.com/gpupilot/gpupilot/internal/window/scrape"
	"github.com/gpupilot/gpupilot/internal/window/series"
)

// meters collects the metrics of the adapters.
type meters struct {
	scraper  *scrape.Scraper
	store    *series.Store
	recorder *events.Recorder
	pods     *index.Pods
}

// Describe sends nothing, which makes this an unchecked collector: its label values are
// not known in advance.
func (m *meters) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (m *meters) Collect(ch chan<- prometheus.Metric) {
	to := sink(ch)
	s := m.scraper.Stats()
	to.gauge("gpupilot_scrape_targets", "Targets that are scraped.", float64(s.Targets))
	to.gauge("gpupilot_scrape_refused_targets", "Targets that are not scraped because of the memory limit.", float64(s.Refused))
	to.counter("gpupilot_scrapes_total", "Scrapes.", float64(s.Scrapes))
	for reason, n := range s.Failures {
		to.counter("gpupilot_scrape_failures_total", "Scrapes that failed, by reason.", float64(n), "reason", reason)
	}
	to.counter("gpupilot_scrape_repeated_total", "Scrapes without new values: the exporter had not collected since.", float64(s.Repeated))
	to.counter("gpupilot_scrape_samples_total", "Values read.", float64(s.Samples))
	to.counter("gpupilot_scrape_bad_lines_total", "Lines of expositions that could not be parsed.", float64(s.BadLines))
	for method, n := range s.Freshness {
		to.gauge("gpupilot_scrape_freshness_targets", "Targets by the method that detects new values.", float64(n), "method", method)
	}
	to.gauge("gpupilot_scrape_frozen_devices", "Devices whose values are ignored because they have not changed for too long.", float64(s.Frozen))
	for metric, n := range s.OutOfRange {
		to.counter("gpupilot_scrape_out_of_range_total", "Values that were not stored because they are outside the range of their metric.", float64(n), "metric", metric)
	}
	to.counter("gpupilot_scrape_duration_seconds_total", "Total time of all scrapes.", s.Took.Seconds())

	m.collectWindows(ch)
	to.gauge("gpupilot_pods_watched", "Pods that are watched.", float64(m.pods.Len()))
	to.counter("gpupilot_events_lost_total", "Events that could not be written.", float64(m.recorder.Dropped()))
}

// maxNamed bounds how many targets are named on /metrics.
const maxNamed = 20

// collectWindows collects the metrics of the window store.
func (m *meters) collectWindows(ch chan<- prometheus.Metric) {
	to := sink(ch)
	w := m.store.Stats()
	to.gauge("gpupilot_window_series", "Series in memory.", float64(w.Series))
	to.gauge("gpupilot_window_bytes", "Bytes of the samples in memory.", float64(w.Bytes))
	to.gauge("gpupilot_window_memory_bytes", "Memory that scrape targets take: samples, series, names, owners, connections and buffers.", float64(w.Memory))
	to.gauge("gpupilot_window_memory_limit_bytes", "Limit of that memory (--window-memory).", float64(w.Limit))
	to.gauge("gpupilot_window_short_targets", "Targets whose window the memory limit keeps shorter than --window.", float64(w.Short))
	to.gauge("gpupilot_window_limited_targets", "Targets that reached a bound within the last minute, or have a short window.", float64(w.Limited))
	limited := m.store.Limited()
	for i := range limited[:min(len(limited), maxNamed)] {
		x := &limited[i]
		to.gauge("gpupilot_window_limited_target_bytes", "Memory of each limited target; of the 20 largest.", float64(x.Bytes), "target", x.Target)
	}
	to.counter("gpupilot_window_samples_total", "Values stored.", float64(w.Samples))
	for reason, n := range map[string]uint64{"repeated": w.Repeated, "rewound": w.Rewound, "unknown": w.Unknown, "overflown": w.Refused[series.RefusedSeries]} {
		to.counter("gpupilot_window_dropped_total", "Values that were not stored, by reason.", float64(n), "reason", reason)
	}
	for r, n := range w.Refused {
		to.counter("gpupilot_window_refused_total", "Series, names and other parts of targets that were refused because of a bound or the memory limit, by reason.", float64(n), "reason", series.Refused(r).String())
	}
}

// pageMeters collects the metrics of the page and of the reviews of its viewers.
type pageMeters struct{ p *program }

// Describe sends nothing, as for meters.
func (m *pageMeters) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (m *pageMeters) Collect(ch chan<- prometheus.Metric) {
	to := sink(ch)
	s := m.p.page.Stats()
	for reason, n := range map[string]uint64{"requests": s.LimitedRequests, "logins": s.LimitedLogins, "answers": s.LimitedAnswers} {
		to.counter("gpupilot_page_limited_total", "Requests refused because of a bound, by the bound: requests of one user, wrong logins, or answers under way.", float64(n), "bound", reason)
	}
	if c := m.p.conns.Load(); c != nil {
		to.gauge("gpupilot_page_connections", "Open connections of --address.", float64(c.count()))
		to.counter("gpupilot_page_connections_closed_total", "Connections closed to make room: the oldest of the address with the most.", float64(c.closed.Load()))
	}
	if m.p.access == nil {
		return
	}
	a := m.p.access.Stats()
	for result, n := range map[string]uint64{"accepted": a.Accepted, "refused": a.Refused, "allowed": a.Allowed, "denied": a.Denied, "error": a.Failed} {
		to.counter("gpupilot_access_reviews_total", "TokenReviews (accepted, refused) and SubjectAccessReviews (allowed, denied) for viewers of the page, and those without an answer.", float64(n), "result", result)
	}
}

// sink takes metrics whose label values are not known in advance. pairs are names and
// values of labels.
type sink chan<- prometheus.Metric

func (s sink) counter(name, help string, v float64, pairs ...string) {
	s.send(name, help, prometheus.CounterValue, v, pairs)
}

func (s sink) gauge(name, help string, v float64, pairs ...string) {
	s.send(name, help, prometheus.GaugeValue, v, pairs)
}

func (s sink) send(name, help string, kind prometheus.ValueType, v float64, pairs []string) {
	var names, values []string
	for i := 0; i+1 < len(pairs); i += 2 {
		names, values = append(names, pairs[i]), append(values, pairs[i+1])
	}
	s <- prometheus.MustNewConstMetric(prometheus.NewDesc(name, help, names, nil), kind, v, values...)
}

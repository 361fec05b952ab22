// SPDX-License-Identifier: Apache-2.0

package scrape

import (
	"github.com/gpupilot/gpupilot/internal/base/meter"
	"github.com/gpupilot/gpupilot/internal/window/series"
)

// Meter collects the metrics of the scraper and of the windows that it fills.
func (s *Scraper) Meter(to meter.Sink) {
	st := s.Stats()
	to.Gauge("gpupilot_scrape_targets", "Targets that are scraped.", float64(st.Targets))
	to.Gauge("gpupilot_scrape_refused_targets", "Targets that are not scraped because of the memory limit.", float64(st.Refused))
	to.Counter("gpupilot_scrapes_total", "Scrapes.", float64(st.Scrapes))
	for reason, n := range st.Failures {
		to.Counter("gpupilot_scrape_failures_total", "Scrapes that failed, by reason.", float64(n), "reason", reason)
	}
	to.Counter("gpupilot_scrape_repeated_total", "Scrapes without new values: the exporter had not collected since.", float64(st.Repeated))
	to.Counter("gpupilot_scrape_samples_total", "Values read.", float64(st.Samples))
	to.Counter("gpupilot_scrape_bad_lines_total", "Lines of expositions that could not be parsed.", float64(st.BadLines))
	for method, n := range st.Freshness {
		to.Gauge("gpupilot_scrape_freshness_targets", "Targets by the method that detects new values.", float64(n), "method", method)
	}
	to.Gauge("gpupilot_scrape_frozen_devices", "Devices whose values are ignored because they have not changed for too long.", float64(st.Frozen))
	for metric, n := range st.OutOfRange {
		to.Counter("gpupilot_scrape_out_of_range_total", "Values that were not stored because they are outside the range of their metric.", float64(n), "metric", metric)
	}
	to.Counter("gpupilot_scrape_duration_seconds_total", "Total time of all scrapes.", st.Took.Seconds())
	s.meterWindows(to)
}

// maxNamed bounds how many targets are named on /metrics.
const maxNamed = 20

// meterWindows collects the metrics of the window store.
func (s *Scraper) meterWindows(to meter.Sink) {
	w := s.deps.Store.Stats()
	to.Gauge("gpupilot_window_series", "Series in memory.", float64(w.Series))
	to.Gauge("gpupilot_window_bytes", "Bytes of the samples in memory.", float64(w.Bytes))
	to.Gauge("gpupilot_window_memory_bytes", "Memory that scrape targets take: samples, series, names, owners, connections and buffers.", float64(w.Memory))
	to.Gauge("gpupilot_window_memory_limit_bytes", "Limit of that memory (--window-memory).", float64(w.Limit))
	to.Gauge("gpupilot_window_short_targets", "Targets whose window the memory limit keeps shorter than --window.", float64(w.Short))
	to.Gauge("gpupilot_window_limited_targets", "Targets that reached a bound within the last minute, or have a short window.", float64(w.Limited))
	limited := s.deps.Store.Limited()
	for i := range limited[:min(len(limited), maxNamed)] {
		x := &limited[i]
		to.Gauge("gpupilot_window_limited_target_bytes", "Memory of each limited target; of the 20 largest.", float64(x.Bytes), "target", x.Target)
	}
	to.Counter("gpupilot_window_samples_total", "Values stored.", float64(w.Samples))
	for reason, n := range map[string]uint64{"repeated": w.Repeated, "rewound": w.Rewound, "unknown": w.Unknown, "overflown": w.Refused[series.RefusedSeries]} {
		to.Counter("gpupilot_window_dropped_total", "Values that were not stored, by reason.", float64(n), "reason", reason)
	}
	for r, n := range w.Refused {
		to.Counter("gpupilot_window_refused_total", "Series, names and other parts of targets that were refused because of a bound or the memory limit, by reason.", float64(n), "reason", series.Refused(r).String())
	}
}

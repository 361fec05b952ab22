// SPDX-License-Identifier: Apache-2.0

package main

import (
	"github.com/gpupilot/gpupilot/internal/scale/policy"
	"github.com/gpupilot/gpupilot/internal/window/discovery"
	"github.com/gpupilot/gpupilot/internal/window/page"
	"github.com/gpupilot/gpupilot/internal/window/scrape"
	"github.com/gpupilot/gpupilot/internal/window/series"
	"github.com/gpupilot/gpupilot/internal/window/view"
)

// kinds are the scraper's kinds by their names in discovery.
var kinds = map[string]scrape.Kind{
	discovery.KindAgent: scrape.Agent, discovery.KindDCGM: scrape.DCGM, discovery.KindPod: scrape.Pod,
}

var kindNames = map[scrape.Kind]string{
	scrape.Agent: discovery.KindAgent, scrape.DCGM: discovery.KindDCGM, scrape.Pod: discovery.KindPod,
}

// scrape hands the discovered targets to the scraper.
func (p *program) scrape(targets []discovery.Target) {
	list := make([]scrape.Target, 0, len(targets))
	for _, t := range targets {
		list = append(list, scrape.Target{
			Name: t.Name, URL: t.URL, Kind: kinds[t.Kind], Labels: t.Labels, Fields: t.Fields, Metrics: podMetrics(t.Metrics), Interval: t.Interval,
		})
	}
	p.scraper.Sync(list)
}

func podMetrics(in []policy.PodMetric) []page.Metric {
	out := make([]page.Metric, 0, len(in))
	for _, m := range in {
		out = append(out, page.Metric{Key: m.Key(), Name: m.Name, Label: m.Label, Value: m.Value, Largest: m.Max, By: m.By, Min: m.LowerBound, Max: m.UpperBound})
	}
	return out
}

// states are the scraper's targets as the page shows them.
func (p *program) states() []view.Target {
	limited := map[string]series.Limited{}
	for _, l := range p.store.Limited() {
		limited[l.Target] = l
	}
	list := p.scraper.States()
	out := make([]view.Target, 0, len(list))
	for i := range list {
		s := &list[i]
		t := view.Target{
			Name: s.Name, URL: s.URL, Kind: kindNames[s.Kind], Up: s.Up(), Error: s.Problem(), LastSuccess: s.LastSuccess, Lag: s.Lag,
			Freshness: s.Freshness, Frozen: s.Frozen, OutOfRange: s.OutOfRange,
		}
		if l, ok := limited[s.Name]; ok {
			t.Limited = l.String()
		}
		out = append(out, t)
	}
	return out
}

// SPDX-License-Identifier: Apache-2.0

package discovery

import (
	"strings"

	"github.com/gpupilot/gpupilot/internal/scale/policy"
	"github.com/gpupilot/gpupilot/internal/window/page"
	"github.com/gpupilot/gpupilot/internal/window/scrape"
	"github.com/gpupilot/gpupilot/internal/window/series"
	"github.com/gpupilot/gpupilot/internal/window/view"
)

// Scraping is the scraping of discovered targets.
type Scraping struct {
	Scraper *scrape.Scraper
	Store   *series.Store // that it fills
}

// kinds are the scraper's kinds by their names here.
var kinds = map[string]scrape.Kind{
	KindAgent: scrape.Agent, KindDCGM: scrape.DCGM, KindPod: scrape.Pod,
}

var kindNames = map[scrape.Kind]string{
	scrape.Agent: KindAgent, scrape.DCGM: KindDCGM, scrape.Pod: KindPod,
}

// Sync hands the targets to the scraper.
func (s *Scraping) Sync(targets []Target) {
	list := make([]scrape.Target, 0, len(targets))
	for i := range targets {
		t := &targets[i]
		x := scrape.Target{
			Name: t.Name, URL: t.URL, Kind: kinds[t.Kind], Labels: t.Labels, UID: string(t.UID), Fields: t.Fields, Named: t.Named, Metrics: PodMetrics(t.Metrics),
		}
		if t.TLS != nil {
			x.TLS = scrape.TLS(*t.TLS)
		}
		list = append(list, x)
	}
	s.Scraper.Sync(list)
}

// PodMetrics returns metrics of a policy as the scraper reads them.
func PodMetrics(in []policy.PodMetric) []page.Metric {
	out := make([]page.Metric, 0, len(in))
	for _, m := range in {
		out = append(out, page.Metric{
			Key: m.Key(), Name: m.Name, Label: m.Label, Value: m.Value, Largest: m.Max, By: m.By, Optional: m.Optional, Min: m.LowerBound, Max: m.UpperBound,
			Counter: m.Rate || strings.HasSuffix(m.Name, "_total"),
			Bucket:  page.Bucket{Limit: m.Bucket.Limit, Above: m.Bucket.Above, Edge: m.Bucket.Edge},
		})
	}
	return out
}

// States are the scraper's targets as the page shows them.
func (s *Scraping) States() []view.Target {
	limited := map[string]series.Limited{}
	for _, l := range s.Store.Limited() {
		limited[l.Target] = l
	}
	list := s.Scraper.States()
	out := make([]view.Target, 0, len(list))
	for i := range list {
		x := &list[i]
		t := view.Target{
			Name: x.Name, URL: x.URL, Kind: kindNames[x.Kind], Up: x.Up(), Error: x.Problem(), LastSuccess: x.LastSuccess, Lag: x.Lag,
			Freshness: x.Freshness, Frozen: x.Frozen, OutOfRange: x.OutOfRange,
		}
		if l, ok := limited[x.Name]; ok {
			t.Limited = l.String()
		}
		out = append(out, t)
	}
	return out
}

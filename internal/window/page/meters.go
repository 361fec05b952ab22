// SPDX-License-Identifier: Apache-2.0

package page

import (
	"time"

	"github.com/gpupilot/gpupilot/internal/base/promtext"
	"github.com/gpupilot/gpupilot/internal/window/series"
)

// meter is a series about the scrapes of a target, which every Prometheus has.
type meter struct {
	name string
	ref  series.Ref
	set  series.Labels
}

const (
	meterDuration = "scrape_duration_seconds"
	meterSamples  = "scrape_samples_scraped"
	meterKept     = "scrape_samples_post_metric_relabeling" // equal: there is no relabeling
	numMeters     = 3
)

// scrapeMeters returns the series about the scrapes, if queries read them.
func (x *labeller) scrapeMeters() []meter {
	if x.meters != nil {
		return x.meters
	}
	x.meters = make([]meter, 0, numMeters)
	for _, name := range []string{meterDuration, meterSamples, meterKept} {
		if !x.names.allOf(x.isPod) && !x.names.has([]byte(name), x.spaces) {
			continue
		}
		set, ok := x.labels(&line{Line: promtext.Line{Name: []byte(name)}})
		if !ok {
			continue
		}
		if r, ok := x.target.Ref(series.Key{Line: string(x.buffer)}); ok {
			x.meters = append(x.meters, meter{name, r, set})
		}
	}
	return x.meters
}

// fillMeters adds the values of a successful scrape to a batch.
func (x *labeller) fillMeters(took time.Duration, samples int, b *series.Batch) {
	for _, m := range x.meters {
		v := took.Seconds()
		if m.name != meterDuration {
			v = float64(samples)
		}
		b.Add(m.ref, v)
	}
}

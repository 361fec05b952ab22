// SPDX-License-Identifier: Apache-2.0

package windows

import (
	"math"
	"slices"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/value"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"github.com/prometheus/prometheus/util/annotations"

	"github.com/gpupilot/gpupilot/internal/promql/samples"
	"github.com/gpupilot/gpupilot/internal/window/ring"
	"github.com/gpupilot/gpupilot/internal/window/series"
)

// result is one series of a selection, whose samples are read with its iterator. It implements
// storage.Series.
type result struct {
	sel    *selection
	labels labels.Labels
	target *target
	entry  *entry   // nil: the target's series up, or that of a pod
	pod    *podSpan // of a series of a pod
	scale  float64  // 0: that of the page's name
}

// point is one series of an instant query: its newest value. It implements
// storage.Series.
type point struct {
	labels labels.Labels
	stamp  int64 // ms since 1970
	value  float64
}

// Labels implements storage.Series.
func (p *point) Labels() labels.Labels { return p.labels }

// Iterator implements storage.Series.
func (p *point) Iterator(reuse chunkenc.Iterator) chunkenc.Iterator {
	it := samples.Reuse(reuse)
	it.Fill(append(it.Buffer(), samples.Sample{T: p.stamp, V: p.value}), nil)
	return it
}

func staleNaN() float64 { return math.Float64frombits(value.StaleNaN) }

func isStale(v float64) bool { return value.IsStaleNaN(v) }

// Labels implements storage.Series.
func (r *result) Labels() labels.Labels { return r.labels }

// Iterator implements storage.Series.
func (r *result) Iterator(reuse chunkenc.Iterator) chunkenc.Iterator {
	it := samples.Reuse(reuse)
	it.Fill(r.samples(it.Buffer()), nil)
	return it
}

// scaleOf returns the factor between the selected name's unit and the stored one. scale
// is that of another profile's name; 0: the page's name is selected.
func scaleOf(x *series.Exposure, scale float64) float64 {
	if scale != 0 && x.Field != 0 {
		return scale
	}
	return x.Scale
}

// samples appends the samples of the series, with a stale marker where the series left
// the page or its values became too old.
func (r *result) samples(dst []samples.Sample) []samples.Sample {
	if r.pod != nil {
		return r.pod.samples(dst, r.sel)
	}
	const ms = int64(time.Millisecond)
	from, to := r.sel.from*ms, r.sel.to*ms+ms-1
	w := writer{list: dst, keep: int64(r.target.window.Keep(r.sel.s.cfg.MinAge)) / ms, to: r.sel.to}
	if r.entry == nil {
		for _, x := range r.target.window.ReadUp(nil, from, to) {
			w.add(x.Stamp/ms, x.Value)
		}
		w.finish()
		return w.list
	}
	var buf []ring.Stamped
	for shown := range r.entry.exposures {
		x := *shown
		x.Scale = scaleOf(&x, r.scale)
		buf = r.target.window.ReadRange(buf[:0], &x, from, to)
		for _, v := range buf {
			w.add(v.Stamp/ms, v.Value)
		}
		if x.Until != series.Open {
			w.end(x.Until / ms)
		}
	}
	w.finish()
	return w.list
}

// writer appends samples in the order of time.
type writer struct {
	list []samples.Sample
	keep int64 // ms up to which a value counts, as in an instant query
	to   int64
}

func (w *writer) add(t int64, v float64) {
	if n := len(w.list); n > 0 {
		if last := w.list[n-1]; t <= last.T {
			if isStale(last.V) && t == last.T {
				w.list[n-1].V = v
			}
			return
		} else if !isStale(last.V) && t-last.T > w.keep+1 {
			w.list = append(w.list, samples.Sample{T: last.T + w.keep + 1, V: staleNaN()})
		}
	}
	w.list = append(w.list, samples.Sample{T: t, V: v})
}

// end marks the series stale at t, unless it is.
func (w *writer) end(t int64) {
	n := len(w.list)
	if n == 0 || isStale(w.list[n-1].V) {
		return
	}
	if t = min(t, w.list[n-1].T+w.keep+1); t > w.list[n-1].T && t <= w.to {
		w.list = append(w.list, samples.Sample{T: t, V: staleNaN()})
	}
}

func (w *writer) finish() { w.end(math.MaxInt64) }

// seriesSet is a list of series: the points, then the results. It implements
// storage.SeriesSet.
type seriesSet struct {
	points  []point
	results []result
	sorted  []storage.Series // both, sorted; nil: not sorted
	at      int
}

// sort sorts the series by their labels.
func (s *seriesSet) sort() {
	s.sorted = make([]storage.Series, 0, len(s.points)+len(s.results))
	for i := range s.points {
		s.sorted = append(s.sorted, &s.points[i])
	}
	for i := range s.results {
		s.sorted = append(s.sorted, &s.results[i])
	}
	slices.SortFunc(s.sorted, func(a, b storage.Series) int { return labels.Compare(a.Labels(), b.Labels()) })
}

// Next implements storage.SeriesSet.
func (s *seriesSet) Next() bool { s.at++; return s.at < len(s.points)+len(s.results) }

// At implements storage.SeriesSet.
func (s *seriesSet) At() storage.Series {
	switch {
	case s.sorted != nil:
		return s.sorted[s.at]
	case s.at < len(s.points):
		return &s.points[s.at]
	}
	return &s.results[s.at-len(s.points)]
}

// Err implements storage.SeriesSet.
func (s *seriesSet) Err() error { return nil }

// Warnings implements storage.SeriesSet.
func (s *seriesSet) Warnings() annotations.Annotations { return nil }

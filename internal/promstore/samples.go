// SPDX-License-Identifier: Apache-2.0

package promstore

import (
	"math"
	"time"

	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/value"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"github.com/prometheus/prometheus/util/annotations"

	"github.com/gpupilot/gpupilot/internal/series"
)

// result is one series of a selection. It implements storage.Series.
type result struct {
	sel    *selection
	labels labels.Labels
	target *target
	entry  *entry   // nil: the target's series up, or that of a pod
	pod    *podSpan // of a series of a pod
	scale  float64  // 0: that of the page's name

	stamp int64 // of the only sample, ms since 1970; 0: the samples are read by the iterator
	value float64
}

// sample is a value at a time in ms since 1970.
type sample struct {
	t int64
	v float64
}

// millis is a time in ms since 1970. go vet takes a method Seek of an int64 for io.Seeker's.
type millis = int64

func staleNaN() float64 { return math.Float64frombits(value.StaleNaN) }

func isStale(v float64) bool { return value.IsStaleNaN(v) }

// Labels implements storage.Series.
func (r *result) Labels() labels.Labels { return r.labels }

// Iterator implements storage.Series.
func (r *result) Iterator(reuse chunkenc.Iterator) chunkenc.Iterator {
	it, ok := reuse.(*iterator)
	if !ok {
		it = &iterator{}
	}
	it.at = -1
	if r.stamp != 0 {
		it.samples = append(it.samples[:0], sample{r.stamp, r.value})
		return it
	}
	it.samples = r.samples(it.samples[:0])
	return it
}

func (r *result) scaleOf(part *series.Exposure) float64 {
	if r.scale != 0 && part.Field != 0 {
		return r.scale
	}
	return part.Scale
}

// samples appends the samples of the series, with a stale marker where the series left
// the page or its values became too old.
func (r *result) samples(dst []sample) []sample {
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
	var buf []series.Stamped
	for i := range r.entry.parts {
		part := r.entry.parts[i] // a copy
		part.Scale = r.scaleOf(&part)
		buf = r.target.window.ReadRange(buf[:0], &part, from, to)
		for _, x := range buf {
			w.add(x.Stamp/ms, x.Value)
		}
		if part.Until != series.Open {
			w.end(part.Until / ms)
		}
	}
	w.finish()
	return w.list
}

// writer appends samples in the order of time.
type writer struct {
	list []sample
	keep int64 // ms after which a value is stale
	to   int64
}

func (w *writer) add(t int64, v float64) {
	if n := len(w.list); n > 0 {
		if last := w.list[n-1]; t <= last.t {
			if isStale(last.v) && t == last.t {
				w.list[n-1].v = v
			}
			return
		} else if !isStale(last.v) && t-last.t > w.keep {
			w.list = append(w.list, sample{last.t + w.keep, staleNaN()})
		}
	}
	w.list = append(w.list, sample{t, v})
}

// end marks the series stale at t, unless it is.
func (w *writer) end(t int64) {
	n := len(w.list)
	if n == 0 || isStale(w.list[n-1].v) {
		return
	}
	if t = min(t, w.list[n-1].t+w.keep); t > w.list[n-1].t && t <= w.to {
		w.list = append(w.list, sample{t, staleNaN()})
	}
}

func (w *writer) finish() { w.end(math.MaxInt64) }

// iterator iterates over samples. It implements chunkenc.Iterator.
type iterator struct {
	samples []sample
	at      int
}

// Next implements chunkenc.Iterator.
func (it *iterator) Next() chunkenc.ValueType {
	if it.at++; it.at >= len(it.samples) {
		return chunkenc.ValNone
	}
	return chunkenc.ValFloat
}

// Seek implements chunkenc.Iterator.
func (it *iterator) Seek(t millis) chunkenc.ValueType {
	it.at = max(it.at, 0)
	for it.at < len(it.samples) && it.samples[it.at].t < t {
		it.at++
	}
	if it.at >= len(it.samples) {
		return chunkenc.ValNone
	}
	return chunkenc.ValFloat
}

// At implements chunkenc.Iterator.
func (it *iterator) At() (int64, float64) { return it.samples[it.at].t, it.samples[it.at].v }

// AtHistogram implements chunkenc.Iterator. There are no native histograms.
func (it *iterator) AtHistogram(*histogram.Histogram) (int64, *histogram.Histogram) { return 0, nil }

// AtFloatHistogram implements chunkenc.Iterator. There are no native histograms.
func (it *iterator) AtFloatHistogram(*histogram.FloatHistogram) (int64, *histogram.FloatHistogram) {
	return 0, nil
}

// AtT implements chunkenc.Iterator.
func (it *iterator) AtT() int64 { return it.samples[it.at].t }

// AtST implements chunkenc.Iterator. Start times are not known.
func (it *iterator) AtST() int64 { return 0 }

// Err implements chunkenc.Iterator.
func (it *iterator) Err() error { return nil }

// seriesSet is a list of series. It implements storage.SeriesSet.
type seriesSet struct {
	list []result
	at   int
}

// Next implements storage.SeriesSet.
func (s *seriesSet) Next() bool { s.at++; return s.at < len(s.list) }

// At implements storage.SeriesSet.
func (s *seriesSet) At() storage.Series { return &s.list[s.at] }

// Err implements storage.SeriesSet.
func (s *seriesSet) Err() error { return nil }

// Warnings implements storage.SeriesSet.
func (s *seriesSet) Warnings() annotations.Annotations { return nil }

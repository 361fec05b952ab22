// SPDX-License-Identifier: Apache-2.0

package past

import (
	"math"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/value"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb/chunkenc"

	"github.com/gpupilot/gpupilot/internal/promql/samples"
	"github.com/gpupilot/gpupilot/internal/window/history"
)

// joined is a series of the windows with its past. It implements storage.Series.
type joined struct {
	sel    *selection
	at     int            // in sel.past
	recent storage.Series // nil: the windows do not have it
}

// Labels implements storage.Series.
func (j *joined) Labels() labels.Labels { return j.sel.past[j.at].labels }

// Iterator implements storage.Series.
func (j *joined) Iterator(reuse chunkenc.Iterator) chunkenc.Iterator {
	it, ok := reuse.(*iterator)
	if !ok {
		it = &iterator{}
	}
	it.full = it.full[:0]
	var err error
	if j.recent != nil {
		it.recent = j.recent.Iterator(it.recent)
		for it.recent.Next() == chunkenc.ValFloat {
			t, v := it.recent.At()
			it.full = append(it.full, samples.Sample{T: t, V: v})
		}
		err = it.recent.Err()
	}
	it.minutes = j.sel.points(it.minutes[:0], j.at)
	it.Fill(merge(it.Buffer(), it.minutes, it.full), err)
	return it
}

// minuteMillis is the length of a minute in ms.
const minuteMillis = int64(time.Minute / time.Millisecond)

// merge appends the samples of the windows, and the points of the minutes in which the
// windows have none. Both are in the order of time.
func merge(dst, minutes, full []samples.Sample) []samples.Sample {
	for _, m := range minutes {
		covered := false
		for len(full) > 0 && full[0].T <= m.T {
			covered = covered || full[0].T > m.T-minuteMillis && !value.IsStaleNaN(full[0].V)
			dst, full = append(dst, full[0]), full[1:]
		}
		if n := len(dst); n > 0 && dst[n-1].T == m.T { // a stale marker at the end of the minute
			if !covered {
				dst[n-1] = m
			}
		} else if !covered {
			dst = append(dst, m)
		}
	}
	return append(dst, full...)
}

// maxColumns bounds the metrics of one read, and so its memory: 10 MB for 14 days.
const maxColumns = 32

// reader keeps the points of the last read. The engine iterates over one series after the
// other, in the order of their selection.
type reader struct {
	mu       sync.Mutex
	from, to int64 // ms since 1970
	workload history.Workload
	metrics  []history.Metric
	columns  [maxColumns][]point // parallel to metrics
}

// point is the numbers of a metric in a minute that has one.
type point struct {
	minute           int32 // since 1970
	mean, max, count float32
}

// points appends the points of a series within the time of the selection.
func (sel *selection) points(dst []samples.Sample, at int) []samples.Sample {
	r, x := sel.read, &sel.past[at]
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.workload != x.workload || r.from != sel.from || r.to != sel.to || !slices.Contains(r.metrics, x.metric) {
		sel.readColumns(at)
	}
	list := r.columns[slices.Index(r.metrics, x.metric)]
	for i := range list {
		t := (int64(list[i].minute) + 1) * minuteMillis
		if t < sel.from || t > sel.to {
			continue
		}
		v := x.stat.Of(&history.Value{Mean: float64(list[i].mean), Max: float64(list[i].max), Count: float64(list[i].count)})
		if x.stat == history.StatRolling {
			v = rolling(list[:i+1])
		}
		if !math.IsNaN(v) {
			dst = append(dst, samples.Sample{T: t, V: v})
		}
	}
	return dst
}

// rolling returns the mean of the last minutes, weighted by the counts. An unknown count is
// that of one.
func rolling(list []point) float64 {
	last := list[len(list)-1].minute
	total, weights := 0.0, 0.0
	for i := len(list) - 1; i >= 0 && list[i].minute > last-history.RollingMinutes; i-- {
		weight := float64(list[i].count)
		if math.IsNaN(weight) {
			weight = 1
		}
		total += weight * float64(list[i].mean)
		weights += weight
	}
	return total / weights
}

// readColumns reads the metric of a series, and those of the next series of the same
// workload. The lock is held.
func (sel *selection) readColumns(at int) {
	r := sel.read
	r.from, r.to, r.workload, r.metrics = sel.from, sel.to, sel.past[at].workload, r.metrics[:0]
	for i := at; i < len(sel.past) && sel.past[i].workload == r.workload && len(r.metrics) < maxColumns; i++ {
		if m := sel.past[i].metric; !slices.Contains(r.metrics, m) {
			r.columns[len(r.metrics)] = r.columns[len(r.metrics)][:0]
			r.metrics = append(r.metrics, m)
		}
	}
	from := time.UnixMilli(sel.from).Add(-history.RollingMinutes * time.Minute)
	sel.s.deps.Minutes.Each(r.workload, from, time.UnixMilli(sel.to), r.metrics, func(minute time.Time, values []history.Value) {
		for i := range values {
			if v := &values[i]; !math.IsNaN(v.Mean) {
				r.columns[i] = append(r.columns[i], point{int32(minute.Unix() / 60), float32(v.Mean), float32(v.Max), float32(v.Count)})
			}
		}
	})
}

// iterator is samples.Iterator with the memory of the parts that it joins.
type iterator struct {
	samples.Iterator

	full, minutes []samples.Sample // of the windows and of the history
	recent        chunkenc.Iterator
}

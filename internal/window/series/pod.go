// SPDX-License-Identifier: Apache-2.0

package series

import (
	"time"

	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/window/ring"
)

// Pod returns a pod's value of a field. It combines the newest values of the pod's
// devices by the field's PodAgg; the package's comment has the rules for missing
// values. Values older than maxAge and than three of the target's intervals are
// absent. For PodAgg Rate, the value is the counter's increase per second over
// Config.Rate, in the field's unit per second. At is the time of the oldest value
// that is included. On a shared device, a pod's value is its measured share of the
// field; without measured shares, it is the device's value.
func (s *Store) Pod(namespace, pod string, f gpu.FieldID, now time.Time, maxAge time.Duration) (Sample, bool) {
	var buf [16]tenure
	field, ok := gpu.Lookup(f)
	if !ok {
		return Sample{}, false
	}
	k := podKey{namespace, pod}
	r, ok := newestOf(s.tenures(buf[:0], k, nil), k, field, now, maxAge)
	return r.Sample, ok
}

// Reading is a pod's value of a field, and the age up to which it counts: the larger
// one of the reader's maxAge and three intervals of the target.
type Reading struct {
	Sample
	MaxAge time.Duration
}

func newestOf(tenures []tenure, k podKey, field *gpu.Field, now time.Time, maxAge time.Duration) (Reading, bool) {
	t := bestTarget(tenures, k, field, now, maxAge)
	if t == nil {
		return Reading{}, false
	}
	g := t.gather(tenures, k, field, now, maxAge)
	return g.reading(field)
}

// gathered is the values of a pod's devices from one target.
type gathered struct {
	want, have int // devices held, devices with a value
	sum, max   float64
	at         int64 // the timestamp of the oldest value
	keep       int64 // the age up to which a value counts, ns
}

func (g *gathered) add(at int64, v float64) {
	if g.have == 0 || v > g.max {
		g.max = v
	}
	if g.have == 0 || at < g.at {
		g.at = at
	}
	g.sum += v
	g.have++
}

func (g *gathered) reading(f *gpu.Field) (Reading, bool) {
	v, ok := g.combine(f.PodAgg)
	return Reading{v, time.Duration(g.keep)}, ok
}

// combine combines the devices' values by an aggregation.
func (g gathered) combine(how gpu.Aggregation) (Sample, bool) {
	at := time.Unix(0, g.at)
	switch {
	case g.have == 0:
		return Sample{}, false
	case how == gpu.Mean:
		return Sample{at, g.sum / float64(g.have)}, true
	case how == gpu.Max:
		return Sample{at, g.max}, true
	case g.have < g.want, how == gpu.NoAggregate && g.want > 1:
		return Sample{}, false
	}
	return Sample{at, g.sum}, true
}

// gather reads the field of the devices that the pod holds on t.
func (t *Target) gather(tenures []tenure, k podKey, f *gpu.Field, now time.Time, maxAge time.Duration) (g gathered) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	q := t.query(k, f, now, maxAge)
	g.keep = q.keep
	for i := range tenures {
		if n := &tenures[i]; n.target == t && t.closed == nil {
			q.gather(&t.columns, &g, n.device, n.from)
		}
	}
	return g
}

// query asks a target for a pod's values of a field.
type query struct {
	pod   podKey
	field *gpu.Field
	now   int64 // ns
	keep  int64 // the age up to which the newest value counts, ns
	rate  int64 // the time over which a counter's newest rate is computed, ns
}

func (t *Target) query(k podKey, f *gpu.Field, now time.Time, maxAge time.Duration) query {
	keep := int64(t.Keep(maxAge))
	return query{k, f, now.UnixNano(), keep, max(int64(t.store.cfg.Rate), keep)}
}

// newest reads the newest value of a series since a time.
func (q *query) newest(c *columns, id uint32, since int64) (ring.Stamped, bool) {
	notBefore := max(since, q.now-q.keep)
	if q.field.PodAgg == gpu.Rate {
		return c.ring.Rate(c.series[id].column, max(since, q.now-q.rate), notBefore)
	}
	return c.latest(id, notBefore)
}

// gather reads the field of a device that the pod has held since from.
func (q *query) gather(c *columns, g *gathered, d *device, from int64) {
	g.want++
	if id, ok := c.seriesOf(d, q.pod, q.field.ID, q.now); ok {
		if v, ok := q.newest(c, id, from); ok {
			g.add(v.Stamp, v.Value)
		}
	}
}

// PodMetric returns the newest value of a pod's own metric that is no older than
// maxAge.
func (s *Store) PodMetric(namespace, pod, metric string, now time.Time, maxAge time.Duration) (Sample, bool) {
	v, ok := s.podMetric(podKey{namespace, pod}, metric, now, maxAge, func(r *ring.Ring, c ring.Column, _, notBefore int64) (older, newest ring.Stamped, ok bool) {
		newest, ok = r.Latest(c, notBefore)
		return older, newest, ok
	})
	return v.To, ok
}

// PodMetricRate returns the increase per second of a counter among a pod's own
// metrics, over Config.Rate or maxAge, whichever is longer. Its time is that of the
// newest value, which is no older than maxAge.
func (s *Store) PodMetricRate(namespace, pod, metric string, now time.Time, maxAge time.Duration) (Sample, bool) {
	v, ok := s.podMetric(podKey{namespace, pod}, metric, now, maxAge, func(r *ring.Ring, c ring.Column, from, notBefore int64) (older, newest ring.Stamped, ok bool) {
		newest, ok = r.Rate(c, from, notBefore)
		return older, newest, ok
	})
	return v.To, ok
}

// Step is a change from one sample to the next.
type Step struct{ From, To Sample }

// PodMetricStep returns the last two samples of a pod's own metric. The newest is no
// older than maxAge. All metrics of one page have samples at the same times.
func (s *Store) PodMetricStep(namespace, pod, metric string, now time.Time, maxAge time.Duration) (best Step, found bool) {
	return s.podMetric(podKey{namespace, pod}, metric, now, maxAge, (*ring.Ring).Step)
}

// columnReader reads a column since from. Its newest value is not older than notBefore.
type columnReader func(r *ring.Ring, c ring.Column, from, notBefore int64) (older, newest ring.Stamped, ok bool)

// podMetric reads a pod's own metric on the target that has the newest value.
func (s *Store) podMetric(k podKey, metric string, now time.Time, maxAge time.Duration, read columnReader) (best Step, found bool) {
	from, notBefore := now.Add(-max(s.cfg.Rate, maxAge)).UnixNano(), now.Add(-maxAge).UnixNano()
	s.eachMetric(k, metric, notBefore, func(c *columns, column ring.Column) {
		older, newest, ok := read(&c.ring, column, from, notBefore)
		if v := (Step{sampleOf(older), sampleOf(newest)}); ok && (!found || v.To.At.After(best.To.At)) {
			best, found = v, true
		}
	})
	return best, found
}

// PodMetricRange returns the values of a pod's own metric within [from, to], oldest
// first.
func (s *Store) PodMetricRange(namespace, pod, metric string, from, to time.Time) (best []Sample) {
	s.eachMetric(podKey{namespace, pod}, metric, from.UnixNano(), func(c *columns, column ring.Column) {
		if got := c.samples(nil, column, from.UnixNano(), to.UnixNano()); len(got) > len(best) {
			best = got
		}
	})
	return best
}

// eachMetric calls f for each target that has a pod's own metric, with a value that is not
// older than notBefore.
func (s *Store) eachMetric(k podKey, metric string, notBefore int64, f func(*columns, ring.Column)) {
	for _, t := range s.index.own(k) {
		t.mu.RLock()
		if id, ok := t.columns.metrics.entries[metric]; ok && t.columns.series[id].last >= notBefore {
			f(&t.columns, t.columns.series[id].column)
		}
		t.mu.RUnlock()
	}
}

// SPDX-License-Identifier: Apache-2.0

// Package requests reads how many requests a pod's server has answered, and how many of them
// were over a limit, from the counters and histograms in the windows.
package requests

import (
	"time"

	"github.com/gpupilot/gpupilot/internal/scale/budget"
	"github.com/gpupilot/gpupilot/internal/scale/policy"
	"github.com/gpupilot/gpupilot/internal/window/series"
)

// Values reads the last value of a pod's metric; series.Store implements it.
type Values interface {
	PodMetric(namespace, pod, metric string, now time.Time, maxAge time.Duration) (series.Sample, bool)
}

// Of returns the counters of a pod, and the edges of its histograms. ok is false if it does
// not show a limit's histogram: requests that may have missed the limit do not count as kept.
func Of(v Values, m *policy.Misses, namespace, pod string, now time.Time, maxAge time.Duration) (s budget.Sample, e Edges, ok bool) {
	for range 2 { // a page that is newer than the first counter's is whole the second time
		r := reader{Values: v, namespace: namespace, pod: pod, now: now, maxAge: maxAge}
		if s, e, ok = r.sample(m); !r.torn {
			return s, e, ok
		}
	}
	return s, e, false
}

// Edges are where the histograms of the pods count around the limits.
type Edges struct {
	Pods         int // that show their histograms, at the last observation
	First, Token Bounds
}

// Bounds are the edges of a histogram around a limit, in seconds.
type Bounds struct {
	Lower, Upper float64 // Upper 0: the limit is above the last edge
	OfTokens     bool
}

// IsEdge reports whether the limit is an edge.
func (b *Bounds) IsEdge() bool { return b.Lower == b.Upper }

// Widen adds the edges of a pod. Of several pods, those count that say least about a limit.
func (e *Edges) Widen(o *Edges) {
	if e.Pods == 0 || !o.First.IsEdge() {
		e.First = o.First
	}
	if e.Pods == 0 || !o.Token.IsEdge() || o.Token.OfTokens {
		e.Token = o.Token
	}
	e.Pods++
}

// reader reads the counters of a pod, all of one page.
type reader struct {
	Values
	namespace, pod string
	now            time.Time
	maxAge         time.Duration
	page           time.Time // zero: no counter was read
	torn           bool      // a newer page was scraped meanwhile
}

// read returns the value of the first metric of a term that the pod has.
func (r *reader) read(t policy.Term) (float64, bool) {
	for i := range t {
		s, ok := r.PodMetric(r.namespace, r.pod, t[i].Key(), r.now, r.maxAge)
		if !ok || !r.page.IsZero() && !s.At.Equal(r.page) {
			r.torn = r.torn || ok && s.At.After(r.page)
			continue
		}
		r.page = s.At
		return s.Value, true
	}
	return 0, false
}

// sample returns the counters of a pod. ok is false if the pod does not show a limit's
// histogram: requests that may have missed it do not count as kept.
func (r *reader) sample(m *policy.Misses) (s budget.Sample, e Edges, ok bool) {
	if s.Ended, ok = r.read(m.Ended); !ok {
		return s, e, false
	}
	s.At, e.Pods = r.page, 1
	for _, t := range m.Aborted {
		n, _ := r.read(t) // a server without the reason aborted none
		s.Aborted += n
	}
	if n, ok := r.read(m.Extra); ok {
		s.Ended, s.Aborted = s.Ended+n, s.Aborted+n
	}
	if s.First, e.First, ok = r.latency(m.First); !ok {
		return s, e, false
	}
	s.Token, e.Token, ok = r.latency(m.Token)
	return s, e, ok
}

// latency reads the first of the histograms that the pod has.
func (r *reader) latency(list []policy.Histogram) (l budget.Latency, b Bounds, ok bool) {
	for i := range list {
		h := &list[i]
		var hasCount, hasBelow, hasAbove, hasLower bool
		l.Count, hasCount = r.read(h.Count)
		l.Below, hasBelow = r.read(h.Below)
		l.Above, hasAbove = r.read(h.Above)
		b.Lower, hasLower = r.read(h.Lower)
		if !hasCount || !hasBelow || !hasAbove || !hasLower {
			continue
		}
		b.Upper, _ = r.read(h.Upper)
		l.Limited, l.OfTokens, b.OfTokens = true, h.OfTokens, h.OfTokens
		return l, b, true
	}
	return budget.Latency{}, Bounds{}, len(list) == 0
}

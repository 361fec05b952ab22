// SPDX-License-Identifier: Apache-2.0

// Package shown keeps what the page shows of the fleet and of workloads beyond the present
// moment: recent points, the log of decisions, and the states that have lasted.
package shown

import (
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/types"

	"github.com/gpupilot/gpupilot/internal/base/excerpt"
	"github.com/gpupilot/gpupilot/internal/scale"
	"github.com/gpupilot/gpupilot/internal/window/view"
)

const (
	historyPoints = 600 // one a second
	// maxEvents bounds the log. A decision with its steps and inputs takes about 2 KiB.
	maxEvents = 1000
	maxSteps  = 24
	maxText   = 512 // bytes of a step's sentence
)

// Values returns the values of the decision's signals; nil for a signal without one.
func Values(d *scale.Decision) []*float64 {
	out := make([]*float64, len(d.Inputs))
	for i := range d.Inputs {
		if d.Inputs[i].Fresh > 0 {
			v := d.Inputs[i].Value
			out[i] = &v
		}
	}
	return out
}

// Decision converts a decision, without its inputs.
func Decision(d *scale.Decision) view.Decision {
	out := view.Decision{
		Time: d.Time, Current: d.Current, Replicas: d.Replicas,
		Serving: d.Serving, Starting: d.Starting, Unschedulable: d.Unschedulable,
		Rule: d.Rule, Why: d.Why(), Sentence: d.Sentence(), Steps: make([]view.Step, 0, len(d.Steps)),
	}
	for _, s := range d.Steps {
		out.Steps = append(out.Steps, view.Step{Rule: s.Rule, Before: s.Before, After: s.After, Sentence: s.Sentence()})
	}
	return out
}

// Inputs converts the inputs of a decision.
func Inputs(d *scale.Decision) []view.Input {
	out := make([]view.Input, 0, len(d.Inputs))
	for i, v := range Values(d) {
		in := &d.Inputs[i]
		out = append(out, view.Input{Signal: in.Signal, Unit: in.Unit, Value: v, Target: in.Target, Replicas: in.Fresh, Age: in.Age, Deciding: in.Deciding})
	}
	return out
}

// Points is a ring buffer with the last decision of each second. The zero value is empty.
type Points struct {
	points []view.Point
	first  int // index of the oldest point once the buffer is full
}

// Add adds a decision.
func (h *Points) Add(d *scale.Decision) {
	p := view.Point{Time: d.Time, Replicas: d.Replicas, Serving: d.Serving, Current: d.Current, Starting: d.Starting, Signals: Values(d)}
	n := len(h.points)
	if n > 0 {
		last := &h.points[(h.first+n-1)%n]
		if last.Time.Unix() == p.Time.Unix() {
			*last = p
			return
		}
	}
	if n < historyPoints {
		h.points = append(h.points, p)
		return
	}
	h.points[h.first] = p
	h.first = (h.first + 1) % n
}

// List returns the points, oldest first.
func (h *Points) List() []view.Point {
	out := make([]view.Point, 0, len(h.points))
	out = append(out, h.points[h.first:]...)
	return append(out, h.points[:h.first]...)
}

// Log holds the last decisions that changed the replicas, or would have. The zero value is
// empty.
type Log struct {
	mu     sync.Mutex
	events []view.Event // newest last
}

// Add adds a decision. A log that is full forgets the oldest one of the namespace with the
// most, so that a namespace that scales often does not evict the decisions of others.
func (r *Log) Add(key types.NamespacedName, d *scale.Decision, advice bool) {
	e := view.Event{Namespace: key.Namespace, Name: key.Name, Advice: advice, Decision: Decision(d)}
	e.Decision.Inputs = Inputs(d)
	e.Decision.Steps = e.Decision.Steps[:min(len(e.Decision.Steps), maxSteps)]
	e.Decision.Why = excerpt.Of(e.Decision.Why, maxText)
	for i := range e.Decision.Steps {
		s := &e.Decision.Steps[i].Sentence
		*s = excerpt.Of(*s, maxText)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.events) >= maxEvents {
		at := r.evictionIndex()
		r.events = slices.Delete(r.events, at, at+1)
	}
	r.events = append(r.events, e)
}

// evictionIndex returns the index of the oldest event of the namespace with the most
// events. r.mu is held.
func (r *Log) evictionIndex() (at int) {
	n, most := map[string]int{}, 0
	for i := range r.events {
		n[r.events[i].Namespace]++
		most = max(most, n[r.events[i].Namespace])
	}
	return slices.IndexFunc(r.events, func(e view.Event) bool { return n[e.Namespace] == most })
}

// List returns the decisions, newest first.
func (r *Log) List() []view.Event {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := slices.Clone(r.events)
	slices.Reverse(out)
	return out
}

// SPDX-License-Identifier: Apache-2.0

// Package drain decides which replicas leave the endpoints before a scale-down, and when
// each of them may be removed. Like package scale it is pure.
//
// A replica that leaves is not a replica for the rest of the decision: it carries no load
// that counts and has no capacity. It is removed once it has no request in flight, or at
// its deadline, and it serves again as soon as the load asks for it.
package drain

import (
	"cmp"
	"encoding/json"
	"slices"
	"time"
)

const (
	// settle is how long a replica must be out of the endpoints before a reading of no
	// requests counts: proxies and gateways learn of it with a delay.
	settle = 5 * time.Second
	// quiet is how long readings must show no request: between two requests on a connection
	// that is kept open, and while a server parses one, it counts none.
	quiet = 2 * time.Second
	// reported is how long the cluster may take to show what was asked for: that a replica
	// serves again, that a removed pod is terminating, that a PodDisruptionBudget counts it.
	reported = 10 * time.Second
	// Most is the number of replicas that leave at a time. Each costs two writes.
	Most = 64
)

// Pod is a replica that is not terminating.
type Pod struct {
	Name     string
	Serving  bool // or has served and is not ready; else it is starting, or leaves
	Gated    bool // it declares the readiness gate
	Leaving  bool // its readiness gate is closed
	Since    time.Time
	Out      bool      // it is not ready, so that no endpoint has it
	Idle     bool      // a fresh reading shows no request in flight
	IdleAt   time.Time // when that was measured
	Ordinal  int32     // of an ordered workload
	Disrupts []string  // PodDisruptionBudgets that cover it; once for each pod of a group
}

// Budget is a PodDisruptionBudget.
type Budget struct {
	Name    string
	Allowed int32 // disruptions that it allows now
}

// Workload is what is known of a workload at one moment.
type Workload struct {
	Replicas int32         // spec.replicas
	Max      time.Duration // that a replica may take to leave; 0: none is asked to
	Ordered  bool          // its controller removes the highest ordinals
	Pods     []Pod
	Budgets  []Budget
	Unknown  bool // the PodDisruptionBudgets are not known
}

// State has what was asked for lately, and since when replicas leave.
type State []Entry

// Entry is the state of one pod.
type Entry struct {
	Name           string    `json:"n"`
	Leaving        bool      `json:"l,omitempty"` // else it was asked to serve again, or removed at once
	Since          time.Time `json:"s,omitzero"`  // when it began to leave
	Asked          time.Time `json:"a,omitzero"`  // when that was asked for
	OutAt          time.Time `json:"o,omitzero"`  // since when it is out of the endpoints
	IdleAt         time.Time `json:"i,omitzero"`  // since when it has no requests
	LastMeasuredAt time.Time `json:"m,omitzero"`  // of the last reading without requests
	RemovedTo      int32     `json:"t,omitempty"` // the replicas that were asked for when it was removed
	RemovedAt      time.Time `json:"r,omitzero"`  // zero: it was not
}

// maxStored bounds the pods in a State's JSON, which is a part of a status. The condition of
// other pods says since when they leave; only the last seconds without requests begin again.
const maxStored = 8

// MarshalJSON implements json.Marshaler.
func (s State) MarshalJSON() ([]byte, error) {
	return json.Marshal([]Entry(s[:min(len(s), maxStored)]))
}

// Truncate cuts every time to a multiple of d.
func (s State) Truncate(d time.Duration) State {
	out := slices.Clone(s)
	for i := range out {
		e := &out[i]
		for _, t := range []*time.Time{&e.Since, &e.Asked, &e.OutAt, &e.IdleAt, &e.LastMeasuredAt, &e.RemovedAt} {
			*t = t.Truncate(d)
		}
	}
	return out
}

// Role is what a pod counts as.
type Role uint8

// The roles.
const (
	Counted   Role = iota // as it is
	Returning             // it was asked to serve again, and does not yet
	Leaving               // not as a replica
	Gone                  // removed, not terminating yet
)

// Plan is one call of the decision.
type Plan struct {
	w       *Workload
	now     time.Time
	roles   []Role
	entries []Entry // by pod; without a name: none
	leaving int32
}

// Begin finds out which pods count. The workload must have fewer Replicas than pods that
// leave only if somebody else has scaled it.
func Begin(w *Workload, s State, now time.Time) *Plan {
	p := &Plan{w: w, now: now, roles: make([]Role, len(w.Pods)), entries: make([]Entry, len(w.Pods))}
	for i := range w.Pods {
		pod := &w.Pods[i]
		at := slices.IndexFunc(s, func(e Entry) bool { return e.Name == pod.Name })
		if at >= 0 {
			p.entries[i] = s[at]
		}
		p.roles[i] = p.begin(pod, &p.entries[i])
	}
	return p
}

// begin returns the role of a pod, and updates its entry.
func (p *Plan) begin(pod *Pod, e *Entry) Role {
	at := e.phase()
	i := slices.IndexFunc(transitions, func(t transition) bool {
		return (t.from == at || t.from == anyPhase) && t.when(p, pod, e)
	})
	switch t := &transitions[i]; t.to {
	case unasked:
		*e = Entry{}
		return t.as
	case leaving:
		p.observeLeaving(pod, e)
		if p.w.Ordered && pod.Ordinal >= p.w.Replicas { // somebody else has scaled the workload down
			return Gone
		}
		p.leaving++
		return t.as
	default:
		return t.as
	}
}

// observeLeaving updates the entry of a pod that leaves: since when, since when it is out of the
// endpoints, and since when it has no requests.
func (p *Plan) observeLeaving(pod *Pod, e *Entry) {
	if !e.Leaving || e.Since.After(p.now) {
		*e = Entry{Name: pod.Name, Leaving: true, Since: p.now, Asked: p.now}
		if !pod.Since.IsZero() && pod.Since.Before(p.now) {
			e.Since = pod.Since
		}
	}
	e.RemovedAt = time.Time{}
	switch {
	case !pod.Out:
		e.OutAt = time.Time{}
	case e.OutAt.IsZero() || e.OutAt.After(p.now):
		e.OutAt = p.now
	}
	switch {
	case !pod.Idle:
		e.IdleAt = time.Time{}
	case e.IdleAt.IsZero() || e.IdleAt.After(pod.IdleAt):
		e.IdleAt = pod.IdleAt
	}
	e.LastMeasuredAt = pod.IdleAt
}

// Role returns what pod i counts as.
func (p *Plan) Role(i int) Role { return p.roles[i] }

// Counted returns the replicas without those that leave.
func (p *Plan) Counted() int32 { return max(0, p.w.Replicas-p.leaving) }

// isDone reports whether a pod that leaves may be removed.
func (p *Plan) isDone(i int) bool {
	e := &p.entries[i]
	if p.now.Sub(e.Since) >= p.w.Max {
		return true
	}
	out, idle := e.OutAt, e.IdleAt
	return !out.IsZero() && !idle.IsZero() && e.LastMeasuredAt.Sub(out) >= settle && e.LastMeasuredAt.Sub(idle) >= quiet
}

// Result says what to do.
type Result struct {
	Replicas int32    // spec.replicas
	Leave    []string // the pods that are to be out of the endpoints, those that are removed included
	Remove   []string // the pods to remove first, if Replicas falls

	Leaving int32         // of Leave, those that stay for now
	Left    time.Duration // until the last of them is removed at the latest
	Back    int32         // pods that serve again
	Ungated string        // a serving pod that is removed with its requests; empty: none
	Held    int32         // pods that are kept because of HeldBy, or because Most leave
	HeldBy  string        // a PodDisruptionBudget; empty: none
	Unknown bool          // pods are kept because the PodDisruptionBudgets are not known
}

// finish is the state of Finish.
type finish struct {
	*Plan
	r     Result
	spent map[string]int32 // disruptions by budget that its status may not show yet
}

// Finish decides about the pods once serve replicas are to serve. victims are the names of
// the pods to remove first, in that order; the first surplus of them are not replicas any
// more.
func (p *Plan) Finish(serve int32, victims []string, surplus int) (Result, State) {
	f := finish{Plan: p, spent: p.spent()}
	f.r.Replicas = max(serve, p.w.Replicas)
	switch {
	case p.w.Max <= 0:
		f.r.Back = p.leaving
		f.takeBack(p.leaving)
		f.r.Replicas = max(serve, min(p.w.Replicas, serve+p.leaving))
		f.r.Remove = victims
	case p.w.Ordered:
		f.ordered(serve)
	default:
		f.unordered(serve, victims, surplus)
	}
	return f.r, f.end()
}

// takeBack has n of the pods that leave serve again: those that are still in the
// endpoints first, then those that left last.
func (f *finish) takeBack(n int32) {
	var order []int
	for i, role := range f.roles {
		if role == Leaving {
			order = append(order, i)
		}
	}
	slices.SortStableFunc(order, func(a, b int) int {
		x, y := &f.entries[a], &f.entries[b]
		if f.w.Pods[a].Out != f.w.Pods[b].Out {
			if f.w.Pods[b].Out {
				return -1
			}
			return 1
		}
		return cmp.Or(y.Since.Compare(x.Since), cmp.Compare(x.Name, y.Name))
	})
	for _, i := range order[:min(int(n), len(order))] {
		f.back(i)
	}
}

func (f *finish) back(i int) {
	f.entries[i] = Entry{Name: f.w.Pods[i].Name, Asked: f.now}
	f.roles[i] = Returning
}

func (f *finish) unordered(serve int32, victims []string, surplus int) {
	cur := f.Counted()
	if serve > cur {
		f.r.Back = min(serve-cur, f.leaving)
		f.takeBack(f.r.Back)
	}
	n, at := max(0, int(cur-serve)), min(surplus, len(victims))
	f.r.Remove = append(f.r.Remove, victims[:at]...)
	removed := int32(0)
	for i, name := range victims[at:min(len(victims), at+n)] {
		if f.leaving >= Most { // those that are starting came first
			f.r.Held += int32(min(len(victims)-at, n) - i)
			break
		}
		if f.leave(f.indexOf(name), name) {
			removed++
		}
	}
	for i, role := range f.roles {
		if role == Leaving && f.isDone(i) {
			f.remove(i)
			removed++
		}
	}
	f.r.Replicas -= min(removed, f.r.Replicas-serve)
}

// ordered decides about the pods of a workload that loses its highest ordinals.
func (f *finish) ordered(serve int32) {
	of := map[int32]int{}
	for i := range f.w.Pods {
		of[f.w.Pods[i].Ordinal] = i
		if f.roles[i] == Leaving && f.w.Pods[i].Ordinal < serve {
			f.r.Back++
			f.back(i)
		}
	}
	keep, removes := f.w.Replicas, true
	for n := f.w.Replicas - 1; n >= serve; n-- {
		i, exists := of[n]
		switch {
		case !exists:
		case f.roles[i] == Leaving:
			if done := f.isDone(i); !done || !removes {
				removes = false
			} else {
				f.remove(i)
			}
		case f.roles[i] == Gone:
		case !removes && (!f.w.Pods[i].Serving || !f.w.Pods[i].Gated): // it waits for those above it
		case !f.leave(i, f.w.Pods[i].Name):
			removes = false
			if f.r.Held > 0 {
				n = serve // those below it wait, too
			}
		}
		if removes {
			keep = n
		}
	}
	f.r.Replicas = max(serve, min(keep, f.r.Replicas))
	if serve >= f.w.Replicas {
		f.r.Replicas = serve
	}
}

func (f *finish) indexOf(name string) int {
	return slices.IndexFunc(f.w.Pods, func(p Pod) bool { return p.Name == name })
}

// leave begins the removal of a pod. It reports whether the pod is removed at once; else
// it leaves first, or is kept. A pod that does not exist yet has the index -1.
func (f *finish) leave(i int, name string) (removed bool) {
	if i < 0 || !f.w.Pods[i].Serving && f.roles[i] != Returning {
		f.r.Remove = append(f.r.Remove, name)
		return true
	}
	pod := &f.w.Pods[i]
	if !pod.Out && !f.isAllowed(pod) { // without it, no fewer pods are healthy
		f.r.Held++
		return false
	}
	if !pod.Gated {
		f.r.Ungated = pod.Name
		f.r.Remove = append(f.r.Remove, name)
		f.entries[i] = Entry{Name: name, RemovedAt: f.now}
		return true
	}
	if f.leaving >= Most {
		f.r.Held++
		return false
	}
	for _, b := range pod.Disrupts {
		f.spent[b]++
	}
	f.entries[i] = Entry{Name: name, Leaving: true, Since: f.now, Asked: f.now}
	f.roles[i] = Leaving
	f.leaving++
	return false
}

// isAllowed reports whether no PodDisruptionBudget forbids that a pod leaves.
func (f *finish) isAllowed(pod *Pod) bool {
	if f.w.Unknown {
		f.r.Unknown = true
		return false
	}
	for i, name := range pod.Disrupts {
		needed := f.spent[name]
		for _, other := range pod.Disrupts[:i+1] {
			if other == name {
				needed++
			}
		}
		for _, b := range f.w.Budgets {
			if b.Name == name && b.Allowed < needed {
				f.r.HeldBy = name
				return false
			}
		}
	}
	return true
}

// spent counts the disruptions of the last moments by budget.
func (p *Plan) spent() map[string]int32 {
	out := map[string]int32{}
	for i := range p.w.Pods {
		e := &p.entries[i]
		at := e.RemovedAt
		if e.Leaving {
			at = e.Asked
		}
		if !at.IsZero() && p.now.Sub(at) < reported {
			for _, name := range p.w.Pods[i].Disrupts {
				out[name]++
			}
		}
	}
	return out
}

// remove removes a pod that has left.
func (f *finish) remove(i int) {
	f.roles[i] = Gone
	f.entries[i].RemovedAt = f.now
	f.r.Remove = append(f.r.Remove, f.w.Pods[i].Name)
}

// end completes the result, and returns the next state.
func (f *finish) end() (s State) {
	for i := range f.w.Pods {
		e := &f.entries[i]
		switch f.roles[i] {
		case Leaving:
			f.r.Leaving++
			f.r.Left = max(f.r.Left, f.w.Max-f.now.Sub(e.Since))
			f.r.Leave = append(f.r.Leave, e.Name)
		case Gone:
			f.r.Leave = append(f.r.Leave, e.Name)
			if e.RemovedAt.Equal(f.now) {
				e.RemovedTo = f.r.Replicas
			} else if !slices.Contains(f.r.Remove, e.Name) {
				f.r.Remove = append(f.r.Remove, e.Name)
			}
		}
		if e.Name != "" {
			s = append(s, *e)
		}
	}
	return s
}

// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/autoscaler/objective"
	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/scale"
	"github.com/gpupilot/gpupilot/internal/scale/replica"
	"github.com/gpupilot/gpupilot/internal/window/discovery"
	"github.com/gpupilot/gpupilot/internal/window/series"
	"github.com/gpupilot/gpupilot/internal/window/view"
)

const (
	historyPoints   = 600 // one a second
	maxRecentEvents = 100
	// maxShownAge is the age up to which a device's value is on the page, together
	// with the age.
	maxShownAge = 5 * time.Minute
)

// View returns the current state of the fleet and the workloads.
func (c *Controller) View() view.View {
	now := time.Now()
	v := view.View{
		Time: now, MaxAge: c.cfg.MaxAge, Version: c.cfg.Version,
		Leader: c.deps.Leading(), LeaderID: c.deps.Leader(),
		Nodes: c.viewNodes(now), Targets: c.deps.States(),
		Recent: c.recent.list(),
	}
	found, contradictions := c.discovered.Load(), c.audit.ByTarget()
	for i := range v.Targets {
		t := &v.Targets[i]
		t.Node, t.Contradiction = found.Origins[t.Name].Node, contradictions[t.Name]
	}
	c.mu.RLock()
	workloads := make([]*workload, 0, len(c.workloads))
	for _, w := range c.workloads {
		workloads = append(workloads, w)
	}
	c.mu.RUnlock()
	for i := range v.Targets {
		c.viewTarget(&v.Targets[i], found.Origins[v.Targets[i].Name].Pod)
	}
	v.Workloads = make([]view.Workload, 0, len(workloads))
	for _, w := range workloads {
		w.mu.Lock()
		shown := w.shown
		w.mu.Unlock()
		if d := shown.Decision; d != nil && d.Starting > 0 {
			shown.StartingSince = c.startingSince(w)
		}
		v.Workloads = append(v.Workloads, shown)
	}
	slices.SortFunc(v.Workloads, func(a, b view.Workload) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return v
}

// viewTarget adds the namespace of a target whose samples are its pod's own, and its start
// time if the pod has not been ready yet.
func (c *Controller) viewTarget(t *view.Target, at types.NamespacedName) {
	if t.Kind == discovery.KindPod {
		t.Namespace = at.Namespace
	}
	pod, ok := c.deps.Pods.Get(at.Namespace, at.Name)
	if !ok || t.Up {
		return
	}
	if phase, _ := replica.PhaseOf(pod); phase == scale.Starting && replica.IsNew(pod) {
		t.Starting = pod.CreationTimestamp.Time
	}
}

// startingSince returns the creation time of the oldest starting replica of w.
func (c *Controller) startingSince(w *workload) (since time.Time) {
	sel := w.selector.Load()
	if sel == nil {
		return since
	}
	for _, pod := range c.deps.Pods.Select(w.key.Namespace, *sel) {
		if phase, _ := replica.PhaseOf(pod); phase != scale.Starting || replica.Finished(pod) {
			continue
		}
		if at := pod.CreationTimestamp.Time; since.IsZero() || at.Before(since) {
			since = at
		}
	}
	return since
}

func (c *Controller) viewNodes(now time.Time) []view.Node {
	fields := []gpu.FieldID{gpu.GPUUtil, gpu.FBUsed, gpu.FBFree, gpu.PowerUsage, gpu.GPUTemp}
	nodes := []view.Node{}
	all := c.deps.Store.Devices(fields, now, maxShownAge)
	values := make([]float64, 0, len(all)*(len(fields)+1)) // one allocation for all GPUs
	for i := range all {
		d := &all[i]
		node := d.Labels.Node
		if n := len(nodes); n == 0 || nodes[n-1].Name != node {
			nodes = append(nodes, view.Node{Name: node, GPUs: make([]view.GPU, 0, 8)})
		}
		last := &nodes[len(nodes)-1]
		if slices.ContainsFunc(last.GPUs, func(g view.GPU) bool { return g.UUID == d.Device }) {
			continue // an agent and a dcgm-exporter on one node
		}
		last.GPUs = append(last.GPUs, viewGPU(d, now, c.cfg.MaxAge, &values))
	}
	for i := range nodes {
		about := c.deps.Devices.About(nodes[i].Name)
		nodes[i].Pool, nodes[i].Model, nodes[i].Fault = about.Pool, about.Model, about.Fault
	}
	return nodes
}

// viewGPU converts a device for the page. Values that are more than maxAge older than
// the newest one are left out, because the page shows only the newest age. The values
// are appended to values, which has room for them.
func viewGPU(d *series.DeviceView, now time.Time, maxAge time.Duration, values *[]float64) view.GPU {
	g := view.GPU{UUID: d.Device, HeldSince: d.Since}
	var newest time.Time
	for i := range d.Values {
		if at := d.Values[i].At; at.After(newest) {
			newest = at
		}
	}
	if !newest.IsZero() {
		g.Age = max(0, now.Sub(newest))
	}
	keep := func(v float64) *float64 {
		*values = append(*values, v)
		return &(*values)[len(*values)-1]
	}
	value := func(f gpu.FieldID) *float64 {
		if s, ok := d.Value(f); ok && newest.Sub(s.At) <= maxAge {
			return keep(s.Value)
		}
		return nil
	}
	g.Utilization, g.MemoryUsedMiB = value(gpu.GPUUtil), value(gpu.FBUsed)
	g.PowerWatts, g.TemperatureC = value(gpu.PowerUsage), value(gpu.GPUTemp)
	if free := value(gpu.FBFree); free != nil && g.MemoryUsedMiB != nil {
		g.MemoryTotalMiB = keep(*free + *g.MemoryUsedMiB)
	}
	if len(d.Owners) > 0 {
		g.Owners = make([]view.Owner, 0, len(d.Owners))
	}
	for _, o := range d.Owners {
		g.Owners = append(g.Owners, view.Owner{Namespace: o.Namespace, Pod: o.Pod, Container: o.Container})
	}
	return g
}

// History returns the recent decisions of one workload.
func (c *Controller) History(namespace, name string) (view.History, bool) {
	c.mu.RLock()
	w := c.workloads[types.NamespacedName{Namespace: namespace, Name: name}]
	c.mu.RUnlock()
	if w == nil {
		return view.History{}, false
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return view.History{Points: w.history.list()}, true
}

// viewWorkload converts a report for the page.
func viewWorkload(r *report) view.Workload {
	a := r.object
	out := view.Workload{
		Namespace: a.Namespace, Name: a.Name, Kind: a.Spec.ScaleTargetRef.Kind, Target: a.Spec.ScaleTargetRef.Name,
		Actuation: string(cmp.Or(a.Spec.Actuation, v1alpha1.ActuationScale)), Min: 1, Max: a.Spec.MaxReplicas,
	}
	if a.Spec.MinReplicas != nil {
		out.Min = *a.Spec.MinReplicas
	}
	ready := conditionsOf(r)[0]
	out.Ready = ready.Status == "True"
	switch {
	case out.Ready:
	case ready.Reason == reasonNotServing:
		out.Waiting = ready.Message
	default:
		out.Problem = ready.Message
	}
	switch {
	case a.Spec.Startup != nil && a.Spec.Startup.ExpectedSeconds != nil:
		out.Startup = time.Duration(*a.Spec.Startup.ExpectedSeconds) * time.Second
	case r.learned != nil:
		out.Startup = time.Duration(r.learned.P50Seconds) * time.Second
	}
	if r.plan != nil {
		for i := range r.plan.Policy.Signals {
			s := &r.plan.Policy.Signals[i]
			out.Signals = append(out.Signals, view.Signal{Name: s.Name, Unit: s.Unit, Target: s.Target})
		}
	}
	out.Override, out.Schedules, out.Objectives = r.bounds.Line(), r.bounds.Schedules(), objective.View(r.objectives)
	if b := r.bounds; b != nil {
		out.Min, out.Max = b.Range()
	}
	if d := r.decision; d != nil {
		for i, v := range valuesOf(d) {
			if i < len(out.Signals) {
				out.Signals[i].Value = v
			}
		}
		decision := viewDecision(d)
		out.Decision = &decision
	}
	return out
}

// valuesOf returns the values of the decision's signals; nil for a signal without one.
func valuesOf(d *scale.Decision) []*float64 {
	out := make([]*float64, len(d.Inputs))
	for i := range d.Inputs {
		if d.Inputs[i].Fresh > 0 {
			v := d.Inputs[i].Value
			out[i] = &v
		}
	}
	return out
}

func viewDecision(d *scale.Decision) view.Decision {
	out := view.Decision{
		Time: d.Time, Current: d.Current, Replicas: d.Replicas,
		Serving: d.Serving, Starting: d.Starting, Unschedulable: d.Unschedulable,
		Rule: d.Rule, Sentence: d.Sentence(), Steps: make([]view.Step, 0, len(d.Steps)),
	}
	for _, s := range d.Steps {
		out.Steps = append(out.Steps, view.Step{Rule: s.Rule, Before: s.Before, After: s.After, Sentence: s.Sentence()})
	}
	return out
}

// recentPoints is a ring buffer with the last decision of each second.
type recentPoints struct {
	points []view.Point
	first  int // index of the oldest point once the buffer is full
}

func (h *recentPoints) add(d *scale.Decision) {
	p := view.Point{Time: d.Time, Replicas: d.Replicas, Serving: d.Serving, Signals: valuesOf(d)}
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

func (h *recentPoints) list() []view.Point {
	out := make([]view.Point, 0, len(h.points))
	out = append(out, h.points[h.first:]...)
	return append(out, h.points[:h.first]...)
}

// eventLog holds the last decisions that changed the replicas, or would have.
type eventLog struct {
	mu     sync.Mutex
	events []view.Event // newest last
}

func (r *eventLog) add(key types.NamespacedName, d *scale.Decision, advice bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.events) >= maxRecentEvents {
		at := r.evictionIndex()
		r.events = slices.Delete(r.events, at, at+1)
	}
	r.events = append(r.events, view.Event{Namespace: key.Namespace, Name: key.Name, Advice: advice, Decision: viewDecision(d)})
}

// evictionIndex returns the index of the oldest event of the namespace with the most
// events, so that a namespace that scales often does not evict the events of others.
// r.mu is held.
func (r *eventLog) evictionIndex() (at int) {
	n, most := map[string]int{}, 0
	for i := range r.events {
		n[r.events[i].Namespace]++
		most = max(most, n[r.events[i].Namespace])
	}
	return slices.IndexFunc(r.events, func(e view.Event) bool { return n[e.Namespace] == most })
}

func (r *eventLog) list() []view.Event {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := slices.Clone(r.events)
	slices.Reverse(out)
	return out
}

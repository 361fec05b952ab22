// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/scale/replica"
	"github.com/gpupilot/gpupilot/internal/window/series"
)

// The times of the aggregates.
const (
	// aggregateInterval is the time between two passes.
	aggregateInterval = 15 * time.Second
	// activeWindow is the time within which an active GPU had a utilisation above zero.
	activeWindow = time.Minute
	// rollingPasses are those of the rolling means, 5 min.
	rollingPasses = int(5 * time.Minute / aggregateInterval)
)

// GPUGroup identifies a group of GPUs: of a workload, of a namespace (without Kind and
// Name) or of the cluster (the zero value).
type GPUGroup struct{ Namespace, Kind, Name string }

// GPUAggregate is one field over the GPUs of a group whose pods are serving.
type GPUAggregate struct {
	GPUGroup
	Field     gpu.FieldID // in the field's unit; a counter's increase per second
	Allocated GPUStats    // over the GPUs that the pods own
	Active    GPUStats    // of these, over those with a utilisation above zero within the last minute
}

// GPUStats are statistics over GPUs.
type GPUStats struct {
	GPUs           int // with a value; 0: the others are not set
	Mean, Sum, Max float64
	// RollingMean is the mean over the passes of the last 5 min, weighted by GPUs; unset
	// for workloads beyond Config.WorkloadMetrics.
	RollingMean float64
}

func (s *GPUStats) add(v float64) {
	if s.GPUs == 0 || v > s.Max {
		s.Max = v
	}
	s.GPUs++
	s.Sum += v
	s.Mean = s.Sum / float64(s.GPUs)
}

// Aggregates is the result of one pass.
type Aggregates struct {
	At    time.Time
	Items []GPUAggregate // sorted by namespace, kind, name and field; the cluster comes first
	GPUs  map[GPUGroup]int
	// Omitted is the number of workloads and namespaces that /metrics leaves out.
	Omitted int
	shown   map[GPUGroup]bool
}

// aggregateKey is one field of one group.
type aggregateKey struct {
	GPUGroup
	field gpu.FieldID
}

// aggregates computes the aggregates in the background.
type aggregates struct {
	c *Controller

	mu      sync.RWMutex
	last    *Aggregates
	rolling map[aggregateKey]*rolling
}

// rolling is the sums and numbers of the last passes.
type rolling struct {
	passes [rollingPasses]struct{ allocated, active GPUStats }
	next   int
}

func newAggregates(c *Controller) *aggregates {
	return &aggregates{c: c, last: &Aggregates{}, rolling: map[aggregateKey]*rolling{}}
}

// GPUAggregates returns the aggregates of the last pass, at most 15 s old. It is empty
// without Config.WorkloadMetrics. The result is shared and must not be changed.
func (c *Controller) GPUAggregates() *Aggregates {
	c.aggregates.mu.RLock()
	defer c.aggregates.mu.RUnlock()
	return c.aggregates.last
}

// run makes a pass each aggregateInterval until ctx is done.
func (a *aggregates) run(ctx context.Context) {
	if a.c.cfg.WorkloadMetrics <= 0 {
		return
	}
	ticker := time.NewTicker(aggregateInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-ticker.C:
			a.pass(now)
		}
	}
}

// pass computes the aggregates at now.
func (a *aggregates) pass(now time.Time) {
	p := newAggregatePass(a.c, now)
	for _, pod := range a.c.holders() {
		p.add(pod)
	}
	out := &Aggregates{At: now, GPUs: p.gpus}
	for k, v := range p.groups {
		out.Items = append(out.Items, GPUAggregate{GPUGroup: k.GPUGroup, Field: k.field, Allocated: v.Allocated, Active: v.Active})
	}
	slices.SortFunc(out.Items, func(x, y GPUAggregate) int {
		return cmp.Or(cmp.Compare(x.Namespace, y.Namespace), cmp.Compare(x.Kind, y.Kind), cmp.Compare(x.Name, y.Name), cmp.Compare(x.Field, y.Field))
	})
	out.limit(a.c.cfg.WorkloadMetrics)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.roll(out)
	a.last = out
}

// holders returns the serving pods that exporters say hold GPUs.
func (c *Controller) holders() (pods []*corev1.Pod) {
	type name struct{ namespace, pod string }
	seen := map[name]bool{}
	c.deps.Store.Claims(func(claim *series.Claim) {
		for i := range claim.Devices {
			for _, o := range claim.Devices[i].Owners {
				k := name{o.Namespace, o.Pod}
				if seen[k] {
					continue
				}
				seen[k] = true
				if pod, ok := c.deps.Pods.Get(o.Namespace, o.Pod); ok && replica.Serving(pod) && pod.Spec.NodeName != "" {
					pods = append(pods, pod)
				}
			}
		}
	})
	return pods
}

// limit selects the workloads and the namespaces that /metrics shows: those with the
// most GPUs, so that only who holds GPUs can displace others.
func (a *Aggregates) limit(most int) {
	var workloads, namespaces []GPUGroup
	for g := range a.GPUs {
		switch {
		case g.Name != "":
			workloads = append(workloads, g)
		case g.Namespace != "":
			namespaces = append(namespaces, g)
		}
	}
	a.shown = map[GPUGroup]bool{{}: true}
	for _, list := range [][]GPUGroup{workloads, namespaces} {
		slices.SortFunc(list, func(x, y GPUGroup) int {
			return cmp.Or(cmp.Compare(a.GPUs[y], a.GPUs[x]), cmp.Compare(x.Namespace, y.Namespace), cmp.Compare(x.Kind, y.Kind), cmp.Compare(x.Name, y.Name))
		})
		n := min(most, len(list))
		a.Omitted += len(list) - n
		for _, g := range list[:n] {
			a.shown[g] = true
		}
	}
}

// roll adds a pass to the rolling means of the groups that are shown, and forgets the
// others. a.mu is held.
func (a *aggregates) roll(out *Aggregates) {
	used := make(map[aggregateKey]bool, len(a.rolling))
	for i := range out.Items {
		x := &out.Items[i]
		k := aggregateKey{x.GPUGroup, x.Field}
		if !out.shown[x.GPUGroup] {
			continue
		}
		used[k] = true
		r := a.rolling[k]
		if r == nil {
			r = &rolling{}
			a.rolling[k] = r
		}
		r.passes[r.next].allocated, r.passes[r.next].active = x.Allocated, x.Active
		r.next = (r.next + 1) % rollingPasses
		x.Allocated.RollingMean, x.Active.RollingMean = r.means()
	}
	for k := range a.rolling {
		if !used[k] {
			delete(a.rolling, k)
		}
	}
}

func (r *rolling) means() (allocated, active float64) {
	var sums [2]GPUStats
	for i := range r.passes {
		for j, s := range []*GPUStats{&r.passes[i].allocated, &r.passes[i].active} {
			sums[j].Sum += s.Sum
			sums[j].GPUs += s.GPUs
		}
	}
	return sums[0].Sum / max(1, float64(sums[0].GPUs)), sums[1].Sum / max(1, float64(sums[1].GPUs))
}

// aggregatePass is one pass over the pods.
type aggregatePass struct {
	c       *Controller
	now     time.Time
	readers []series.FieldReader
	fields  []gpu.FieldID
	util    series.FieldReader
	groups  map[aggregateKey]*GPUAggregate
	gpus    map[GPUGroup]int
	seen    map[sharedKey]bool // values of shared GPUs that were added

	window, utilWindow series.Window
	active             map[string]bool // GPUs of the pod
}

type sharedKey struct {
	aggregateKey
	deviceKey
}

func newAggregatePass(c *Controller, now time.Time) *aggregatePass {
	p := &aggregatePass{
		c: c, now: now, util: c.deps.Store.FieldReader(gpu.GPUUtil, now, c.cfg.MaxAge),
		groups: map[aggregateKey]*GPUAggregate{}, gpus: map[GPUGroup]int{}, seen: map[sharedKey]bool{}, active: map[string]bool{},
	}
	inUse := c.fieldsInUse(now)
	for i, f := range gpu.Fields() {
		if inUse.Has(gpu.Index(i)) && f.Kind != gpu.Label && f.PodAgg != gpu.NoAggregate {
			p.fields = append(p.fields, f.ID)
			p.readers = append(p.readers, c.deps.Store.FieldReader(f.ID, now, c.cfg.MaxAge))
		}
	}
	return p
}

// add adds the GPUs of a serving pod to its groups.
func (p *aggregatePass) add(pod *corev1.Pod) {
	h := p.c.deps.Devices.Holder(pod)
	if h.Devices == 0 {
		return
	}
	groups := [3]GPUGroup{{}, {Namespace: pod.Namespace}}
	of := groups[:2]
	if kind, name, ok := p.c.workloadOf(pod); ok {
		groups[2] = GPUGroup{pod.Namespace, kind, name}
		of = groups[:3]
	}
	clear(p.active)
	p.util.WindowOn(&p.utilWindow, &h, p.now.Add(-activeWindow))
	for i := range p.utilWindow.Devices {
		d := &p.utilWindow.Devices[i]
		p.active[d.Device] = slices.ContainsFunc(d.Samples, func(s series.Sample) bool { return s.Value > 0 })
	}
	for i := range p.readers {
		p.readers[i].WindowOn(&p.window, &h, time.Time{})
		for j := range p.window.Devices {
			p.addDevice(of, p.fields[i], h.Node, &p.window.Devices[j])
		}
	}
	for _, g := range of {
		p.gpus[g] += len(p.utilWindow.Devices)
	}
}

func (p *aggregatePass) addDevice(groups []GPUGroup, f gpu.FieldID, node string, d *series.DeviceWindow) {
	s, ok := d.Newest()
	if !ok {
		return
	}
	for _, g := range groups {
		k := aggregateKey{g, f}
		if d.Shared {
			shared := sharedKey{k, deviceKey{node, d.Device}}
			if p.seen[shared] {
				continue
			}
			p.seen[shared] = true
		}
		x := p.groups[k]
		if x == nil {
			x = &GPUAggregate{}
			p.groups[k] = x
		}
		x.Allocated.add(s.Value)
		if p.active[d.Device] {
			x.Active.add(s.Value)
		}
	}
}

// workloadOf returns the outermost controller of a pod.
func (c *Controller) workloadOf(pod *corev1.Pod) (kind, name string, ok bool) {
	if c.deps.WorkloadOf == nil {
		return "", "", false
	}
	return c.deps.WorkloadOf(pod)
}

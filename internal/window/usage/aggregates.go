// SPDX-License-Identifier: Apache-2.0

package usage

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
	"github.com/gpupilot/gpupilot/internal/window/trust"
)

// The times of the aggregates.
const (
	// aggregateInterval is the time between two passes.
	aggregateInterval = 15 * time.Second
	// activeWindow is the time within which an active GPU was active.
	activeWindow = time.Minute
	// rollingPasses are those of the rolling means, 5 min.
	rollingPasses = int(5 * time.Minute / aggregateInterval)
)

// Group identifies a group of GPUs: of a workload, of a namespace (without Kind and
// Name) or of the cluster (the zero value).
type Group struct{ Namespace, Kind, Name string }

// Aggregate is one field over the GPUs of a group whose pods are serving.
type Aggregate struct {
	Group
	Field     gpu.FieldID // in the field's unit; a counter's increase per second
	Allocated Stats       // over the GPUs that the pods own
	Active    Stats       // of these, over those that were active within the last minute
}

// Stats are statistics over GPUs.
type Stats struct {
	GPUs           int // with a value; 0: the others are not set
	Mean, Sum, Max float64
	// RollingMean is the mean over the passes of the last 5 min, weighted by GPUs; unset
	// for groups that are not in Aggregates.Shown.
	RollingMean float64
}

func (s *Stats) add(v float64) {
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
	Items []Aggregate // sorted by namespace, kind, name and field; the cluster comes first
	GPUs  map[Group]int
	Shown map[Group]bool // on /metrics
	// Omitted is the number of workloads and namespaces that /metrics leaves out.
	Omitted int
}

// aggregateKey is one field of one group.
type aggregateKey struct {
	Group
	field gpu.FieldID
}

// AggregatorConfig holds the settings of an Aggregator.
type AggregatorConfig struct {
	// MaxGroups is the most workloads, and the most namespaces, whose aggregates are on
	// /metrics; 0: no aggregates are computed.
	MaxGroups int
	MaxAge    time.Duration // the age above which a reading does not count
}

// AggregatorDeps holds the collaborators of an Aggregator.
type AggregatorDeps struct {
	Store   *series.Store
	Pods    Pods
	Devices *trust.Devices
	Fields  *Fields
	// WorkloadOf returns the outermost controller of a pod; nil: workloads are not known.
	WorkloadOf func(pod *corev1.Pod) (kind, name string, ok bool)
	Minutes    Minutes // of the history; nil: there is none
}

// Aggregator computes the aggregates of workloads, namespaces and the cluster while Run
// runs. It is a collector of metrics.
type Aggregator struct {
	cfg     AggregatorConfig
	deps    AggregatorDeps
	descs   *descs
	minutes *minutes

	mu      sync.RWMutex
	last    *Aggregates
	rolling map[aggregateKey]*rolling
}

// rolling is the sums and numbers of the last passes.
type rolling struct {
	passes [rollingPasses]struct{ allocated, active Stats }
	next   int
}

// NewAggregator makes an Aggregator. Run starts it.
func NewAggregator(cfg AggregatorConfig, deps AggregatorDeps) *Aggregator {
	return &Aggregator{
		cfg: cfg, deps: deps, descs: newDescs(), minutes: newMinutes(deps.Minutes),
		last: &Aggregates{}, rolling: map[aggregateKey]*rolling{},
	}
}

// Last returns the aggregates of the last pass, at most 15 s old. It is empty before the
// first one. The result is shared and must not be changed.
func (a *Aggregator) Last() *Aggregates {
	a.mu.RLock()
	defer a.mu.RUnlock()
	return a.last
}

// Run makes a pass each aggregateInterval until ctx is done.
func (a *Aggregator) Run(ctx context.Context) {
	if a.cfg.MaxGroups <= 0 {
		return
	}
	ticker := time.NewTicker(aggregateInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-ticker.C:
			a.Pass(now)
		}
	}
}

// Pass computes the aggregates at now.
func (a *Aggregator) Pass(now time.Time) {
	p := a.newPass(now)
	for _, pod := range a.holders() {
		p.add(pod)
	}
	out := &Aggregates{At: now, GPUs: p.gpus}
	for k, v := range p.groups {
		out.Items = append(out.Items, Aggregate{Group: k.Group, Field: k.field, Allocated: v.Allocated, Active: v.Active})
	}
	slices.SortFunc(out.Items, func(x, y Aggregate) int {
		return cmp.Or(cmp.Compare(x.Namespace, y.Namespace), cmp.Compare(x.Kind, y.Kind), cmp.Compare(x.Name, y.Name), cmp.Compare(x.Field, y.Field))
	})
	out.limit(a.cfg.MaxGroups)
	a.minutes.add(out)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.roll(out)
	a.last = out
}

// holders returns the serving pods that exporters say hold GPUs.
func (a *Aggregator) holders() (pods []*corev1.Pod) {
	type name struct{ namespace, pod string }
	seen := map[name]bool{}
	a.deps.Store.Claims(func(claim *series.Claim) {
		for i := range claim.Devices {
			for _, o := range claim.Devices[i].Owners {
				k := name{o.Namespace, o.Pod}
				if seen[k] {
					continue
				}
				seen[k] = true
				if pod, ok := a.deps.Pods.Get(o.Namespace, o.Pod); ok && replica.Serving(pod) && pod.Spec.NodeName != "" {
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
	var workloads, namespaces []Group
	for g := range a.GPUs {
		switch {
		case g.Name != "":
			workloads = append(workloads, g)
		case g.Namespace != "":
			namespaces = append(namespaces, g)
		}
	}
	a.Shown = map[Group]bool{{}: true}
	for _, list := range [][]Group{workloads, namespaces} {
		slices.SortFunc(list, func(x, y Group) int {
			return cmp.Or(cmp.Compare(a.GPUs[y], a.GPUs[x]), cmp.Compare(x.Namespace, y.Namespace), cmp.Compare(x.Kind, y.Kind), cmp.Compare(x.Name, y.Name))
		})
		n := min(most, len(list))
		a.Omitted += len(list) - n
		for _, g := range list[:n] {
			a.Shown[g] = true
		}
	}
}

// roll adds a pass to the rolling means of the groups that are shown, and forgets the
// others. a.mu is held.
func (a *Aggregator) roll(out *Aggregates) {
	used := make(map[aggregateKey]bool, len(a.rolling))
	for i := range out.Items {
		x := &out.Items[i]
		k := aggregateKey{x.Group, x.Field}
		if !out.Shown[x.Group] {
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
	var sums [2]Stats
	for i := range r.passes {
		for j, s := range []*Stats{&r.passes[i].allocated, &r.passes[i].active} {
			sums[j].Sum += s.Sum
			sums[j].GPUs += s.GPUs
		}
	}
	return sums[0].Sum / max(1, float64(sums[0].GPUs)), sums[1].Sum / max(1, float64(sums[1].GPUs))
}

// pass is one pass over the pods.
type pass struct {
	deps    *AggregatorDeps
	now     time.Time
	readers []series.FieldReader
	fields  []gpu.FieldID
	util    series.FieldReader
	groups  map[aggregateKey]*Aggregate
	gpus    map[Group]int
	seen    map[sharedKey]bool // values of shared GPUs that were added

	window, utilWindow series.Window
	active             map[string]bool // GPUs of the pod
}

type sharedKey struct {
	aggregateKey
	deviceKey
}

func (a *Aggregator) newPass(now time.Time) *pass {
	p := &pass{
		deps: &a.deps, now: now, util: a.deps.Store.FieldReader(gpu.GPUUtil, now, a.cfg.MaxAge),
		groups: map[aggregateKey]*Aggregate{}, gpus: map[Group]int{}, seen: map[sharedKey]bool{}, active: map[string]bool{},
	}
	inUse := a.deps.Fields.At(now)
	for i, f := range gpu.Fields() {
		if inUse.Has(gpu.Index(i)) && f.Kind != gpu.Label && f.PodAgg != gpu.NoAggregate {
			p.fields = append(p.fields, f.ID)
			p.readers = append(p.readers, a.deps.Store.FieldReader(f.ID, now, a.cfg.MaxAge))
		}
	}
	return p
}

// add adds the GPUs of a serving pod to its groups.
func (p *pass) add(pod *corev1.Pod) {
	h := p.deps.Devices.Holder(pod)
	if h.Devices == 0 {
		return
	}
	groups := [3]Group{{}, {Namespace: pod.Namespace}}
	of := groups[:2]
	if kind, name, ok := p.workloadOf(pod); ok {
		groups[2] = Group{pod.Namespace, kind, name}
		of = groups[:3]
	}
	clear(p.active)
	p.util.WindowOn(&p.utilWindow, &h, p.now.Add(-activeWindow))
	for i := range p.utilWindow.Devices {
		d := &p.utilWindow.Devices[i]
		p.active[d.Device] = wasActive(d)
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

func (p *pass) addDevice(groups []Group, f gpu.FieldID, node string, d *series.DeviceWindow) {
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
			x = &Aggregate{}
			p.groups[k] = x
		}
		x.Allocated.add(s.Value)
		if p.active[d.Device] {
			x.Active.add(s.Value)
		}
	}
}

// workloadOf returns the outermost controller of a pod.
func (p *pass) workloadOf(pod *corev1.Pod) (kind, name string, ok bool) {
	if p.deps.WorkloadOf == nil {
		return "", "", false
	}
	return p.deps.WorkloadOf(pod)
}

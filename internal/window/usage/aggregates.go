// SPDX-License-Identifier: Apache-2.0

package usage

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/scale/replica"
	"github.com/gpupilot/gpupilot/internal/window/page"
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
	// Withheld means that the aggregate is not shown, because pods of the group have no
	// value and could make it higher. The cluster's is always shown: nobody's pod may hide
	// it from the operator.
	Withheld bool
}

// Gap is why an aggregate of a group is withheld.
type Gap struct {
	Group
	Field gpu.FieldID
	GPUs  int // without a value
	Why   string
}

// Stats are statistics over GPUs.
type Stats struct {
	GPUs           int // with a value; 0: the others are not set
	Mean, Sum, Max float64
	// RollingMean is the mean over the passes of the last 5 min, weighted by GPUs; unset
	// for groups that are not in Aggregates.Shown.
	RollingMean float64

	// USDPerHour is what these GPUs cost, and Unpriced is the number of those without a price,
	// which the sum lacks; both of gpu.GPUUtil only. A GPU that several pods hold counts as
	// their share.
	USDPerHour, Unpriced float64
}

// charge adds the cost of a share of a GPU.
func (s *Stats) charge(usd *float64, share float64) {
	if usd == nil {
		s.Unpriced += share
		return
	}
	s.USDPerHour += share * *usd
}

// cost returns USDPerHour; ok is false if there are GPUs and none of them has a price.
func (s *Stats) cost() (usd float64, ok bool) {
	return s.USDPerHour, s.USDPerHour > 0 || s.Unpriced == 0
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
	Gaps  []Gap          // of groups that are shown
	Shown map[Group]bool // on /metrics, unless withheld
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
	gaps    []Gap // of the last pass and the one before
	rolling map[aggregateKey]*rolling
	held    heldCounters
}

// rolling is the sums and numbers of the last passes.
type rolling struct {
	passes [rollingPasses]struct{ allocated, active Stats }
	next   int
}

// NewAggregator makes an Aggregator. Run starts it.
func NewAggregator(cfg AggregatorConfig, deps AggregatorDeps) *Aggregator {
	return &Aggregator{
		cfg: cfg, deps: deps, descs: newDescs(deps.Devices.Priced()), minutes: newMinutes(deps.Minutes, deps.Devices.Priced()),
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

// Gaps returns why aggregates are withheld. A gap lasts for one pass after its end, because
// who collects /metrics may not have seen the aggregates of the last pass yet. The result
// is shared and must not be changed.
func (a *Aggregator) Gaps() []Gap {
	a.mu.RLock()
	defer a.mu.RUnlock()
	return a.gaps
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
	for _, pod := range a.deps.Pods.Select("", labels.Everything()) {
		if pod.Spec.NodeName != "" && replica.Serving(pod) {
			p.add(pod)
		}
	}
	out := &Aggregates{At: now, GPUs: p.gpus}
	for k, m := range p.unmeasured {
		if p.groups[k] != nil && p.missing[k] == nil {
			p.missing[k] = m
		}
	}
	for k, v := range p.groups {
		_, withheld := p.missing[k]
		out.Items = append(out.Items, Aggregate{Group: k.Group, Field: k.field, Allocated: v.Allocated, Active: v.Active, Withheld: withheld})
	}
	slices.SortFunc(out.Items, func(x, y Aggregate) int {
		return cmp.Or(cmp.Compare(x.Namespace, y.Namespace), cmp.Compare(x.Kind, y.Kind), cmp.Compare(x.Name, y.Name), cmp.Compare(x.Field, y.Field))
	})
	out.limit(a.cfg.MaxGroups)
	for k, m := range p.missing {
		if out.Shown[k.Group] {
			out.Gaps = append(out.Gaps, Gap{k.Group, k.field, m.total, fmt.Sprintf("%d of its GPUs have no value (%v)", m.total, m)})
		}
	}
	a.minutes.add(out)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.roll(out)
	a.held.add(out, a.cfg.MaxGroups)
	a.gaps = slices.Clone(out.Gaps)
	for _, g := range a.last.Gaps {
		if p.missing[aggregateKey{g.Group, g.Field}] == nil {
			a.gaps = append(a.gaps, g)
		}
	}
	a.last = out
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
		if x.Withheld {
			continue
		}
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
	whole   gpu.FieldSet // of fields, those of all GPUs
	named   *page.Named  // of fields, the others
	expects expects
	groups  map[aggregateKey]*Aggregate
	gpus    map[Group]int
	missing map[aggregateKey]*missing
	// unmeasured are the pods of workloads whose GPUs do not have a field. They are missing if
	// others of the workload have it.
	unmeasured map[aggregateKey]*missing
	lacking    struct { // the last pod that has no value
		pod   *corev1.Pod
		isNew bool
		why   string
	}
	seen map[sharedKey]bool // values of shared GPUs that were added

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
		expects: expects{a.deps.Store, a.deps.Devices, now, a.cfg.MaxAge},
		groups:  map[aggregateKey]*Aggregate{}, gpus: map[Group]int{}, missing: map[aggregateKey]*missing{}, unmeasured: map[aggregateKey]*missing{},
		seen: map[sharedKey]bool{}, active: map[string]bool{},
	}
	p.named = a.deps.Fields.Named()
	p.whole = a.deps.Fields.At(now)
	inUse := p.whole.Union(p.named.All())
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
	held, unknown := len(p.utilWindow.Devices), 0 // unknown: whether they are active
	for i := range p.utilWindow.Devices {
		d := &p.utilWindow.Devices[i]
		p.active[d.Device] = wasActive(d)
		if d.Measured && len(d.Samples) == 0 {
			unknown++
		}
	}
	hurts, shown := of[1:], held // the groups whose aggregates it can hide
	if held == 0 {
		var known bool
		if held, known = p.expects.gpus(pod); known {
			shown = held
		} else {
			hurts = of[2:]
		}
	}
	all, named := of, p.named.Of(pod.Namespace)
	for i := range p.readers {
		if of = all; !p.whole.HasID(p.fields[i]) {
			if of = all[1:]; !named.HasID(p.fields[i]) { // the cluster's would be that of some GPUs
				continue
			}
		}
		p.readers[i].WindowOn(&p.window, &h, time.Time{})
		missing, unmeasured := max(held-len(p.window.Devices), 0), 0
		for j := range p.window.Devices {
			d := &p.window.Devices[j]
			switch {
			case !d.Measured:
				unmeasured++
			case len(d.Samples) == 0:
				missing++
			}
			p.addDevice(of, p.fields[i], h.Node, d)
			if p.fields[i] == gpu.GPUUtil && len(d.Samples) > 0 && p.deps.Devices.Priced() {
				p.charge(of, h.Node, d, pod)
			}
		}
		if missing = max(missing, unknown); missing > 0 {
			p.lack(p.missing, hurts, p.fields[i], missing, pod)
		} else if unmeasured > 0 && unmeasured == len(p.window.Devices) {
			p.lack(p.unmeasured, of[2:], p.fields[i], unmeasured, pod)
		}
	}
	for _, g := range all {
		p.gpus[g] += shown
	}
}

// lack records that GPUs of a pod have no value of a field, unless its first one may be on
// its way.
func (p *pass) lack(to map[aggregateKey]*missing, groups []Group, f gpu.FieldID, gpus int, pod *corev1.Pod) {
	if p.lacking.pod != pod { // the fields of a pod follow one another
		p.lacking.pod, p.lacking.isNew, p.lacking.why = pod, p.expects.isNew(pod), ""
	}
	if p.lacking.isNew {
		return
	}
	if p.lacking.why == "" {
		p.lacking.why = p.expects.whyNot(pod)
	}
	for _, g := range groups {
		k := aggregateKey{g, f}
		if to[k] == nil {
			to[k] = &missing{}
		}
		to[k].add(gpus, pod.Name, p.lacking.why)
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

// charge adds a pod's cost of a device to its groups, which addDevice has made.
func (p *pass) charge(groups []Group, node string, d *series.DeviceWindow, pod *corev1.Pod) {
	usd, share := p.deps.Devices.PriceOf(node, d, pod), 1/float64(max(1, podsOf(d.Owners())))
	for _, g := range groups {
		x := p.groups[aggregateKey{g, gpu.GPUUtil}]
		x.Allocated.charge(usd, share)
		if p.active[d.Device] {
			x.Active.charge(usd, share)
		}
	}
}

// podsOf is the number of pods among the owners of a device, which are sorted by pod.
func podsOf(owners []gpu.Owner) (n int) {
	for i := range owners {
		if i == 0 || owners[i].Namespace != owners[i-1].Namespace || owners[i].Pod != owners[i-1].Pod {
			n++
		}
	}
	return n
}

// workloadOf returns the outermost controller of a pod.
func (p *pass) workloadOf(pod *corev1.Pod) (kind, name string, ok bool) {
	if p.deps.WorkloadOf == nil {
		return "", "", false
	}
	return p.deps.WorkloadOf(pod)
}

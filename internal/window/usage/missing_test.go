// SPDX-License-Identifier: Apache-2.0

package usage

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/window/series"
	"github.com/gpupilot/gpupilot/internal/window/stat"
	"github.com/gpupilot/gpupilot/test/podtest"
)

// fleet is random pods on a few nodes, which two rigs see: one reads everything, in the
// other one things have no value.
type fleet struct {
	*rand.Rand
	whole, part *rig
	held        map[string]map[string]*corev1.Pod // the holders of the GPUs of each node
}

const fleetSeconds = 20

func newFleet(t *testing.T, seed uint64) *fleet {
	f := &fleet{Rand: rand.New(rand.NewPCG(seed, 1)), whole: newRig(t), part: newRig(t), held: map[string]map[string]*corev1.Pod{}}
	f.part.now = f.whole.now
	since := f.whole.now.Add(-time.Hour)
	var pods []*corev1.Pod
	for i := range 1 + f.IntN(8) {
		node, gpus := fmt.Sprintf("node-%d", f.IntN(4)), 1+f.IntN(3)
		p := pod("web", fmt.Sprintf("p%d", i), since, func(p *corev1.Pod) {
			p.Spec.NodeName = node
			p.Spec.Containers[0] = requests(podtest.GPUResource, fmt.Sprint(gpus))
		})
		switch f.IntN(8) {
		case 0: // it starts
		case 1: // it has no GPU while it serves
			p.Spec.Containers, p.Spec.InitContainers, gpus = nil, p.Spec.Containers, 0
			ready(since)(p)
		default:
			ready(since)(p)
		}
		pods = append(pods, p)
		if f.held[node] == nil {
			f.held[node] = map[string]*corev1.Pod{}
		}
		for g := range gpus {
			f.held[node][fmt.Sprintf("GPU-%d-%d", i, g)] = p
		}
	}
	for _, r := range []*rig{f.whole, f.part} {
		r.pods.Pods = pods
		r.deps.PodsOf = func(_ context.Context, dst []*corev1.Pod, _ schema.GroupResource, _, _ string) ([]*corev1.Pod, error) {
			return append(dst, pods...), nil
		}
	}
	return f
}

// scrape has the agents read their GPUs for a while. In part, an agent hangs from a time
// on, was never there, or does not give the values of a pod's GPUs.
func (f *fleet) scrape(t *testing.T) {
	hang, silent := map[string]int{}, map[*corev1.Pod]int{}
	for _, node := range slices.Sorted(maps.Keys(f.held)) {
		hang[node] = fleetSeconds
		if f.IntN(3) == 0 {
			hang[node] = f.IntN(fleetSeconds - 6) // 0: it is not there
		}
	}
	for _, p := range f.whole.pods.Pods {
		silent[p] = fleetSeconds
		if f.IntN(6) == 0 {
			silent[p] = 1 + f.IntN(fleetSeconds-6)
		}
	}
	levels := []float64{0, 0, 5, 50, 100, 100}
	level := map[*corev1.Pod]float64{}
	for _, p := range f.whole.pods.Pods {
		level[p] = levels[f.IntN(len(levels))]
	}
	for second := range fleetSeconds {
		at := f.whole.now.Add(time.Duration(second-fleetSeconds+1) * time.Second)
		for _, node := range slices.Sorted(maps.Keys(f.held)) {
			var all, some []podtest.Device
			for _, name := range slices.Sorted(maps.Keys(f.held[node])) {
				p := f.held[node][name]
				util := min(100, max(0, level[p]+float64(f.IntN(3)-1)*10))
				if f.IntN(3) > 0 {
					util = level[p]
				}
				d := podtest.Device{Name: name, Owner: p, Values: map[gpu.FieldID]float64{gpu.GPUUtil: util, gpu.FBUsed: 10 * util, gpu.FBFree: 1000 - 10*util, gpu.GPUTemp: 30 + util}}
				all = append(all, d)
				if second >= silent[p] {
					d.Values = nil
				}
				some = append(some, d)
			}
			podtest.Expose(t, f.whole.store, node, series.TargetLabels{Node: node}, at, all...)
			if second < hang[node] {
				podtest.Expose(t, f.part.store, node, series.TargetLabels{Node: node}, at, some...)
			}
		}
	}
}

// request returns a random request.
func (f *fleet) request() stat.Request {
	fields := []gpu.FieldID{gpu.GPUUtil, gpu.GPUUtil, gpu.FBUsed, gpu.FBFree, gpu.GPUTemp}
	q := stat.Request{Query: stat.Query{Field: fields[f.IntN(len(fields))]}, InUse: stat.InUse(f.IntN(3)), Stat: stat.Stat{Kind: stat.Kind(f.IntN(6))}}
	if q.Stat.Kind == stat.Percentile {
		q.Stat.Percentile = 1 + f.IntN(99)
	}
	if f.IntN(2) == 0 {
		q.Window = time.Duration(1+f.IntN(fleetSeconds)) * time.Second
	}
	return q
}

// What is missing never makes an aggregate look like less load: it is absent, or it is not
// below what it would be if nothing were missing.
func TestMissingValuesNeverLookLikeLessLoad(t *testing.T) {
	answers, absent := 0, map[bool]int{}
	for seed := range uint64(400) {
		f := newFleet(t, seed)
		f.scrape(t)
		for range 20 {
			q := f.request()
			object := []string{"deployments", "namespaces", "pods"}[f.IntN(3)]
			gr, name := schema.GroupResource{Resource: object}, "ns"
			switch object {
			case "deployments":
				gr, name = deployments, "web"
			case "pods":
				name = f.whole.pods.Pods[0].Name
			}
			whole, part := f.whole.statistic(gr, name, q), f.part.statistic(gr, name, q)
			if whole.Reason != "" {
				if part.Reason == "" && part.Have > 0 {
					t.Errorf("seed %d, %s %+v: %+v, although with everything it is absent: %s", seed, object, q, part, whole.Reason)
				}
				continue
			}
			absent[part.Reason != ""]++
			falls := q.Field == gpu.FBFree
			if part.Reason == "" && (part.Value < whole.Value-1e-9 || falls && part.Value > whole.Value+1e-9) {
				t.Errorf("seed %d, %s %s of field %d over %s of %s GPUs: %v, with everything it is %v", seed, object, q.Stat, q.Field, q.Window, q.InUse, part.Value, whole.Value)
			}
			if part.Reason == "" && part.Have < whole.Have {
				answers++ // although something is missing
			}
		}
	}
	if answers < 100 || absent[true] < 500 || absent[false] < 500 {
		t.Errorf("%d answers of parts, %v absent: too few to say anything", answers, absent)
	}
}

// The same on /metrics, where the cluster's aggregates are those of what there is.
func TestMissingValuesAreNotOnMetrics(t *testing.T) {
	shown, withheld := 0, 0
	for seed := range uint64(400) {
		f := newFleet(t, seed)
		f.scrape(t)
		for _, r := range []*rig{f.whole, f.part} {
			r.Pass(r.now)
		}
		whole, part := f.whole.Last(), f.part.Last()
		for i := range whole.Items {
			x := &whole.Items[i]
			at := slices.IndexFunc(part.Items, func(y Aggregate) bool { return y.Group == x.Group && y.Field == x.Field && !y.Withheld })
			if x.Withheld {
				t.Errorf("seed %d: nothing is missing, and %v of %+v is withheld", seed, x.Field, x.Group)
			}
			if x.Group == (Group{}) {
				continue
			}
			named := slices.ContainsFunc(f.part.Gaps(), func(g Gap) bool { return g.Group == x.Group && g.Field == x.Field && g.Why != "" })
			if at < 0 {
				withheld++
				if !named {
					t.Errorf("seed %d: %v of %+v is withheld without a reason", seed, x.Field, x.Group)
				}
				continue
			}
			shown++
			y := &part.Items[at]
			if named || y.Allocated != x.Allocated || y.Active.GPUs != x.Active.GPUs {
				t.Errorf("seed %d: %v of %+v: %+v, with everything it is %+v; gaps %+v", seed, x.Field, x.Group, y, x, f.part.Gaps())
			}
		}
	}
	if shown < 100 || withheld < 500 {
		t.Errorf("%d shown, %d withheld: too few to say anything", shown, withheld)
	}
}

// Pods that carry no load do not blind the aggregates of those that do, and a pod has time
// for its first value.
func TestPodsWithoutLoadBlindNothing(t *testing.T) {
	r := newRig(t)
	since := r.now.Add(-time.Hour)
	on := func(p *corev1.Pod) { p.Spec.NodeName = "node-9" } // where nothing is read
	busy := pod("web", "busy", since, ready(since))
	r.utilization(r.now, 40, busy)
	q := WorkloadQuery{Namespace: "ns", Target: v1alpha1.CrossVersionObjectReference{Kind: "Deployment", Name: "web"}, Metric: "Utilization"}
	f := func(blinds bool, what string, other *corev1.Pod) {
		t.Helper()
		r.pods.Pods = []*corev1.Pod{busy, other}
		if v, err := r.WorkloadValue(t.Context(), &q, r.now); blinds != (err != nil) || !blinds && v.Value != 40 {
			t.Errorf("%s: %+v, %v", what, v, err)
		}
		r.Pass(r.now)
		for _, x := range r.Last().Items {
			if x.Withheld != (blinds && x.Group != Group{}) {
				t.Errorf("%s: %+v", what, x)
			}
		}
	}
	deleted := func(p *corev1.Pod) { now := p.CreationTimestamp; p.DeletionTimestamp = &now }
	f(true, "serves", pod("web", "x", since, ready(since), on))
	f(false, "starts", pod("web", "x", since, on))
	f(false, "is not ready any more", pod("web", "x", since, on, podtest.Condition(corev1.PodReady, corev1.ConditionFalse, "", since)))
	f(false, "ends", pod("web", "x", since, ready(since), on, deleted))
	f(false, "has ended", pod("web", "x", since, ready(since), on, func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }))
	f(false, "became ready just now", pod("web", "x", since, ready(r.now.Add(-3*time.Second)), on))
	f(true, "became ready a while ago", pod("web", "x", since, ready(r.now.Add(-6*time.Second)), on))
	f(false, "has no GPU", pod("web", "x", since, ready(since), on, containers()))
	f(false, "had a GPU when it started", pod("web", "x", since, ready(since), on, func(p *corev1.Pod) {
		p.Spec.Containers, p.Spec.InitContainers = nil, p.Spec.Containers
	}))
}

// A pod of somebody else's namespace or workload blinds neither.
func TestOthersBlindNothing(t *testing.T) {
	r := newRig(t)
	since := r.now.Add(-time.Hour)
	busy := pod("web", "busy", since, ready(since))
	forger := pod("web", "forger", since, ready(since), func(p *corev1.Pod) { p.Namespace, p.Spec.NodeName = "other", "node-9" })
	r.pods.Pods = []*corev1.Pod{busy, forger}
	r.utilization(r.now, 40, busy)
	q := WorkloadQuery{Namespace: "ns", Target: v1alpha1.CrossVersionObjectReference{Kind: "Deployment", Name: "web"}, Metric: "Utilization"}
	if v, err := r.WorkloadValue(t.Context(), &q, r.now); err != nil || v.Value != 40 {
		t.Errorf("%+v, %v", v, err)
	}
	r.Pass(r.now)
	for _, x := range r.Last().Items {
		if x.Withheld {
			t.Errorf("%+v is withheld", x)
		}
	}
	if gaps := r.Gaps(); slices.ContainsFunc(gaps, func(g Gap) bool { return g.Namespace != "other" }) {
		t.Errorf("gaps %+v", gaps)
	}
}

// What is said about missing members is short, whatever their names and however many.
func TestMissingIsShort(t *testing.T) {
	var m missing
	for i := range 5000 {
		m.add(1+i%3, strings.Repeat("x", 250)+fmt.Sprint(i), "the agent of node "+fmt.Sprint(i%7))
	}
	if text := m.String(); len(text) > 512 || !strings.Contains(text, " and 712 more: the agent of node 0") || !strings.HasSuffix(text, "; and others") {
		t.Errorf("%d bytes: %s", len(text), text)
	}
}

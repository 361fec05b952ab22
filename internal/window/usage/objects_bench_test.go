// SPDX-License-Identifier: Apache-2.0

package usage

import (
	"context"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/window/series"
	"github.com/gpupilot/gpupilot/internal/window/stat"
	"github.com/gpupilot/gpupilot/test/podtest"
)

// benchPods is pods by name, as the real index has them.
type benchPods map[string]*corev1.Pod

// fleetOf is a controller with nodes of eight GPUs, one for each serving pod. The first
// thousand pods are those of the Deployment web.
func fleetOf(t testing.TB, nodes, samples int) *rig {
	r := newRig(t)
	since := r.now.Add(-time.Hour)
	byName := benchPods{}
	for n := range nodes {
		target := r.store.Target(fmt.Sprint("agent-", n), series.TargetLabels{Node: fmt.Sprint("node-", n)})
		var owners []series.DeviceOwners
		var refs []series.Ref
		for g := range 8 {
			p := pod("web", fmt.Sprintf("web-%05d", n*8+g), since, ready(since), func(p *corev1.Pod) { p.Spec.NodeName = fmt.Sprint("node-", n) })
			r.pods.Pods, byName[p.Name] = append(r.pods.Pods, p), p
			owners = append(owners, series.DeviceOwners{Device: "GPU-" + p.Name, Owners: []gpu.Owner{{Namespace: "ns", Pod: p.Name}}})
			ref, _ := target.Ref(series.Key{Device: "GPU-" + p.Name, Field: gpu.GPUUtil})
			refs = append(refs, ref)
		}
		target.SetOwners(since, owners)
		for s := range samples {
			var b series.Batch
			for g, ref := range refs {
				b.Add(ref, float64((g*13+s)%100))
			}
			if _, err := target.Append(r.now.Add(time.Duration(s-samples+1)*time.Second), &b); err != nil {
				t.Fatal(err)
			}
		}
	}
	first := r.pods.Pods[:min(1000, len(r.pods.Pods))]
	r.deps.PodsOf = func(_ context.Context, dst []*corev1.Pod, _ schema.GroupResource, _, _ string) ([]*corev1.Pod, error) {
		return append(dst, first...), nil
	}
	r.deps.Pods = mapped{&r.pods, byName}
	r.Aggregator.deps.Pods = r.deps.Pods
	return r
}

// mapped finds pods by name in a map, as the real index does.
type mapped struct {
	*podtest.List
	byName benchPods
}

func (m mapped) Get(_, name string) (*corev1.Pod, bool) {
	p, ok := m.byName[name]
	return p, ok
}

// BenchmarkStatistic reads a metric of a Deployment of 1,000 pods in fleets of 125,
// 1,000 and 10,000 nodes. The time does not grow with the fleet.
func BenchmarkStatistic(b *testing.B) {
	f := func(name string, nodes, samples int, q stat.Request) {
		b.Run(fmt.Sprintf("%s/nodes=%d", name, nodes), func(b *testing.B) {
			r := fleetOf(b, nodes, samples)
			m := r.Reader
			q.Field, q.Now, q.MaxAge = gpu.GPUUtil, r.now, 5*time.Second
			b.ReportAllocs()
			for b.Loop() {
				if v, err := m.Statistic(b.Context(), deployments, "ns", "web", &q); err != nil || v.Have != 1000 {
					b.Fatal(v, err)
				}
			}
		})
	}
	for _, nodes := range []int{125, 1000, 10_000} {
		f("newest", nodes, 1, stat.Request{})
	}
	f("p90", 125, 1, stat.Request{Stat: stat.Stat{Kind: stat.Percentile, Percentile: 90}})
	f("avg_5m", 125, 300, stat.Request{Window: 5 * time.Minute})
}

// BenchmarkManyWorkloads reads a metric of each of 10,000 Deployments of a namespace, with
// a pod each, as a list of them does.
func BenchmarkManyWorkloads(b *testing.B) {
	r := fleetOf(b, 1250, 1)
	byName := r.deps.Pods.(mapped).byName
	r.deps.PodsOf = func(_ context.Context, dst []*corev1.Pod, _ schema.GroupResource, _, name string) ([]*corev1.Pod, error) {
		return append(dst, byName[name]), nil
	}
	m := r.Reader
	q := stat.Request{Query: stat.Query{Field: gpu.GPUUtil, Now: r.now, MaxAge: 5 * time.Second}}
	b.ReportAllocs()
	for b.Loop() {
		for name := range byName {
			if v, err := m.Statistic(b.Context(), deployments, "ns", name, &q); err != nil || v.Have != 1 {
				b.Fatal(v, err)
			}
		}
	}
}

// BenchmarkAggregates makes one pass over all GPUs of a fleet.
func BenchmarkAggregates(b *testing.B) {
	for _, nodes := range []int{100, 1000, 10_000} {
		b.Run(fmt.Sprint("nodes=", nodes), func(b *testing.B) {
			r := fleetOf(b, nodes, 2)
			b.ReportAllocs()
			for b.Loop() {
				r.Pass(r.now)
			}
			if n := r.Last().GPUs[Group{}]; n != 8*nodes {
				b.Fatal(n)
			}
		})
	}
}

// A metric of a Deployment costs no object per pod.
func TestStatisticAllocates(t *testing.T) {
	r := fleetOf(t, 125, 1)
	m := r.Reader
	q := stat.Request{Query: stat.Query{Field: gpu.GPUUtil, Now: r.now, MaxAge: 5 * time.Second}}
	pods := make([]*corev1.Pod, 0, 1000)
	all := r.deps.PodsOf
	r.deps.PodsOf = func(ctx context.Context, _ []*corev1.Pod, g schema.GroupResource, namespace, name string) ([]*corev1.Pod, error) {
		return all(ctx, pods, g, namespace, name)
	}
	allocs := testing.AllocsPerRun(10, func() { _, _ = m.Statistic(t.Context(), deployments, "ns", "web", &q) })
	if allocs > 20 {
		t.Errorf("%v allocations for 1,000 pods, at most 20 are allowed", allocs)
	}
}

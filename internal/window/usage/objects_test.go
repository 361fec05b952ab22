// SPDX-License-Identifier: Apache-2.0

package usage

import (
	"context"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/window/series"
	"github.com/gpupilot/gpupilot/internal/window/stat"
	"github.com/gpupilot/gpupilot/test/podtest"
)

var deployments = schema.GroupResource{Group: "apps", Resource: "deployments"}

// reading is one GPU's values in a test's scrape.
type reading struct {
	pod, device  string // without a pod, the GPU has no owner
	util, memory float64
}

// collect has the agent of node-1 read GPUs.
func (r *rig) collect(at time.Time, list ...reading) {
	r.t.Helper()
	target := r.store.Target("agent", series.TargetLabels{Node: "node-1"})
	var owners []series.DeviceOwners
	var b series.Batch
	for i, x := range list {
		for field, v := range map[gpu.FieldID]float64{gpu.GPUUtil: x.util, gpu.FBUsed: x.memory} {
			if math.IsNaN(v) {
				continue
			}
			ref, ok := target.Ref(series.Key{Device: x.device, Field: field})
			if !ok {
				r.t.Fatal("no series")
			}
			b.Add(ref, v)
		}
		target.SetPlace(x.device, i, 0)
		if x.pod != "" {
			owners = append(owners, series.DeviceOwners{Device: x.device, Owners: []gpu.Owner{{Namespace: "ns", Pod: x.pod}}})
		}
	}
	target.SetOwners(at, owners)
	if _, err := target.Append(at, &b); err != nil {
		r.t.Fatal(err)
	}
}

// statRig is a deployment of two serving pods, of which one has two GPUs and one an
// idle GPU, and one that loads.
func statRig(t testing.TB) *rig {
	r := newRig(t)
	since := r.now.Add(-time.Hour)
	two := func(p *corev1.Pod) { p.Spec.Containers[0] = requests(podtest.GPUResource, "2") }
	r.pods.Pods = []*corev1.Pod{
		pod("web", "a", since, ready(since), two), pod("web", "b", since, ready(r.now.Add(-90*time.Second))),
		pod("web", "loading", since), pod("web", "cpu", since, ready(since), func(p *corev1.Pod) { p.Spec.Containers = nil }),
	}
	r.deps.PodsOf = func(_ context.Context, dst []*corev1.Pod, resource schema.GroupResource, namespace, name string) ([]*corev1.Pod, error) {
		if resource != deployments || namespace != "ns" || name != "web" {
			return dst, nil
		}
		return append(dst, r.pods.Pods...), nil
	}
	for i := range 300 { // a: 0 to 99 and 40, b: 0
		r.collect(r.now.Add(time.Duration(i-299)*time.Second),
			reading{"a", "GPU-0", float64(i % 100), 100}, reading{"a", "GPU-1", 40, 200},
			reading{"b", "GPU-2", 0, 50}, reading{"loading", "GPU-3", 100, 1000}, reading{"", "GPU-4", 0, 0})
	}
	return r
}

func (r *rig) statistic(resource schema.GroupResource, name string, q stat.Request) stat.Value {
	r.t.Helper()
	q.Now, q.MaxAge = r.now, 5*time.Second
	namespace := "ns"
	if resource.Resource == "nodes" || resource.Resource == "namespaces" {
		namespace = ""
	}
	v, err := r.Statistic(r.t.Context(), resource, namespace, name, &q)
	if err != nil {
		r.t.Fatal(err)
	}
	return v
}

func TestStatisticsOfObjects(t *testing.T) {
	r := statRig(t)
	mean, sum, most, p90 := stat.Stat{Kind: stat.Mean}, stat.Stat{Kind: stat.Sum}, stat.Stat{Kind: stat.Max}, stat.Stat{Kind: stat.Percentile, Percentile: 90}
	f := func(resource, name string, q stat.Request, want string) {
		t.Helper()
		if q.Field == 0 {
			q.Field = gpu.GPUUtil
		}
		gr := deployments
		if resource != "deployments" {
			gr = schema.GroupResource{Resource: resource}
		}
		v := r.statistic(gr, name, q)
		got := fmt.Sprintf("%.4g of %d", v.Value, v.Have)
		if v.Reason != "" {
			got = v.Reason
		}
		if !strings.Contains(got, want) {
			t.Errorf("%s/%s %s over %s of %s GPUs %s: %s, want %s", resource, name, q.Stat, q.Window, q.InUse, q.GPU, got, want)
		}
	}
	active := stat.ActiveGPU
	fb := stat.Query{Field: gpu.FBUsed}
	// The newest values: a has (99+40)/2, b 0; the loading pod and the pod without GPUs do not count.
	f("deployments", "web", stat.Request{}, "34.75 of 2")
	f("deployments", "web", stat.Request{Stat: most}, "69.5 of 2")
	f("deployments", "web", stat.Request{InUse: active}, "69.5 of 1")
	f("deployments", "web", stat.Request{Query: fb}, "350 of 2")
	f("deployments", "web", stat.Request{Query: fb, Stat: mean}, "175 of 2")
	f("deployments", "web", stat.Request{GPU: "1"}, "40 of 1")
	f("deployments", "web", stat.Request{GPU: "GPU-0"}, "99 of 1")
	f("deployments", "web", stat.Request{GPU: "9"}, "has a value")
	// A window: a's samples are (0..99)/2+20.
	f("deployments", "web", stat.Request{Stat: mean, Window: 5 * time.Minute}, "22.38 of 2")
	f("deployments", "web", stat.Request{Stat: mean, Window: 5 * time.Minute, InUse: active}, "44.75 of 1")
	f("deployments", "web", stat.Request{Stat: p90, Window: 5 * time.Minute, InUse: active}, "64.55 of 1")
	f("deployments", "web", stat.Request{Stat: sum, Window: 50 * time.Second, InUse: active}, "57.25 of 1")
	// Over GPUs.
	f("pods", "a", stat.Request{Stat: most}, "99 of 2")
	f("pods", "a", stat.Request{GPU: "0", Stat: mean, Window: 100 * time.Second}, "49.5 of 1")
	f("nodes", "node-1", stat.Request{}, "47.8 of 5")
	f("nodes", "node-1", stat.Request{InUse: stat.AllocatedGPU}, "59.75 of 4")
	f("nodes", "node-1", stat.Request{InUse: active}, "79.67 of 3")
	f("nodes", "node-2", stat.Request{}, "it has no GPUs")
	f("namespaces", "ns", stat.Request{}, "46.33 of 3")
	f("namespaces", "ns", stat.Request{InUse: active}, "69.5 of 2")
	f("namespaces", "other", stat.Request{}, "it has no GPUs")
	f("deployments", "other", stat.Request{}, "it has no serving pods")

	if v := r.statistic(deployments, "web", stat.Request{Query: stat.Query{Field: gpu.GPUUtil}, Window: 5 * time.Minute}); v.Span < 299*time.Second || v.Span > 5*time.Minute || !v.At.Equal(r.now) {
		t.Errorf("span %s, time %s", v.Span, v.At)
	}
	// b serves for 90 s: what it did before does not count.
	if v := r.statistic(schema.GroupResource{Resource: "pods"}, "b", stat.Request{Query: stat.Query{Field: gpu.GPUUtil}, Window: 5 * time.Minute}); v.Span > 91*time.Second {
		t.Errorf("span %s, from before the pod served", v.Span)
	}
}

// Missing is not zero, and idle is.
func TestStatisticsOfMissingValues(t *testing.T) {
	r := statRig(t)
	util := stat.Query{Field: gpu.GPUUtil}
	f := func(q stat.Request, want string) {
		t.Helper()
		if v := r.statistic(deployments, "web", q); !strings.Contains(fmt.Sprint(v.Value, " ", v.Reason), want) {
			t.Errorf("%+v, want %s", v, want)
		}
	}
	r.now = r.now.Add(time.Second)
	r.collect(r.now, reading{"a", "GPU-0", 0, 100}, reading{"a", "GPU-1", 0, 200}, reading{"b", "GPU-2", 0, 50})
	f(stat.Request{Query: util, InUse: stat.ActiveGPU}, "0 ")
	f(stat.Request{Query: util, InUse: stat.ActiveGPU, Window: time.Minute}, "54.08")
	r.now = r.now.Add(time.Second)
	r.collect(r.now, reading{"a", "GPU-0", 10, 100}, reading{"a", "GPU-1", 10, math.NaN()}, reading{"b", "GPU-2", math.NaN(), 50})
	r.now = r.now.Add(4500 * time.Millisecond)
	f(stat.Request{Query: util}, "1 of its 2 serving pods have no value from the last 5s, and the others could look like less load (b: node node-1 does not report it)")
	f(stat.Request{Query: util, Stat: stat.Stat{Kind: stat.Min}}, "10 ") // b cannot raise it
	f(stat.Request{Query: stat.Query{Field: gpu.FBUsed}}, "1 of its 2 serving pods have no value from the last 5s, and the others could look like less load (a: node node-1 does not report it)")
	f(stat.Request{Query: util, Stat: stat.Stat{Kind: stat.Sum}}, "1 of its 2 serving pods have no value")
	r.now = r.now.Add(5 * time.Second)
	f(stat.Request{Query: util}, "none of its 2 serving pods has a value from the last 5s (a, b: the agent of node node-1 was last read at ")
	f(stat.Request{Query: util, Window: 5 * time.Minute}, "none of its 2 serving pods has a value")
	f(stat.Request{Query: util, InUse: stat.ActiveGPU}, "none of its 2 serving pods has a value")
}

// An exporter that claims what the API server contradicts moves no object's metric.
func TestStatisticsIgnoreForgedClaims(t *testing.T) {
	r := statRig(t)
	forged := r.store.Target("forged", series.TargetLabels{Node: "node-2"})
	forged.SetOwners(r.now.Add(-time.Minute), []series.DeviceOwners{{Device: "GPU-9", Owners: []gpu.Owner{{Namespace: "ns", Pod: "b"}}}})
	var b series.Batch
	ref, _ := forged.Ref(series.Key{Device: "GPU-9", Field: gpu.GPUUtil})
	b.Add(ref, 100)
	if _, err := forged.Append(r.now, &b); err != nil {
		t.Fatal(err)
	}
	for _, q := range []stat.Request{{}, {Window: time.Minute, Stat: stat.Stat{Kind: stat.Max}}, {InUse: stat.ActiveGPU, Window: time.Minute}} {
		q.Query = stat.Query{Field: gpu.GPUUtil}
		if v := r.statistic(deployments, "web", q); v.Value == 100 || v.Have > 2 {
			t.Errorf("%+v moved to %+v", q, v)
		}
		if v := r.statistic(schema.GroupResource{Resource: "pods"}, "b", q); v.Value != 0 {
			t.Errorf("the pod has %+v", v)
		}
	}
}

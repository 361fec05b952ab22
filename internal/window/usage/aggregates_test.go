// SPDX-License-Identifier: Apache-2.0

package usage

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/window/page"
	"github.com/gpupilot/gpupilot/internal/window/series"
)

func TestAggregates(t *testing.T) {
	r := statRig(t)
	r.Pass(r.now)
	out := r.Last()
	f := func(g Group, field gpu.FieldID, want string) {
		t.Helper()
		i := slices.IndexFunc(out.Items, func(a Aggregate) bool { return a.Group == g && a.Field == field })
		if i < 0 {
			t.Fatalf("no %v of %+v", field, g)
		}
		say := func(s Stats) string { return fmt.Sprintf("%d: %.4g %g %g", s.GPUs, s.Mean, s.Sum, s.Max) }
		if got := say(out.Items[i].Allocated) + " | " + say(out.Items[i].Active); got != want {
			t.Errorf("%v of %+v: %s, want %s", field, g, got, want)
		}
	}
	web, ns := Group{"ns", "Deployment", "web"}, Group{Namespace: "ns"}
	for _, g := range []Group{web, ns, {}} { // without the GPU of the loading pod, and the one that nobody owns
		f(g, gpu.GPUUtil, "3: 46.33 139 99 | 2: 69.5 139 99")
		f(g, gpu.FBUsed, "3: 116.7 350 200 | 2: 150 300 200")
	}
	if out.GPUs[web] != 3 {
		t.Errorf("%d GPUs", out.GPUs[web])
	}
	// The rolling mean is that of the passes; GPU-0 is idle from now on, but was active within the last minute.
	r.now = r.now.Add(aggregateInterval)
	r.collect(r.now, reading{"a", "GPU-0", 0, 100}, reading{"a", "GPU-1", 40, math.NaN()}, reading{"b", "GPU-2", 0, 50})
	r.Pass(r.now)
	out = r.Last()
	f(web, gpu.GPUUtil, "3: 13.33 40 40 | 2: 20 40 40")
	f(web, gpu.FBUsed, "2: 75 150 100 | 1: 100 100 100")
	if got := out.Items[slices.IndexFunc(out.Items, func(a Aggregate) bool { return a.Group == web && a.Field == gpu.GPUUtil })]; math.Abs(got.Active.RollingMean-179.0/4) > 1e-9 || math.Abs(got.Allocated.RollingMean-179.0/6) > 1e-9 {
		t.Errorf("rolling means %v and %v", got.Allocated.RollingMean, got.Active.RollingMean)
	}
	// Two pods of a shared GPU count it once.
	shared := r.store.Target("agent", series.TargetLabels{Node: "node-1"})
	r.now = r.now.Add(time.Second)
	shared.SetOwners(r.now, []series.DeviceOwners{{Device: "GPU-0", Owners: []gpu.Owner{{Namespace: "ns", Pod: "a"}, {Namespace: "ns", Pod: "b"}}}})
	r.collectValues(r.now, "GPU-0", 80)
	r.Pass(r.now)
	out = r.Last()
	f(web, gpu.GPUUtil, "1: 80 80 80 | 1: 80 80 80")
	// Everything ends with the pods.
	r.pods.Pods = nil
	r.Pass(r.now)
	if out := r.Last(); len(out.Items) != 0 || len(r.rolling) != 0 {
		t.Errorf("%d items, %d rolling means without a pod", len(out.Items), len(r.rolling))
	}
}

// A field that autoscalers of a namespace name is added up for its workloads and for the namespace: not for the cluster,
// most of whose GPUs lack it, and not for others.
func TestAggregatesOfNamedFields(t *testing.T) {
	r := statRig(t)
	for _, ns := range []string{"other", "ns"} {
		r.deps.Fields.Hold(page.NewNamed(map[string]gpu.FieldSet{ns: gpu.SetOf(gpu.SMActive)}), nil)
		target := r.store.Target("agent", series.TargetLabels{Node: "node-1"})
		var b series.Batch
		for g := range 3 {
			util, _ := target.Ref(series.Key{Device: fmt.Sprint("GPU-", g), Field: gpu.GPUUtil})
			active, _ := target.Ref(series.Key{Device: fmt.Sprint("GPU-", g), Field: gpu.SMActive, PaidBy: ns})
			b.Add(util, 50)
			b.Add(active, 0.5)
		}
		r.now = r.now.Add(time.Second)
		if _, err := target.Append(r.now, &b); err != nil {
			t.Fatal(err)
		}
		r.Pass(r.now)
		var of []string
		for _, a := range r.Last().Items {
			if a.Field == gpu.SMActive {
				of = append(of, fmt.Sprint(a.Group, a.Allocated.GPUs))
			}
		}
		slices.Sort(of)
		if want := map[string]string{"ns": "[{ns  } 3 {ns Deployment web} 3]", "other": "[]"}[ns]; fmt.Sprint(of) != want {
			t.Errorf("named by %s: added up for %v, want %s", ns, of, want)
		}
	}
}

// collectValues has the agent read the utilisation of one GPU, and nothing else.
func (r *rig) collectValues(at time.Time, device string, util float64) {
	r.t.Helper()
	target := r.store.Target("agent", series.TargetLabels{Node: "node-1"})
	var b series.Batch
	ref, _ := target.Ref(series.Key{Device: device, Field: gpu.GPUUtil})
	b.Add(ref, util)
	if _, err := target.Append(at, &b); err != nil {
		r.t.Fatal(err)
	}
}

// Whoever makes many workloads displaces nobody who has more GPUs.
func TestAggregatesAreBounded(t *testing.T) {
	a := &Aggregates{GPUs: map[Group]int{{}: 100, {Namespace: "ml"}: 8, {"ml", "Deployment", "large"}: 8}}
	for i := range 1000 {
		a.GPUs[Group{"many", "Deployment", fmt.Sprintf("a%04d", i)}] = 1
		a.GPUs[Group{Namespace: fmt.Sprintf("many%04d", i)}] = 1
	}
	a.limit(10)
	if len(a.Shown) != 21 || a.Omitted != 1982 || !a.Shown[Group{"ml", "Deployment", "large"}] || !a.Shown[Group{Namespace: "ml"}] || !a.Shown[Group{}] {
		t.Errorf("%d shown, %d omitted", len(a.Shown), a.Omitted)
	}
}

func TestAggregatesOnMetrics(t *testing.T) {
	r := statRig(t)
	r.Pass(r.now)
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(r.Aggregator)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, family := range families {
		for _, m := range family.GetMetric() {
			line := family.GetName()
			for _, l := range m.GetLabel() {
				line += " " + l.GetName() + "=" + l.GetValue()
			}
			got = append(got, fmt.Sprintf("%s %.6g", line, m.GetGauge().GetValue()))
		}
	}
	all := strings.Join(got, "\n")
	for _, want := range []string{
		"gpupilot_workload_gpu_utilization_ratio in_use=active kind=Deployment name=web namespace=ns stat=avg 0.695",
		"gpupilot_workload_gpu_memory_used_bytes in_use=allocated kind=Deployment name=web namespace=ns stat=sum 3.67002e+08",
		"gpupilot_namespace_gpu_utilization_ratio in_use=active namespace=ns stat=avg_5m 0.695",
		"gpupilot_cluster_gpu_utilization_ratio in_use=allocated stat=max 0.99",
		"gpupilot_cluster_gpus in_use=active 2", "gpupilot_workload_gpus in_use=allocated kind=Deployment name=web namespace=ns 3",
		"gpupilot_gpu_aggregates_omitted 0",
	} {
		if !strings.Contains(all, want) {
			t.Errorf("no %s in\n%s", want, all)
		}
	}
}

// Counters have the time that GPUs were held and idle-held. Pauses, missing values and groups that are gone do not count.
func TestHeldSeconds(t *testing.T) {
	web := Group{"ns", "Deployment", "web"}
	var h heldCounters
	at := time.Unix(0, 0)
	pass := func(after time.Duration, allocated, active int, change func(*Aggregates)) {
		at = at.Add(after)
		a := &Aggregates{At: at, Shown: map[Group]bool{web: true}, Items: []Aggregate{
			{Group: web, Field: gpu.GPUUtil, Allocated: Stats{GPUs: allocated}, Active: Stats{GPUs: active}}, {Group: web, Field: gpu.FBUsed, Allocated: Stats{GPUs: allocated}},
		}}
		if change != nil {
			change(a)
		}
		h.add(a, 10)
	}
	f := func(held, idle float64) {
		t.Helper()
		if s := h.by[web]; s == nil || s.held != held || s.idle != idle {
			t.Errorf("%+v, want %g s held and %g idle", s, held, idle)
		}
	}
	pass(0, 4, 1, nil)
	f(0, 0) // nobody knows for how long
	pass(15*time.Second, 4, 1, nil)
	f(60, 45)
	pass(15*time.Second, 4, 4, nil)
	f(120, 45)
	pass(time.Hour, 4, 0, nil) // a pause counts as two intervals
	f(240, 165)
	pass(15*time.Second, 4, 0, func(a *Aggregates) { a.Items[0].Withheld = true })
	pass(15*time.Second, 4, 0, func(a *Aggregates) { delete(a.Shown, web) })
	f(240, 165)
	pass(keepHeld-time.Minute, 0, 0, func(a *Aggregates) { a.Items = nil })
	f(240, 165)
	pass(time.Minute, 0, 0, func(a *Aggregates) { a.Items = nil })
	if len(h.by) != 0 {
		t.Errorf("%d groups an hour after the last GPU", len(h.by))
	}
}

// Whoever makes new workloads all the time has a bounded number of counters, and the newest stay.
func TestHeldSecondsAreBounded(t *testing.T) {
	var h heldCounters
	at := time.Unix(0, 0)
	for i := range 500 {
		at = at.Add(aggregateInterval)
		g := Group{"ns", "Deployment", fmt.Sprintf("job-%d", i)}
		h.add(&Aggregates{At: at, Shown: map[Group]bool{g: true}, Items: []Aggregate{{Group: g, Field: gpu.GPUUtil, Allocated: Stats{GPUs: 1}}}}, 10)
	}
	if len(h.by) != 41 || h.by[Group{"ns", "Deployment", "job-499"}] == nil || h.by[Group{"ns", "Deployment", "job-0"}] != nil {
		t.Errorf("%d counters", len(h.by))
	}
}

// The counters are on /metrics with the labels of their groups.
func TestHeldMetrics(t *testing.T) {
	r := statRig(t)
	r.Pass(r.now)
	r.now = r.now.Add(aggregateInterval)
	r.collect(r.now, reading{"a", "GPU-0", 0, 100}, reading{"a", "GPU-1", 40, math.NaN()}, reading{"b", "GPU-2", 0, 50})
	r.Pass(r.now)
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(r.Aggregator)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, f := range families {
		for _, m := range f.Metric {
			if c := m.Counter; c != nil {
				got[fmt.Sprint(f.GetName(), len(m.Label))] = c.GetValue()
			}
		}
	}
	for name, want := range map[string]float64{
		"gpupilot_workload_held_gpu_seconds_total3": 45, "gpupilot_workload_idle_held_gpu_seconds_total3": 15, "gpupilot_namespace_held_gpu_seconds_total1": 45,
		"gpupilot_namespace_idle_held_gpu_seconds_total1": 15, "gpupilot_cluster_held_gpu_seconds_total0": 45, "gpupilot_cluster_idle_held_gpu_seconds_total0": 15,
	} {
		if got[name] != want {
			t.Errorf("%s is %g, want %g", name, got[name], want)
		}
	}
}

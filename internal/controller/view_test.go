// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/discovery"
	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/scale"
	"github.com/gpupilot/gpupilot/internal/series"
	"github.com/gpupilot/gpupilot/internal/webui"
)

// A device's age is that of its newest value. A value that is much older than
// that is not shown beside it.
func TestDevicesShowTheirAge(t *testing.T) {
	now := time.Unix(1000, 0)
	f := func(utilAge, powerAge, wantAge time.Duration, wantUtil, wantPower bool) {
		t.Helper()
		var values []series.FieldSample
		for field, age := range map[gpu.FieldID]time.Duration{gpu.GPUUtil: utilAge, gpu.PowerUsage: powerAge} {
			if age >= 0 {
				values = append(values, series.FieldSample{Field: field, Sample: series.Sample{At: now.Add(-age), Value: 7}})
			}
		}
		g := viewGPU(&series.DeviceView{Device: "GPU-1", Values: values}, now, 5*time.Second)
		if g.Age != wantAge || (g.Utilization != nil) != wantUtil || (g.PowerWatts != nil) != wantPower {
			t.Errorf("utilisation %v old, power %v: age %v, utilisation %v, power %v", utilAge, powerAge, g.Age, g.Utilization != nil, g.PowerWatts != nil)
		}
	}
	const s, none = time.Second, -1
	f(1*s, 1*s, 1*s, true, true)
	f(4*s, 1*s, 1*s, true, true)
	f(60*s, 1*s, 1*s, false, true) // a value that stopped is not as new as the others
	f(60*s, 61*s, 60*s, true, true)
	f(none, 2*s, 2*s, false, true)
	f(none, none, 0, false, false)
}

// A pod that has not become ready yet is no fault of anybody; one that was, is.
func TestTargetsOfStartingPods(t *testing.T) {
	r := newRig(t)
	created := r.now.Add(-40 * time.Second)
	r.pods.pods = append(r.pods.pods,
		pod("chat", "starts", created), pod("chat", "serves", created, ready(r.now)),
		pod("agent", "agent-1", created))
	r.states = []webui.Target{
		{Name: "pod/ns/starts:8000/metrics", Kind: discovery.KindPod, Error: "connection refused"},
		{Name: "pod/ns/serves:8000/metrics", Kind: discovery.KindPod, Error: "connection refused"},
		{Name: "pod/ns/gone:8000/metrics", Kind: discovery.KindPod, Error: "connection refused"},
		{Name: "agent/ns/agent-1", Kind: discovery.KindAgent, Error: "connection refused"},
	}
	v := r.View()
	for i, want := range []struct {
		namespace string
		starting  bool
	}{{"ns", true}, {"ns", false}, {"ns", false}, {"", true}} {
		got := v.Targets[i]
		if got.Namespace != want.namespace || !got.Starting.IsZero() != want.starting || want.starting && !got.Starting.Equal(created) {
			t.Errorf("%s: namespace %q, starting since %v", got.Name, got.Namespace, got.Starting)
		}
	}
	if v.MaxAge <= 0 {
		t.Error("the view does not say when a value is old")
	}
}

// While nothing serves yet the page waits; it does not complain.
func TestStartingIsNoProblem(t *testing.T) {
	r := newRig(t, deployment("chat", 2))
	a := autoscaler("chat")
	seconds := int32(120)
	a.Spec.Startup = &v1alpha1.Startup{ExpectedSeconds: &seconds}
	first := r.now.Add(-40 * time.Second)
	r.pods.pods = append(r.pods.pods, pod("chat", "one", first.Add(10*time.Second)), pod("chat", "two", first))
	w := r.add(a)
	w.pass(r.now)
	got := r.View().Workloads[0]
	if got.Problem != "" || got.Waiting == "" || got.Ready {
		t.Errorf("problem %q, waiting for %q", got.Problem, got.Waiting)
	}
	if !got.StartingSince.Equal(first) || got.Startup != 2*time.Minute {
		t.Errorf("starting since %v, usually %v", got.StartingSince, got.Startup)
	}
	a.Spec.ScaleTargetRef.Name = "nope"
	w = r.add(a)
	w.pass(r.now)
	if got := r.View().Workloads[0]; got.Problem == "" || got.Waiting != "" || !got.StartingSince.IsZero() {
		t.Errorf("without a target: %+v", got)
	}
}

// A namespace whose replicas change all the time pushes out its own decisions,
// not those of others.
func TestRecentIsShared(t *testing.T) {
	var r eventLog
	d := &scale.Decision{}
	r.add(types.NamespacedName{Namespace: "quiet", Name: "web"}, d)
	for range 3 * maxRecentEvents {
		r.add(types.NamespacedName{Namespace: "noisy", Name: "web"}, d)
	}
	list := r.list()
	if len(list) != maxRecentEvents || list[len(list)-1].Namespace != "quiet" || list[0].Namespace != "noisy" {
		t.Errorf("%d events, the oldest of %s, want %d and that of the quiet namespace", len(list), list[len(list)-1].Namespace, maxRecentEvents)
	}
}

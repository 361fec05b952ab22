// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/window/discovery"
	"github.com/gpupilot/gpupilot/internal/window/view"
)

// Each outage of the signals is reported once, with the targets that do not answer.
func TestUnreadableSignalsAreReported(t *testing.T) {
	r, w := loaded(t, 60)
	agent := pod("agent", "agent-1", r.now)
	r.pods.Pods = append(r.pods.Pods, agent)
	r.listTargets(r.now)
	r.states = []view.Target{{Name: "agent/ns/agent-1", Error: "connection refused"}, {Name: "agent/ns/elsewhere", Error: "timeout"}}
	warnings := func(what string, after time.Duration, want int) {
		t.Helper()
		w.pass(r.now.Add(after))
		n := 0
		for _, e := range r.eventReasons() {
			if e == "Warning "+reasonNoFreshData {
				n++
			}
		}
		if n != want {
			t.Errorf("%s: %d warnings among %v, want %d", what, n, r.eventReasons(), want)
		}
	}
	warnings("readable", 0, 0)
	r.leading = false
	warnings("blind, and does not lead", 10*time.Second, 0)
	r.leading = true
	warnings("leads", 11*time.Second, 1)
	contains(t, r.events[len(r.events)-1].Note, "no serving replica has a fresh value of Utilization: agent/ns/agent-1 on node node-1 does not answer (connection refused)")
	warnings("still blind", 40*time.Second, 1)

	r.utilization(r.now.Add(time.Minute), 60, r.pods.Pods[0])
	warnings("sees", time.Minute, 1)
	r.pods.Pods = slices.DeleteFunc(slices.Clone(r.pods.Pods), func(p *corev1.Pod) bool { return p == agent })
	r.listTargets(r.now)
	warnings("blind again", 2*time.Minute, 2)
	contains(t, r.events[len(r.events)-1].Note, "no target is scraped at node/node-1")
}

// An exporter that answers, and shows the last values of a GPU that is gone, is
// named.
func TestFrozenDevicesAreReported(t *testing.T) {
	r, w := loaded(t, 60)
	r.pods.Pods = append(r.pods.Pods, pod("dcgm", "dcgm-1", r.now))
	r.listTargets(r.now)
	r.states = []view.Target{{Name: "dcgm-exporter/ns/dcgm-1", Up: true, Frozen: 1}}
	w.pass(r.now)
	w.pass(r.now.Add(10 * time.Second))
	if len(r.events) == 0 {
		t.Fatal("nothing is told")
	}
	contains(t, r.events[len(r.events)-1].Note, "dcgm-exporter/ns/dcgm-1 on node node-1 exposes values of 1 devices that no longer change")
}

// The previous leader recorded the outage.
func TestOutageIsNotReportedAgainByANewLeader(t *testing.T) {
	r, w := loaded(t, 60)
	a := w.object.Load()
	a.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionSignals, Status: "False", Reason: reasonNoFreshData, LastTransitionTime: metav1.Time{Time: r.now.Add(-time.Hour)}}}
	w.seen.servingSince = r.now.Add(-time.Hour)
	w.pass(r.now.Add(time.Minute))
	if len(r.events) != 0 {
		t.Errorf("told %v", r.eventReasons())
	}
}

func TestConditionsAreMetered(t *testing.T) {
	r, w := loaded(t, 60)
	reg := prometheus.NewRegistry()
	r.meters.Register(reg)
	is := func(ready, able, signals string) {
		t.Helper()
		want := `# HELP gpupilot_autoscaler_condition Whether a condition of a GPUAutoscaler is True.
# TYPE gpupilot_autoscaler_condition gauge
gpupilot_autoscaler_condition{name="web",namespace="ns",type="AbleToScale"} ` + able + `
gpupilot_autoscaler_condition{name="web",namespace="ns",type="Ready"} ` + ready + `
gpupilot_autoscaler_condition{name="web",namespace="ns",type="ScalingActive"} ` + signals + `
gpupilot_autoscaler_condition{name="web",namespace="ns",type="ScalingLimited"} 0
gpupilot_autoscaler_condition{name="web",namespace="ns",type="SignalsConsistent"} 1
gpupilot_autoscaler_condition{name="web",namespace="ns",type="` + v1alpha1.ConditionSignals + `"} ` + signals + `
gpupilot_autoscaler_condition{name="web",namespace="ns",type="` + v1alpha1.ConditionSources + `"} 1` + "\n"
		if err := testutil.GatherAndCompare(reg, strings.NewReader(want), "gpupilot_autoscaler_condition"); err != nil {
			t.Error(err)
		}
	}
	w.pass(r.now)
	is("1", "1", "1")
	w.pass(r.now.Add(time.Minute))
	is("0", "1", "0")
}

// A signal of pods without a value names the port and the container that were read, what was
// found there, and what to set.
func TestUnreadPodsAreDescribed(t *testing.T) {
	a := autoscaler("web")
	a.Spec.Signals = []v1alpha1.Signal{{Preset: v1alpha1.PresetVLLM}}
	r := newRig(t, deployment("web", 1), a)
	p := pod("web", "web-1", r.now.Add(-time.Hour), ready(r.now.Add(-time.Hour)))
	p.Spec.Containers = []corev1.Container{{Name: "proxy", Ports: []corev1.ContainerPort{{Name: "admin", ContainerPort: 15000}}}, {
		Name: "vllm", Ports: []corev1.ContainerPort{{Name: "http", ContainerPort: 8000}},
		Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("1")}},
	}}
	r.pods.Pods = []*corev1.Pod{p}
	w := r.add(a)
	w.seen.servingSince = r.now.Add(-time.Hour)
	const name = "pod/ns/web-1:8000/metrics"
	f := func(failure, want string) {
		t.Helper()
		r.listTargets(r.now)
		r.states = []view.Target{{Name: name, Kind: discovery.KindPod, Up: failure == "", Error: failure}}
		r.failing.asOf = time.Time{}
		w.health.outage = outage{}
		w.pass(r.now)
		r.now = r.now.Add(time.Hour)
		contains(t, signalsCondition(w.status.next).Message, want)
		if n := len(r.events); n == 0 || !strings.Contains(r.events[n-1].Note, want) {
			t.Errorf("%+v, want %q", r.events, want)
		}
	}
	const at = "no serving replica has a fresh value of vllm KV cache: pod web-1, port 8000 (http) of container vllm, which requests the GPUs, path /metrics: "
	f("scrape "+name+" (http://10.0.0.1:8000/metrics): the port speaks TLS: set scheme: HTTPS", at+"the port speaks TLS: set scheme: HTTPS")
	f("scrape "+name+" (http://10.0.0.1:8000/metrics): answered 404 Not Found", at+"answered 404 Not Found; set port or path in the signal if its metrics are elsewhere")
	f("", at+"the page has no fresh vllm:num_requests_running or vllm:num_requests_waiting; set port or path in the signal if another one has")
}

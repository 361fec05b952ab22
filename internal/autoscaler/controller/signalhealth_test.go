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
	"github.com/gpupilot/gpupilot/internal/window/series"
	"github.com/gpupilot/gpupilot/internal/window/view"
)

// Each outage of the signals is reported with the targets that do not answer, and again when they or their errors
// change, but not more than twice a minute.
func TestUnreadableSignalsAreReported(t *testing.T) {
	r, w := loaded(t, 60)
	agent := pod("agent", "agent-1", r.now)
	r.pods.Pods = append(r.pods.Pods, agent)
	r.listTargets(r.now)
	r.states = []view.Target{{Name: "agent/ns/agent-1", Error: "connection refused"}, {Name: "agent/ns/elsewhere", Error: "timeout"}}
	warnings := func(what string, after time.Duration, want int) {
		t.Helper()
		r.failing.asOf = time.Time{}
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
	contains(t, r.events[len(r.events)-1].Note, "no serving replica has a fresh value of Utilization, so the replicas stay as they are (missingData: Hold): agent/ns/agent-1 on node node-1 does not answer (connection refused)")
	warnings("still blind", 40*time.Second, 1)
	r.states[0].Error = "timeout"
	warnings("for another reason", 41*time.Second, 2)
	contains(t, r.events[len(r.events)-1].Note, "does not answer (timeout)")
	r.states[0].Error = "connection refused"
	warnings("the reasons alternate", 45*time.Second, 2)

	r.utilization(r.now.Add(time.Minute), 60, r.pods.Pods[0])
	warnings("sees", time.Minute, 2)
	r.pods.Pods = slices.DeleteFunc(slices.Clone(r.pods.Pods), func(p *corev1.Pod) bool { return p == agent })
	r.listTargets(r.now)
	warnings("blind again", 2*time.Minute, 3)
	contains(t, r.events[len(r.events)-1].Note, "node node-1 has no exporter")
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
	const want = "no serving replica has a fresh value of Utilization, so the replicas stay as they are (missingData: Hold): dcgm-exporter/ns/dcgm-1 on node node-1 answers with old values (1 GPUs)"
	contains(t, r.events[len(r.events)-1].Note, want)
	contains(t, signalsCondition(w.status.next).Message, want)
	r.states[0].Frozen, r.failing.asOf = 0, time.Time{}
	w.pass(r.now.Add(time.Minute))
	contains(t, signalsCondition(w.status.next).Message, "the exporters of their nodes answer without Utilization of these pods")
}

// An Event lives for an hour: a new leader records one of an outage that it finds.
func TestNewLeaderReportsAnOutage(t *testing.T) {
	r, w := loaded(t, 60)
	a := w.object.Load()
	a.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionSignals, Status: "False", Reason: reasonNoFreshData, LastTransitionTime: metav1.Time{Time: r.now.Add(-time.Hour)}}}
	w.seen.servingSince = r.now.Add(-time.Hour)
	for i := range 3 {
		w.pass(r.now.Add(time.Minute + time.Duration(i)*time.Second))
	}
	if got := r.eventReasons(); len(got) != 1 || got[0] != "Warning "+reasonNoFreshData {
		t.Errorf("told %v", got)
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

// A signal of pods without a value names the port and the container that were read, what was found there, and what to set.
func TestUnreadPodsAreDescribed(t *testing.T) {
	const name = "pod/ns/web-1:8000/metrics"
	asked := 0 // for the names of a namespace
	f := func(signal v1alpha1.Signal, change func(*rig), want string) {
		t.Helper()
		a := autoscaler("web")
		a.Spec.Signals = []v1alpha1.Signal{signal}
		r := newRig(t, deployment("web", 1), a)
		p := pod("web", "web-1", r.now.Add(-time.Hour), ready(r.now.Add(-time.Hour)))
		p.Spec.Containers = []corev1.Container{{Name: "proxy", Ports: []corev1.ContainerPort{{Name: "admin", ContainerPort: 15000}}}, {
			Name: "vllm", Ports: []corev1.ContainerPort{{Name: "http", ContainerPort: 8000}},
			Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("1")}},
		}}
		r.pods.Pods = []*corev1.Pod{p}
		w := r.add(a)
		w.seen.servingSince = r.now.Add(-time.Hour)
		r.listTargets(r.now)
		r.states = []view.Target{{Name: name, Kind: discovery.KindPod, Up: true}}
		change(r)
		w.pass(r.now)
		contains(t, signalsCondition(w.status.next).Message, want)
		if n := len(r.events); n == 0 || !strings.Contains(r.events[n-1].Note, want) {
			t.Errorf("%+v, want %q", r.events, want)
		}
		if w.pass(r.now.Add(time.Second)); asked > 1 {
			t.Errorf("%s: two passes compare the names %d times", want, asked)
		}
		asked = 0
	}
	fails := func(failure string) func(*rig) {
		return func(r *rig) { r.states[0].Up, r.states[0].Error = false, failure }
	}
	describes := func(names ...string) func(*rig) {
		return func(r *rig) {
			r.deps.Described = func(namespace string) []string {
				asked++
				if namespace != "ns" {
					t.Errorf("the metrics of %s are asked for", namespace)
				}
				return names
			}
		}
	}
	vllm := v1alpha1.Signal{Preset: v1alpha1.PresetVLLM}
	const at = "no serving replica has a fresh value of vllm KV cache, so the replicas stay as they are (missingData: Hold): pod web-1, port 8000 (http) of container vllm, which requests the GPUs, path /metrics, "
	f(vllm, fails("scrape "+name+" (http://10.0.0.1:8000/metrics): the port speaks TLS: set scheme: HTTPS"), at+"cannot be read: the port speaks TLS: set scheme: HTTPS")
	f(vllm, fails("scrape "+name+" (http://10.0.0.1:8000/metrics): answered 404 Not Found"), at+"cannot be read: answered 404 Not Found; set port or path in the signal if its metrics are elsewhere")
	f(vllm, fails(""), at+"cannot be read: it has not answered yet")
	f(vllm, describes("sglang:num_running_reqs"), at+"answers without vllm:num_requests_running and vllm:num_requests_waiting; set port or path in the signal if another page has it")

	pods := func(metric string) v1alpha1.Signal {
		return v1alpha1.Signal{Pods: &v1alpha1.PodsSignal{Metric: metric}, Target: &v1alpha1.Target{Value: resource.MustParse("8")}}
	}
	f(pods("queue_lenght"), describes("queue_length", "queue_seconds"), "path /metrics, answers without queue_lenght: did you mean queue_length?")
	f(pods("vllm:num_requests_runing"), describes(), "path /metrics, answers without vllm:num_requests_runing: did you mean vllm:num_requests_running?")
	f(pods("vllm:num_requests_running"), describes("vllm:num_requests_running"), "path /metrics, answers without vllm:num_requests_running; set port")
	f(pods("queue_length"), func(r *rig) {
		target := r.store.Target(name, series.TargetLabels{Namespace: "ns", Pod: "web-1"})
		ref, ok := target.Ref(series.Key{Metric: "queue_length"})
		if !ok {
			t.Fatal("no series")
		}
		if _, err := target.Append(r.now.Add(-time.Minute), &series.Batch{Points: []series.Point{{Ref: ref, Value: 3}}}); err != nil {
			t.Fatal(err)
		}
	}, "path /metrics, has no new queue_length since ")
}

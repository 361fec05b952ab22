// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/window/discovery"
	"github.com/gpupilot/gpupilot/internal/window/podtest"
	"github.com/gpupilot/gpupilot/internal/window/series"
)

// page is what an exporter shows: devices with their utilisation and owner.
type page struct {
	device string
	util   float64
	owner  *corev1.Pod
}

// shows has an exporter on a node show these devices.
func (r *rig) shows(name, node string, rank uint8, at time.Time, devices ...page) {
	r.t.Helper()
	target := r.store.Target(name, series.TargetLabels{Node: node, Rank: rank})
	var owners []series.DeviceOwners
	var b series.Batch
	for _, d := range devices {
		ref, ok := target.Ref(series.Key{Device: d.device, Field: gpu.GPUUtil})
		if !ok {
			r.t.Fatal("no series")
		}
		b.Add(ref, d.util)
		owners = append(owners, series.DeviceOwners{Device: d.device, Owners: []gpu.Owner{{Namespace: d.owner.Namespace, Pod: d.owner.Name}}})
	}
	target.SetOwners(at, owners)
	if _, err := target.Append(at, &b); err != nil {
		r.t.Fatal(err)
	}
}

// forge is a page on which a pod holds many devices of one utilisation.
func forge(p *corev1.Pod, util float64, n int) (out []page) {
	for i := range n {
		out = append(out, page{fmt.Sprintf("GPU-forged-%d", i), util, p})
	}
	return out
}

// An exporter in a trusted namespace that gives a pod more devices than it
// requests neither scales its workload up nor down, alone or beside the agent.
func TestForgedDevicesDoNotScale(t *testing.T) {
	const forger = "dcgm-exporter/gpu-operator/dcgm-1"
	for _, util := range []float64{0, 100} {
		for _, withAgent := range []bool{true, false} {
			a := autoscaler("web")
			r := newRig(t, deployment("web", 3), a)
			since := r.now.Add(-time.Hour)
			for _, name := range []string{"web-1", "web-2", "web-3"} {
				r.pods.Pods = append(r.pods.Pods, pod("web", name, since, ready(since)))
			}
			w := r.add(a)
			for i := range 30 {
				now := r.now.Add(time.Duration(i) * time.Second)
				if withAgent {
					r.utilization(now, 60, r.pods.Pods...)
				}
				var all []page
				for _, p := range r.pods.Pods {
					for _, d := range forge(p, util, 16) {
						d.device += p.Name
						all = append(all, d)
					}
				}
				r.shows(forger, "node-1", discovery.RankDCGM, now, all...)
				w.pass(now)
			}
			if got := r.replicas("web"); got != 3 {
				t.Errorf("forged %g %%, agent %v: %d replicas, want 3", util, withAgent, got)
			}
			if s, ok := r.MetricPods().Value("ns", "web-1", series.Query{Field: gpu.GPUUtil, Now: r.now.Add(29 * time.Second), MaxAge: 5 * time.Second}); ok != withAgent || ok && s.Value != 60 {
				t.Errorf("forged %g %%, agent %v: the metrics API gives %v, %v", util, withAgent, s.Value, ok)
			}
		}
	}
}

func TestAudit(t *testing.T) {
	const dcgm, agent = "dcgm-exporter/gpu-operator/dcgm-1", "agent/gpupilot-system/agent-1"
	r := newRig(t)
	since := r.now.Add(-time.Hour)
	exporter := pod("dcgm", "dcgm-1", since)
	exporter.Namespace = "gpu-operator"
	here, other := pod("a", "here", since), pod("a", "other", since)
	elsewhere := pod("a", "elsewhere", since, func(p *corev1.Pod) { p.Spec.NodeName = "node-2" })
	moved := pod("a", "moved", r.now.Add(exporterLag), func(p *corev1.Pod) { p.Spec.NodeName = "node-2" })
	unscheduled := pod("a", "unscheduled", since, func(p *corev1.Pod) { p.Spec.NodeName = "" })
	finished := pod("a", "finished", since, func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded })
	unknown := pod("a", "unknown", since)
	r.pods.Pods = []*corev1.Pod{exporter, here, other, elsewhere, moved, unscheduled, finished}
	f := func(what string, want ...string) {
		t.Helper()
		r.audit.streaks, r.events = map[contradiction]int{}, nil
		r.audit.findings.Store(&findings{})
		before := map[contradictionReason]float64{}
		for _, reason := range contradictionReasons() {
			before[reason] = testutil.ToFloat64(r.meters.contradictions.WithLabelValues(string(reason)))
		}
		r.audit.auditOnce(r.now)
		if n := len(r.audit.findings.Load().all); n != 0 || len(r.events) != 0 {
			t.Errorf("%s: told of %d at the first look", what, n)
		}
		for range 3 {
			r.audit.auditOnce(r.now)
		}
		var got []string
		for x, text := range r.audit.findings.Load().all {
			got = append(got, string(x.reason)+" "+x.pod.Name+": "+text)
		}
		slices.Sort(got)
		if len(got) != len(want) || len(r.events) != len(want) {
			t.Errorf("%s: %d contradictions, %d events, want %d\n%s", what, len(got), len(r.events), len(want), strings.Join(got, "\n"))
			return
		}
		for i := range want {
			contains(t, got[i], want[i])
			reason := contradictionReason(strings.Fields(want[i])[0])
			if n := testutil.ToFloat64(r.meters.contradictions.WithLabelValues(string(reason))) - before[reason]; n != 1 {
				t.Errorf("%s: %s counted %g times", what, reason, n)
			}
			if e := r.events[i]; e.Kind != corev1.EventTypeWarning || e.Reason != reasonContradicted || e.About.Name != "dcgm-1" {
				t.Errorf("%s: event %+v", what, e)
			}
		}
	}
	second := 0
	shows := func(rank uint8, name string, devices ...page) {
		second++
		r.shows(name, "node-1", rank, r.now.Add(time.Duration(second)*time.Millisecond), devices...)
	}
	shows(discovery.RankDCGM, dcgm, page{"GPU-0", 1, here}, page{"GPU-1", 1, other})
	f("what is requested")
	shows(discovery.RankDCGM, dcgm, page{"GPU-0", 1, here}, page{"GPU-1", 1, here})
	f("more than is requested", "too_many_devices here: "+dcgm+" reports that pod ns/here holds 2 GPU devices; the pod requests 1")
	shows(discovery.RankDCGM, dcgm, page{"GPU-0", 1, elsewhere})
	f("a pod of another node", "wrong_node elsewhere: "+dcgm+" on node node-1 reports that pod ns/elsewhere holds 1 GPU device; the pod runs on node node-2")
	r.now = r.now.Add(exporterLag + time.Second)
	f("a pod that has moved away from a node which died with its exporter")
	shows(discovery.RankDCGM, dcgm, page{"GPU-0", 1, moved}, page{"GPU-1", 1, unscheduled}, page{"GPU-2", 1, finished}, page{"GPU-3", 1, unknown})
	f("pods whose end or move the exporter has not noticed")

	shows(discovery.RankDCGM, dcgm, page{"GPU-0", 1, here}, page{"GPU-1", 1, other})
	shows(discovery.RankAgent, agent, page{"GPU-0", 1, here}, page{"GPU-1", 1, other})
	f("an agent that agrees")
	shows(discovery.RankAgent, agent, page{"GPU-0", 1, other}, page{"GPU-2", 1, here})
	f("an agent that disagrees", "disagrees_on_owner here: "+dcgm+" reports that pod ns/here holds GPU-0; "+agent+" on the same node reports another pod")
	shows(discovery.RankDCGM, dcgm, page{"GPU-0", 1, finished}, page{"GPU-2", 1, unknown})
	f("pods that are gone, whose devices the kubelet has given to others")
	shows(discovery.RankDCGM, dcgm, page{"GPU-0", 1, here}, page{"GPU-1", 1, other})
	r.store.Drop(agent)

	r.devices.nodeChanged(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1"}, Status: corev1.NodeStatus{Capacity: requests(podtest.GPUResource, "1").Resources.Limits}}, false)
	f("more than the node has", "node_overfull : "+dcgm+" reports that pods hold 2 GPU devices; node node-1 has 1")
	r.leading = false
	r.audit.streaks, r.events = map[contradiction]int{}, nil
	r.audit.findings.Store(&findings{})
	for range 3 {
		r.audit.auditOnce(r.now)
	}
	if len(r.events) != 0 || len(r.audit.findings.Load().all) != 1 {
		t.Errorf("a standby wrote %d events and found %d contradictions", len(r.events), len(r.audit.findings.Load().all))
	}
	r.states[0].Name = dcgm
	contains(t, r.View().Targets[0].Contradiction, "node node-1 has 1")
}

// False claims of an exporter about a workload's pods are reported in a condition, and
// once in an Event.
func TestContradictionsAreReported(t *testing.T) {
	r, w := loaded(t, 60)
	p := r.pods.Pods[0]
	r.shows("dcgm-exporter/gpu-operator/dcgm-1", "node-1", discovery.RankDCGM, r.now, forge(p, 100, 16)...)
	w.pass(r.now)
	is := func(what string, status metav1.ConditionStatus, says string, events int) {
		t.Helper()
		c := meta.FindStatusCondition(conditionsOf(w.status.next), v1alpha1.ConditionSources)
		if c.Status != status {
			t.Errorf("%s: %s is %s", what, c.Type, c.Status)
		}
		contains(t, c.Message, says)
		n := 0
		for _, e := range r.events {
			if e.About.Kind == "GPUAutoscaler" && e.Reason == reasonContradicted {
				n++
			}
		}
		if n != events {
			t.Errorf("%s: %d events, want %d", what, n, events)
		}
	}
	is("before the audit", metav1.ConditionTrue, "agree on the pods' GPUs", 0)
	r.audit.auditOnce(r.now)
	r.audit.auditOnce(r.now)
	for range 3 {
		w.pass(r.now)
	}
	is("forged", metav1.ConditionFalse, "reports that pod ns/web-1 holds 16 GPU devices; the pod requests 1", 1)
	r.store.Drop("dcgm-exporter/gpu-operator/dcgm-1")
	r.audit.auditOnce(r.now)
	w.pass(r.now)
	is("gone", metav1.ConditionTrue, "agree", 1)
}

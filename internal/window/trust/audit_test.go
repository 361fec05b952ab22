// SPDX-License-Identifier: Apache-2.0

package trust

import (
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpupilot/gpupilot/internal/window/discovery"
	"github.com/gpupilot/gpupilot/internal/window/series"
	"github.com/gpupilot/gpupilot/test/podtest"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

func TestAudit(t *testing.T) {
	const dcgm, agent = "dcgm-exporter/gpu-operator/dcgm-1", "agent/gpupilot-system/agent-1"
	now, store, devices, pods := time.Now().Truncate(time.Second), series.New(series.Config{}), NewDevices(nil), &podtest.List{}
	var recorded []string // the targets of Events
	a := NewAudit(AuditDeps{
		Store: store, Pods: pods, Devices: devices,
		Record: func(target, _ string) { recorded = append(recorded, target) },
	})
	since := now.Add(-time.Hour)
	here, other := podtest.Pod("a", "here", since), podtest.Pod("a", "other", since)
	elsewhere := podtest.Pod("a", "elsewhere", since, func(p *corev1.Pod) { p.Spec.NodeName = "node-2" })
	moved := podtest.Pod("a", "moved", now.Add(exporterLag), func(p *corev1.Pod) { p.Spec.NodeName = "node-2" })
	unscheduled := podtest.Pod("a", "unscheduled", since, func(p *corev1.Pod) { p.Spec.NodeName = "" })
	finished := podtest.Pod("a", "finished", since, func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded })
	unknown := podtest.Pod("a", "unknown", since)
	pods.Pods = []*corev1.Pod{here, other, elsewhere, moved, unscheduled, finished}
	f := func(what string, want ...string) {
		t.Helper()
		a.streaks, recorded = map[contradiction]int{}, nil
		a.findings.Store(&findings{})
		before := map[contradictionReason]float64{}
		for _, reason := range contradictionReasons() {
			before[reason] = testutil.ToFloat64(a.found.WithLabelValues(string(reason)))
		}
		a.Compare(now)
		if n := len(a.findings.Load().all); n != 0 || len(recorded) != 0 {
			t.Errorf("%s: told of %d at the first look", what, n)
		}
		for range 3 {
			a.Compare(now)
		}
		var got []string
		for x, text := range a.findings.Load().all {
			got = append(got, string(x.reason)+" "+x.pod.Name+": "+text)
		}
		slices.Sort(got)
		if len(got) != len(want) || len(recorded) != len(want) {
			t.Errorf("%s: %d contradictions, %d events, want %d\n%s", what, len(got), len(recorded), len(want), strings.Join(got, "\n"))
			return
		}
		for i := range want {
			if !strings.Contains(got[i], want[i]) {
				t.Errorf("%s: %q does not contain %q", what, got[i], want[i])
			}
			reason := contradictionReason(strings.Fields(want[i])[0])
			if n := testutil.ToFloat64(a.found.WithLabelValues(string(reason))) - before[reason]; n != 1 {
				t.Errorf("%s: %s counted %g times", what, reason, n)
			}
			if recorded[i] != dcgm {
				t.Errorf("%s: recorded about %s", what, recorded[i])
			}
		}
	}
	second := 0
	shows := func(rank uint8, name string, list ...podtest.Device) {
		second++
		podtest.Expose(t, store, name, series.TargetLabels{Node: "node-1", Rank: rank}, now.Add(time.Duration(second)*time.Millisecond), list...)
	}
	shows(discovery.RankDCGM, dcgm, podtest.Utilization("GPU-0", 1, here), podtest.Utilization("GPU-1", 1, other))
	f("what is requested")
	shows(discovery.RankDCGM, dcgm, podtest.Utilization("GPU-0", 1, here), podtest.Utilization("GPU-1", 1, here))
	f("more than is requested", "too_many_devices here: "+dcgm+" reports that pod ns/here holds 2 GPU devices; the pod requests 1")
	shows(discovery.RankDCGM, dcgm, podtest.Utilization("GPU-0", 1, elsewhere))
	f("a pod of another node", "wrong_node elsewhere: "+dcgm+" on node node-1 reports that pod ns/elsewhere holds 1 GPU device; the pod runs on node node-2")
	now = now.Add(exporterLag + time.Second)
	f("a pod that has moved away from a node which died with its exporter")
	shows(discovery.RankDCGM, dcgm, podtest.Utilization("GPU-0", 1, moved), podtest.Utilization("GPU-1", 1, unscheduled), podtest.Utilization("GPU-2", 1, finished), podtest.Utilization("GPU-3", 1, unknown))
	f("pods whose end or move the exporter has not noticed")

	shows(discovery.RankDCGM, dcgm, podtest.Utilization("GPU-0", 1, here), podtest.Utilization("GPU-1", 1, other))
	shows(discovery.RankAgent, agent, podtest.Utilization("GPU-0", 1, here), podtest.Utilization("GPU-1", 1, other))
	f("an agent that agrees")
	shows(discovery.RankAgent, agent, podtest.Utilization("GPU-0", 1, other), podtest.Utilization("GPU-2", 1, here))
	f("an agent that disagrees", "disagrees_on_owner here: "+dcgm+" reports that pod ns/here holds GPU-0; "+agent+" on the same node reports another pod")
	shows(discovery.RankDCGM, dcgm, podtest.Utilization("GPU-0", 1, finished), podtest.Utilization("GPU-2", 1, unknown))
	f("pods that are gone, whose devices the kubelet has given to others")
	shows(discovery.RankDCGM, dcgm, podtest.Utilization("GPU-0", 1, here), podtest.Utilization("GPU-1", 1, other))
	store.Drop(agent)

	devices.NodeChanged(podtest.Node("node-1", podtest.GPUResource, "1"), false)
	f("more than the node has", "node_overfull : "+dcgm+" reports that pods hold 2 GPU devices; node node-1 has 1")
	if text := a.ByTarget()[dcgm]; !strings.Contains(text, "node node-1 has 1") {
		t.Errorf("the contradiction of the target is %q", text)
	}
}

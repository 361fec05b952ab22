// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/window/discovery"
	"github.com/gpupilot/gpupilot/internal/window/series"
	"github.com/gpupilot/gpupilot/internal/window/stat"
	"github.com/gpupilot/gpupilot/test/podtest"
)

// forge is a page on which a pod holds many devices of one utilisation.
func forge(p *corev1.Pod, util float64, n int) (out []podtest.Device) {
	for i := range n {
		out = append(out, podtest.Utilization(fmt.Sprintf("GPU-forged-%d", i), util, p))
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
				var all []podtest.Device
				for _, p := range r.pods.Pods {
					for _, d := range forge(p, util, 16) {
						d.Name += p.Name
						all = append(all, d)
					}
				}
				podtest.Expose(r.t, r.store, forger, series.TargetLabels{Node: "node-1", Rank: discovery.RankDCGM}, now, all...)
				w.pass(now)
			}
			if got := r.replicas("web"); got != 3 {
				t.Errorf("forged %g %%, agent %v: %d replicas, want 3", util, withAgent, got)
			}
			if s, ok := r.reader().Value("ns", "web-1", stat.Query{Field: gpu.GPUUtil, Now: r.now.Add(29 * time.Second), MaxAge: 5 * time.Second}); ok != withAgent || ok && s.Value != 60 {
				t.Errorf("forged %g %%, agent %v: the metrics API gives %v, %v", util, withAgent, s.Value, ok)
			}
		}
	}
}

// False claims of an exporter about a workload's pods are reported in a condition, and
// once in an Event.
func TestContradictionsAreReported(t *testing.T) {
	r, w := loaded(t, 60)
	p, exporter := r.pods.Pods[0], pod("dcgm", "dcgm-1", r.now)
	exporter.Namespace = "gpu-operator"
	r.pods.Pods = append(r.pods.Pods, exporter)
	ofExporter := func() (n int) {
		for _, e := range r.events {
			if e.About.Kind == "Pod" && e.About.Name == "dcgm-1" && e.Kind == corev1.EventTypeWarning && e.Reason == reasonContradicted {
				n++
			}
		}
		return n
	}
	const forger = "dcgm-exporter/gpu-operator/dcgm-1"
	r.discovered.Store(&discovery.List{Origins: map[string]discovery.Origin{forger: {Pod: types.NamespacedName{Namespace: "gpu-operator", Name: "dcgm-1"}}}})
	podtest.Expose(r.t, r.store, forger, series.TargetLabels{Node: "node-1", Rank: discovery.RankDCGM}, r.now, forge(p, 100, 16)...)
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
	r.audit.Compare(r.now)
	r.audit.Compare(r.now)
	for range 3 {
		w.pass(r.now)
	}
	if n := ofExporter(); n != 1 {
		t.Errorf("%d events about the exporter, want 1", n)
	}
	r.states[0].Name = forger
	contains(t, r.View().Targets[0].Contradiction, "holds 16 GPU devices")
	r.leading = false
	r.recordContradiction(forger, "x")
	if r.leading = true; ofExporter() != 1 {
		t.Error("a standby recorded an event")
	}
	is("forged", metav1.ConditionFalse, "reports that pod ns/web-1 holds 16 GPU devices; the pod requests 1", 1)
	r.store.Drop(forger)
	r.audit.Compare(r.now)
	w.pass(r.now)
	is("gone", metav1.ConditionTrue, "agree", 1)
}

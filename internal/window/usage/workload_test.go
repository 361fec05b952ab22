// SPDX-License-Identifier: Apache-2.0

package usage

import (
	"errors"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
)

func TestWorkloadValue(t *testing.T) {
	r := newRig(t)
	since := r.now.Add(-time.Hour)
	on := func(node string) func(*corev1.Pod) { return func(p *corev1.Pod) { p.Spec.NodeName = node } }
	busy, idle := pod("vllm", "busy", since, ready(since)), pod("vllm", "idle", since, ready(since), on("node-2"))
	r.pods.Pods = []*corev1.Pod{busy, idle, pod("vllm", "starting", since), pod("other", "other", since, ready(since))}
	for i := range 5 { // 10, 30, 50, 70, 90
		at := r.now.Add(time.Duration(i-4) * time.Second)
		r.utilizationBy("agent-1", "node-1", at, float64(10+20*i), busy)
		r.utilizationBy("agent-2", "node-2", at, 0, idle)
	}
	q := WorkloadQuery{Namespace: "ns", Target: v1alpha1.CrossVersionObjectReference{Kind: "Deployment", Name: "vllm"}, Metric: "Utilization", Stat: "avg"}
	f := func(want float64, change func(q *WorkloadQuery)) {
		t.Helper()
		q := q
		change(&q)
		v, err := r.WorkloadValue(t.Context(), &q, r.now)
		if err != nil || v.Value != want || v.Serving != 2 || v.Pods != 3 {
			t.Errorf("%+v: %+v, %v, want %v", q, v, err, want)
		}
	}
	f(45, func(*WorkloadQuery) {})
	f(.45, func(q *WorkloadQuery) { q.Metric = "DCGM_FI_DEV_GPU_UTIL_RATIO" })
	f(90, func(q *WorkloadQuery) { q.Active = true })
	f(90, func(q *WorkloadQuery) { q.Stat = "sum" })
	f(25, func(q *WorkloadQuery) { q.Window = time.Minute })                      // the means 50 and 0
	f(50, func(q *WorkloadQuery) { q.Window, q.Active = time.Minute, true })      // only busy
	f(90, func(q *WorkloadQuery) { q.Window, q.Stat = time.Minute, "max" })       // of all samples
	f(5, func(q *WorkloadQuery) { q.Window, q.Stat = time.Minute, "p50" })        // of 10 samples, between 0 and 10
	f(35, func(q *WorkloadQuery) { q.Window = 2*time.Second + time.Millisecond }) // 50, 70, 90

	refuse := func(want error, text string, change func(q *WorkloadQuery)) {
		t.Helper()
		q := q
		change(&q)
		if _, err := r.WorkloadValue(t.Context(), &q, r.now); !errors.Is(err, want) || !strings.Contains(err.Error(), text) {
			t.Errorf("%+v: %v, want %v %q", q, err, want, text)
		}
	}
	refuse(ErrUnknownMetric, `"no_such_metric"`, func(q *WorkloadQuery) { q.Metric = "no_such_metric" })
	refuse(ErrUnknownWorkload, "none", func(q *WorkloadQuery) { q.Target.Name = "none" })
	refuse(ErrUnknownWorkload, "vllm", func(q *WorkloadQuery) { q.Namespace = "other" })
	r.now = r.now.Add(time.Hour)
	refuse(ErrNoValue, "none of its 2 serving pods has a value", func(*WorkloadQuery) {})
	r.utilizationBy("agent-1", "node-1", r.now, 80, busy)
	refuse(ErrNoValue, "1 of its 2 serving pods have no value from the last 5s, and the others could look like less load "+
		"(idle: the agent of node node-2 was last read at ", func(*WorkloadQuery) {})
	f(80, func(q *WorkloadQuery) { q.Stat = "min" })
	r.utilizationBy("agent-1", "node-1", r.now.Add(time.Second), 100, busy)
	r.now = r.now.Add(time.Second)
	f(100, func(*WorkloadQuery) {}) // nothing can raise it
	f(100, func(q *WorkloadQuery) { q.Stat = "max" })
	r.pods.Pods = append(r.pods.Pods, pod("vllm", "third", since, ready(since), on("node-3")))
	refuse(ErrNoValue, "third: no agent or exporter of node node-3 is known", func(q *WorkloadQuery) { q.Stat = "sum" })
	r.pods.Pods = nil
	if v, err := r.WorkloadValue(t.Context(), &q, r.now); err != nil || v.Pods != 0 {
		t.Errorf("without pods: %+v, %v", v, err)
	}
}

// A pod that claims a GPU which the API server contradicts has no value in a window either.
func TestWorkloadValueIsVerified(t *testing.T) {
	r := newRig(t)
	since := r.now.Add(-time.Hour)
	p := pod("vllm", "p", since, ready(since))
	r.pods.Pods = []*corev1.Pod{p}
	r.utilizationBy("agent", "node-2", r.now, 100, p) // the pod is on node-1
	q := WorkloadQuery{Namespace: "ns", Target: v1alpha1.CrossVersionObjectReference{Kind: "Deployment", Name: "vllm"}, Metric: "Utilization", Stat: "max", Window: time.Minute}
	if v, err := r.WorkloadValue(t.Context(), &q, r.now); !errors.Is(err, ErrNoValue) {
		t.Errorf("%+v, %v", v, err)
	}
}

// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/scale/policy"
)

// paired are two workloads with a GPU for each replica.
func paired(t *testing.T, low, high string) (*rig, map[string]*workload) {
	t.Helper()
	prefill, decode := autoscaler("prefill"), autoscaler("decode")
	least, most := resource.MustParse(low), resource.MustParse(high)
	prefill.Spec.Pair = &v1alpha1.Pair{With: "decode", Ratio: v1alpha1.PairRatio{Min: &least, Max: &most}}
	r := newRig(t, deployment("prefill", 1), deployment("decode", 1), prefill, decode)
	all := map[string]*workload{}
	for _, a := range []*v1alpha1.GPUAutoscaler{prefill, decode} {
		all[a.Name] = r.add(a)
		compiled, err := policy.Compile(a)
		if err != nil {
			t.Fatal(err)
		}
		r.fleet.Pairs.Set(all[a.Name].key, compiled.Pair, false)
	}
	return r, all
}

// serve is a second in which the pods are those that were asked for, and each workload has this
// utilisation of one GPU in total.
func (r *rig) serve(all map[string]*workload, load map[string]float64) {
	r.t.Helper()
	r.now = r.now.Add(time.Second)
	r.pods.Pods = nil
	for name := range all {
		var pods []*corev1.Pod
		n := r.replicas(name)
		for i := range n {
			pods = append(pods, pod(name, fmt.Sprintf("%s-%d", name, i), r.now.Add(-time.Hour), ready(r.now.Add(-time.Hour))))
		}
		r.utilizationBy("agent-"+name, "node-1", r.now, load[name]/float64(max(n, 1)), pods...)
		r.pods.Pods = append(r.pods.Pods, pods...)
	}
	for _, w := range all {
		w.pass(r.now)
	}
}

func (w *workload) pairedReason() string {
	st := statusOf(w.status.next, &v1alpha1.GPUAutoscalerStatus{})
	if c := meta.FindStatusCondition(st.Conditions, v1alpha1.ConditionPaired); c != nil {
		return c.Reason
	}
	return ""
}

func TestAPairIsKeptInItsRatio(t *testing.T) {
	r, all := paired(t, "0.5", "2")
	f := func(prefill, decode float64, wantPrefill, wantDecode int32, reason string) {
		t.Helper()
		for range 8 {
			r.serve(all, map[string]float64{"prefill": prefill, "decode": decode})
		}
		if a, b := r.replicas("prefill"), r.replicas("decode"); a != wantPrefill || b != wantDecode {
			t.Errorf("loads of %v and %v: %d and %d replicas, want %d and %d", prefill, decode, a, b, wantPrefill, wantDecode)
		}
		for name, w := range all {
			if got := w.pairedReason(); got != reason {
				t.Errorf("loads of %v and %v: %s is %q, want %q", prefill, decode, name, got, reason)
			}
		}
	}
	f(50, 50, 1, 1, v1alpha1.ReasonPairKept)
	f(50, 350, 3, 6, v1alpha1.ReasonPairKept) // decode asks for 6
	f(530, 50, 9, 4, v1alpha1.ReasonPairKept) // prefill asks for 9
	f(50, 50, 1, 1, v1alpha1.ReasonPairKept)  // they do not hold each other up
	all["decode"].object.Load().Spec.Override = nil
	delete(all, "decode")
	r.fleet.Pairs.Set(r.workloads[all["prefill"].key].key, policy.Pair{With: "gone", Least: 1}, false)
	f(50, 0, 1, 1, v1alpha1.ReasonPairNotFound)
}

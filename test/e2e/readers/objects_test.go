// SPDX-License-Identifier: Apache-2.0

//go:build e2e && linux

package readers

import (
	"context"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/test/readers"
	"github.com/gpupilot/gpupilot/test/stack"
)

// objectAttacks are objects of the evil namespace that cost much, which their function makes until ctx ends, and changes.
func (r *rig) objectAttacks(t *testing.T, page *listener) map[string]func(ctx context.Context) {
	t.Helper()
	autoscalers := func(n int, change func(i int, a *v1alpha1.GPUAutoscaler)) func(context.Context) {
		return func(context.Context) {
			for i := range n {
				a := stack.Autoscaler(fmt.Sprint("costly-", i))
				a.Namespace, a.Spec.ScaleTargetRef.Name = evil, a.Name
				change(i, a)
				stack.Must(t, r.Client.Create(t.Context(), a))
			}
		}
	}
	return map[string]func(ctx context.Context){
		"480 pods with the readiness gate, made and deleted": func(ctx context.Context) {
			for ctx.Err() == nil {
				for i := range 480 {
					pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: evil, Name: fmt.Sprint("gated-", i), Labels: map[string]string{"app": workload}}}
					pod.Spec = corev1.PodSpec{SchedulerName: "none", Containers: []corev1.Container{{Name: "x", Image: "x"}}, ReadinessGates: []corev1.PodReadinessGate{{ConditionType: v1alpha1.ReadinessGate}}}
					_ = r.Client.Create(ctx, pod) // one that is there stays
				}
				_ = r.Client.DeleteAllOf(ctx, &corev1.Pod{}, client.InNamespace(evil))
			}
		},
		"a status of 30,000,000 replicas, whose page is open": func(ctx context.Context) {
			get := reads(request("GET /api/v1/workload", func() string { return r.tokens[0] }))
			go (&readers.Attack{Sources: 1, Connections: 1, Does: get}).Run(ctx, r.link, page.address)
			for ctx.Err() == nil {
				a := &v1alpha1.GPUAutoscaler{ObjectMeta: metav1.ObjectMeta{Namespace: evil, Name: workload}}
				_ = r.Client.Status().Patch(ctx, a, client.RawPatch(types.MergePatchType, []byte(`{"status": {"servingReplicas": 30000000}}`)))
			}
		},
		"400 heavy formulas": autoscalers(400, func(_ int, a *v1alpha1.GPUAutoscaler) {
			a.Spec.Signals[0].Name = "s0"
			a.Spec.Formula = "0.0" + strings.Repeat(" + s0.replicas", 70)
		}),
		"1,000 names of fields": autoscalers(100, func(i int, a *v1alpha1.GPUAutoscaler) {
			first := a.Spec.Signals[0]
			a.Spec.Signals = nil
			for j := range 10 {
				s := *first.DeepCopy()
				s.GPU.Metric = fmt.Sprintf("DCGM_FI_DEV_X%d", 10*i+j)
				a.Spec.Signals = append(a.Spec.Signals, s)
			}
		}),
	}
}

// clear deletes the objects of an attack.
func (r *rig) clear(t *testing.T) {
	t.Helper()
	var list v1alpha1.GPUAutoscalerList
	stack.Must(t, r.Client.List(t.Context(), &list, client.InNamespace(evil)))
	for i := range list.Items {
		if strings.HasPrefix(list.Items[i].Name, "costly-") {
			stack.Must(t, r.Client.Delete(t.Context(), &list.Items[i]))
		}
	}
	stack.Must(t, r.Client.DeleteAllOf(t.Context(), &corev1.Pod{}, client.InNamespace(evil), client.GracePeriodSeconds(0)))
}

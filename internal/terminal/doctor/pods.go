// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/scale/replica"
)

// podChecks are about the pods of workloads that GPUAutoscalers scale.
var podChecks = []Check{
	{
		Code: "GP411", Group: Scaling, Level: Warning, Title: "scaled pods have a readiness probe",
		Fix: "add a readinessProbe that succeeds when the model is loaded, such as /health of vLLM", at: []evidence{workloads}, run: checkReadiness,
	},
	{
		Code: "GP412", Group: Scaling, Level: Warning, Title: "the grace period is longer than preStop and the server's drain",
		Fix: "raise terminationGracePeriodSeconds above their sum", at: []evidence{workloads}, run: checkGrace,
	},
	{
		Code: "GP413", Group: Scaling, Level: Warning, Title: "PodDisruptionBudgets allow to drain a node",
		Fix: "set maxUnavailable: 1, or minAvailable below minReplicas", at: []evidence{workloads, budgets}, run: checkDisruption,
	},
}

// scaled calls do with each GPUAutoscaler and the workload that it scales.
func (f *Facts) scaled(do func(*v1alpha1.GPUAutoscaler, *workload) string) (out []Finding) {
	for i := range f.Autoscalers.Items {
		a := &f.Autoscalers.Items[i]
		if w := f.workload(a); w != nil {
			if message := do(a, w); message != "" {
				out = append(out, Finding{a.Spec.ScaleTargetRef.Kind + " " + w.name(), message})
			}
		}
	}
	return out
}

func checkReadiness(f *Facts) []Finding {
	return f.scaled(func(_ *v1alpha1.GPUAutoscaler, w *workload) string {
		spec := &w.Spec.Template.Spec
		for i := range spec.Containers {
			if spec.Containers[i].ReadinessProbe != nil {
				return ""
			}
		}
		if len(spec.ReadinessGates) > 0 {
			return ""
		}
		return "no container has a readinessProbe: a replica counts as serving, and gets requests, while it loads its model"
	})
}

func checkGrace(f *Facts) []Finding {
	return f.scaled(func(_ *v1alpha1.GPUAutoscaler, w *workload) string {
		return replica.GraceProblem(&w.Spec.Template.Spec)
	})
}

func checkDisruption(f *Facts) (out []Finding) {
	return f.scaled(func(a *v1alpha1.GPUAutoscaler, w *workload) string {
		for i := range f.PDBs.Items {
			b := &f.PDBs.Items[i]
			if b.Metadata.Namespace != w.Metadata.Namespace || !selects(b.Spec.Selector, w.Spec.Template.Labels) {
				continue
			}
			least := int32(1)
			if a.Spec.MinReplicas != nil {
				least = *a.Spec.MinReplicas
			}
			if why := b.blocks(least); why != "" {
				return fmt.Sprintf("the PodDisruptionBudget %s %s: its nodes cannot be drained, and a node autoscaler keeps their GPUs", b.name(), why)
			}
		}
		return ""
	})
}

func selects(s *metav1.LabelSelector, set map[string]string) bool {
	selector, err := metav1.LabelSelectorAsSelector(s)
	return err == nil && selector.Matches(labels.Set(set))
}

// blocks says why a budget allows no eviction of that many pods; empty: it does.
func (b *disruptionBudget) blocks(pods int32) string {
	if pods == 0 {
		return ""
	}
	if m := b.Spec.MaxUnavailable; m != nil {
		if n, err := intstr.GetScaledValueFromIntOrPercent(m, int(pods), true); err == nil && n == 0 {
			return "has maxUnavailable " + m.String()
		}
	}
	if m := b.Spec.MinAvailable; m != nil {
		if n, err := intstr.GetScaledValueFromIntOrPercent(m, int(pods), true); err == nil && n >= int(pods) {
			return fmt.Sprintf("has minAvailable %s, and minReplicas is %d", m.String(), pods)
		}
	}
	return ""
}

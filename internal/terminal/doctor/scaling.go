// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/scale"
	"github.com/gpupilot/gpupilot/internal/scale/policy"
	"github.com/gpupilot/gpupilot/internal/window/view"
)

var scalingChecks = []Check{
	{
		Code: "GP401", Group: Scaling, Level: Error, Title: "no HorizontalPodAutoscaler scales the target of a GPUAutoscaler",
		Fix: "delete one of the two: gpupilot adopt hpa hands over without a gap", at: []evidence{autoscalers, hpas}, run: func(f *Facts) []Finding {
			return f.rivals("HorizontalPodAutoscaler", &f.HPAs)
		},
	},
	{
		Code: "GP402", Group: Scaling, Level: Error, Title: "no ScaledObject scales the target of a GPUAutoscaler",
		Fix: "delete one of the two: gpupilot adopt scaledobject hands over without a gap", at: []evidence{autoscalers, scaled}, run: func(f *Facts) []Finding {
			return f.rivals("ScaledObject", &f.Scaled)
		},
	},
	{
		Code: "GP403", Group: Scaling, Level: Warning, Title: "no VerticalPodAutoscaler restarts the pods of a GPUAutoscaler",
		Fix: "set its updateMode to Off or Initial", at: []evidence{autoscalers, vpas}, run: checkVPAs,
	},
	{
		Code: "GP404", Group: Scaling, Level: Error, Title: "each target has one GPUAutoscaler",
		Fix: "delete all but one", at: []evidence{autoscalers}, run: checkTwoAutoscalers,
	},
	{
		Code: "GP405", Group: Scaling, Level: Error, Title: "targets of GPUAutoscalers can be scaled",
		Fix: "the condition says why not: gpupilot explain NAMESPACE/NAME", at: []evidence{decided}, run: checkAbleToScale,
	},
	{
		Code: "GP406", Group: Scaling, Level: Error, Title: "signals of GPUAutoscalers are readable",
		Fix: "the line says why: correct the port, the path, the metric's name or the query", at: []evidence{decided}, run: checkSignals,
	},
	{
		Code: "GP407", Group: Scaling, Level: Warning, Title: "all replicas find a node and start",
		Fix: "free or add GPUs, or lower maxReplicas; for an image or a crash see the pod's events", at: []evidence{decided}, run: checkPending,
	},
	{
		Code: "GP408", Group: Scaling, Level: Warning, Title: "the cluster has GPUs for maxReplicas",
		Fix: "lower maxReplicas, add GPU nodes, or ignore it where a node autoscaler adds them", at: []evidence{nodes, workloads}, run: checkPool,
	},
	{
		Code: "GP409", Group: Scaling, Level: Warning, Title: "targets are below the highest value of their signals",
		Fix: "a target of 60 to 80 % leaves room to see the load: docs/gpuautoscaler.md", at: []evidence{autoscalers}, run: checkReachable,
	},
	{
		Code: "GP410", Group: Scaling, Level: Warning, Title: "replicas start within the stabilisation of scale-downs",
		Fix: "raise behavior.scaleDown.stabilizationWindowSeconds, or leave it out: the default follows the start-up", at: []evidence{decided}, run: checkStartup,
	},
}

// key identifies what an autoscaler scales, without the version of its API.
func key(namespace string, apiVersion, kind, name string) string {
	group, _, ok := strings.Cut(apiVersion, "/")
	if !ok {
		group = map[string]string{"Deployment": "apps", "StatefulSet": "apps", "ReplicaSet": "apps"}[kind]
	}
	return namespace + " " + group + " " + kind + " " + name
}

func targetOf(a *v1alpha1.GPUAutoscaler) string {
	r := &a.Spec.ScaleTargetRef
	return key(a.Namespace, r.APIVersion, r.Kind, r.Name)
}

// subject names a GPUAutoscaler.
func subject(a *v1alpha1.GPUAutoscaler) string { return "GPUAutoscaler " + a.Namespace + "/" + a.Name }

// byTarget are the GPUAutoscalers by what they scale.
func (f *Facts) byTarget() map[string]*v1alpha1.GPUAutoscaler {
	out := map[string]*v1alpha1.GPUAutoscaler{}
	for i := range f.Autoscalers.Items {
		out[targetOf(&f.Autoscalers.Items[i])] = &f.Autoscalers.Items[i]
	}
	return out
}

// ownedBy is the label with which KEDA marks the HPAs that it makes.
const kedaName = "scaledobject.keda.sh/name"

// rivals are the objects of other autoscalers with the target of a GPUAutoscaler. The HPA of a
// ScaledObject is not counted beside it.
func (f *Facts) rivals(kind string, others *listed[scaler]) (out []Finding) {
	ours := f.byTarget()
	for i := range others.Items {
		o := &others.Items[i]
		if o.Metadata.Labels[kedaName] != "" || o.isPaused() {
			continue
		}
		r := o.Spec.ScaleTargetRef
		if a := ours[key(o.Metadata.Namespace, r.APIVersion, cmp.Or(r.Kind, "Deployment"), r.Name)]; a != nil && a.Spec.Actuation != v1alpha1.ActuationAdvise {
			if own := a.Status.HPA; own != nil && own.UID == o.Metadata.UID {
				continue
			}
			message := fmt.Sprintf("the %s %s scales %s %s, too: GPUPilot leaves the replicas to it", kind, o.name(), a.Spec.ScaleTargetRef.Kind, a.Spec.ScaleTargetRef.Name)
			out = append(out, Finding{subject(a), message})
		}
	}
	return out
}

func checkVPAs(f *Facts) (out []Finding) {
	ours := f.byTarget()
	for i := range f.VPAs.Items {
		v := &f.VPAs.Items[i]
		if p := v.Spec.UpdatePolicy; p != nil && (p.UpdateMode == "Off" || p.UpdateMode == "Initial") {
			continue
		}
		r := v.Spec.TargetRef
		if a := ours[key(v.Metadata.Namespace, r.APIVersion, r.Kind, r.Name)]; a != nil {
			out = append(out, Finding{subject(a), fmt.Sprintf("the VerticalPodAutoscaler %s evicts its pods: each restart loads the model again", v.name())})
		}
	}
	return out
}

func checkTwoAutoscalers(f *Facts) (out []Finding) {
	seen := map[string]*v1alpha1.GPUAutoscaler{}
	for i := range f.Autoscalers.Items {
		a := &f.Autoscalers.Items[i]
		if other := seen[targetOf(a)]; other != nil {
			out = append(out, Finding{subject(a), fmt.Sprintf("%s scales %s %s, too", subject(other), a.Spec.ScaleTargetRef.Kind, a.Spec.ScaleTargetRef.Name)})
			continue
		}
		seen[targetOf(a)] = a
	}
	return out
}

// checkAbleToScale leaves out the reasons that other checks have: GP401, GP402, GP404 and GP419.
func checkAbleToScale(f *Facts) (out []Finding) {
	for i := range f.Autoscalers.Items {
		a := &f.Autoscalers.Items[i]
		c := condition(a.Status.Conditions, v1alpha1.ConditionAbleToScale)
		if c != nil && c.Status == metav1.ConditionFalse && c.Reason != "OwnedByAnother" && !slices.Contains(hpaReasons, c.Reason) {
			out = append(out, Finding{subject(a), said(c)})
		}
	}
	return out
}

// said is what a condition says.
func said(c *metav1.Condition) string {
	return fmt.Sprintf("%s is %s, %s: %s", c.Type, c.Status, c.Reason, c.Message)
}

// areUnreadable reports whether the signals of a GPUAutoscaler are unreadable although replicas serve.
func areUnreadable(a *v1alpha1.GPUAutoscaler) bool {
	c := condition(a.Status.Conditions, v1alpha1.ConditionSignals)
	return c != nil && c.Status == metav1.ConditionFalse && c.Reason != "NothingServes"
}

// unreadable are the pods that do not answer the controller, by the GPUAutoscaler with that scale target, if its signals
// are unreadable.
func (f *Facts) unreadable() map[*v1alpha1.GPUAutoscaler][]*view.Target {
	out := map[*v1alpha1.GPUAutoscaler][]*view.Target{}
	v, err := f.view()
	if err != nil {
		return out
	}
	in := map[string][]*v1alpha1.GPUAutoscaler{} // by namespace
	for i := range f.Autoscalers.Items {
		a := &f.Autoscalers.Items[i]
		in[a.Namespace] = append(in[a.Namespace], a)
	}
	for i := range v.Targets {
		t := &v.Targets[i]
		pod, ok := strings.CutPrefix(t.Name, view.KindPod+"/"+t.Namespace+"/")
		if !ok || t.Up || !t.Starting.IsZero() {
			continue
		}
		var of *v1alpha1.GPUAutoscaler // the one with the longest name of a scale target: chat-large-0 is not a pod of chat
		for _, a := range in[t.Namespace] {
			if name := a.Spec.ScaleTargetRef.Name; strings.HasPrefix(pod, name+"-") && (of == nil || len(name) > len(of.Spec.ScaleTargetRef.Name)) {
				of = a
			}
		}
		if of != nil && areUnreadable(of) {
			out[of] = append(out[of], t)
		}
	}
	return out
}

func checkSignals(f *Facts) (out []Finding) {
	silent := f.unreadable()
	for i := range f.Autoscalers.Items {
		a := &f.Autoscalers.Items[i]
		if !areUnreadable(a) {
			continue
		}
		message := said(condition(a.Status.Conditions, v1alpha1.ConditionSignals))
		if n := len(silent[a]); n > 1 { // the condition has the first of them
			message += fmt.Sprintf(". %d of its pods do not answer", n)
		}
		out = append(out, Finding{subject(a), message})
	}
	return out
}

func condition(all []metav1.Condition, kind string) *metav1.Condition {
	for i := range all {
		if all[i].Type == kind {
			return &all[i]
		}
	}
	return nil
}

func checkPending(f *Facts) (out []Finding) {
	for i := range f.Autoscalers.Items {
		a := &f.Autoscalers.Items[i]
		for _, p := range a.Status.Pending {
			out = append(out, Finding{subject(a), fmt.Sprintf("%d replicas do not serve, %s: %s", p.Replicas, p.Reason, p.Message)})
		}
	}
	return out
}

// checkPool compares what maxReplicas takes with all GPUs of the cluster.
func checkPool(f *Facts) (out []Finding) {
	if _, _, err := nodes(f); err != nil {
		return nil // what the cluster has is not known
	}
	have := map[string]int{}
	for i := range f.Nodes.Items {
		for name, n := range gpusOf(f.Nodes.Items[i].Status.Allocatable) {
			have[name] += n
		}
	}
	for i := range f.Autoscalers.Items {
		a := &f.Autoscalers.Items[i]
		w := f.workload(a)
		if w == nil {
			continue
		}
		for resource, n := range w.gpus() {
			if total := n * int(a.Spec.MaxReplicas); total > have[resource] && a.Spec.Budget == nil {
				out = append(out, Finding{subject(a), fmt.Sprintf("%d replicas of %d %s each are %d, and the cluster has %d", a.Spec.MaxReplicas, n, resource, total, have[resource])})
			}
		}
	}
	return out
}

// gpus are the GPUs of a replica, by resource.
func (w *workload) gpus() map[string]int {
	need := map[string]int{}
	for i := range w.Spec.Template.Spec.Containers {
		for name, q := range w.Spec.Template.Spec.Containers[i].Resources.Limits {
			for resource, n := range gpusOf(map[string]string{string(name): q.String()}) {
				need[resource] += n
			}
		}
	}
	return need
}

func checkReachable(f *Facts) (out []Finding) {
	for i := range f.Autoscalers.Items {
		a := &f.Autoscalers.Items[i]
		compiled, bad := policy.Compile(a)
		if bad != nil {
			continue // AbleToScale says so
		}
		for j := range compiled.Policy.Signals {
			s := &compiled.Policy.Signals[j]
			if s.Ceiling > 0 && s.Type == scale.AverageValue && s.Target >= s.Ceiling {
				out = append(out, Finding{subject(a), fmt.Sprintf("the target of %s is %g, and a replica has at most %g: it never scales up for it", s.Name, s.Target, s.Ceiling)})
			}
		}
	}
	return out
}

// shortStart is the start-up that costs little when a removed replica is missed, in seconds.
const shortStart = 30

func checkStartup(f *Facts) (out []Finding) {
	for i := range f.Autoscalers.Items {
		a := &f.Autoscalers.Items[i]
		b := a.Spec.Behavior
		if a.Status.Startup == nil || b == nil || b.ScaleDown == nil || b.ScaleDown.StabilizationWindowSeconds == nil {
			continue
		}
		if window, start := *b.ScaleDown.StabilizationWindowSeconds, a.Status.Startup.P95Seconds; start > window && start >= shortStart {
			out = append(out, Finding{subject(a), fmt.Sprintf("a replica takes up to %d s to serve, and scale-downs wait %d s: what was removed is missed before it is back", start, window)})
		}
	}
	return out
}

// workload returns the Deployment or StatefulSet that a GPUAutoscaler scales; nil: it is none,
// or does not exist.
func (f *Facts) workload(a *v1alpha1.GPUAutoscaler) *workload {
	from := map[string]*listed[workload]{"Deployment": &f.Deployments, "StatefulSet": &f.StatefulSet}[a.Spec.ScaleTargetRef.Kind]
	if from == nil {
		return nil
	}
	for i := range from.Items {
		if w := &from.Items[i]; w.Metadata.Namespace == a.Namespace && w.Metadata.Name == a.Spec.ScaleTargetRef.Name {
			return w
		}
	}
	return nil
}

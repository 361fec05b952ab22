// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/scale"
	"github.com/gpupilot/gpupilot/internal/scale/policy"
)

// boundsChecks are about what bounds and sets the replicas beside the signals.
var boundsChecks = []Check{
	{
		Code: "GP414", Group: Scaling, Level: Warning, Title: "no override holds a workload below what its signals ask for",
		Fix: "end it with gpupilot resume NAMESPACE/NAME, or leave it while it is wanted: docs/override.md", at: []evidence{decided, workloads}, run: checkOverrides(false),
	},
	{
		Code: "GP415", Group: Scaling, Level: Warning, Title: "no override ends within an hour and changes the replicas then",
		Fix: "to keep the replicas, give it a later end with gpupilot hold: docs/override.md", at: []evidence{decided, workloads}, run: checkOverrides(true),
	},
	{
		Code: "GP416", Group: Scaling, Level: Warning, Title: "overrides and schedules have an effect",
		Fix: "change or remove it: docs/override.md, docs/schedules.md", at: []evidence{scheduled}, run: checkEffects,
	},
	{
		Code: "GP417", Group: Scaling, Level: Warning, Title: "lead times of schedules fit the start-up and the windows",
		Fix: "set leadTime: Auto, or leave it out: docs/schedules.md", at: []evidence{scheduled}, run: schedules(func(p *policy.ScheduleProblems) []string { return p.Lead }),
	},
	{
		Code: "GP418", Group: Scaling, Level: Warning, Title: "within a week no window starts or ends at a time that the clock skips",
		Fix: "move its start or end, or give its timezone as UTC: docs/schedules.md", at: []evidence{scheduled}, run: schedules(func(p *policy.ScheduleProblems) []string { return p.Clock }),
	},
	{
		Code: "GP419", Group: Scaling, Level: Error, Title: "HorizontalPodAutoscalers of GPUAutoscalers exist and are followed",
		Fix: "docs/hpa.md explains actuation: HPA and each reason", at: []evidence{decided, hpas, delegated}, run: checkOwnedHPAs,
	},
}

const (
	// endsSoon is the rest of an override that is noted.
	endsSoon = time.Hour
	// lookAhead is how far ahead windows of schedules are looked at: a week and a lead time.
	lookAhead = 8 * 24 * time.Hour
	// patience is how long a HorizontalPodAutoscaler may take to do what it is for: four
	// syncs of kube-controller-manager.
	patience = time.Minute
)

// compiled returns a GPUAutoscaler's policy with its start-up. ok is false if the spec is
// invalid, which AbleToScale says.
func compiled(a *v1alpha1.GPUAutoscaler) (c policy.Compiled, ok bool) {
	c, err := policy.Compile(a)
	if s := a.Status.Startup; s != nil && c.Policy.Startup == 0 {
		c.Policy.Startup = time.Duration(s.P95Seconds) * time.Second
	}
	return c, err == nil
}

// checkOverrides looks at overrides in force without which the last decision is another one:
// more replicas, or, for those that end soon, fewer.
func checkOverrides(soon bool) func(*Facts) []Finding {
	return func(f *Facts) (out []Finding) {
		for i := range f.Autoscalers.Items {
			a := &f.Autoscalers.Items[i]
			if a.Spec.Override == nil || a.Status.DesiredReplicas == nil {
				continue
			}
			c, ok := compiled(a)
			since := overrideSince(a)
			if !ok || since.IsZero() || c.Override.StateAt(f.Now, since) != policy.Overridden {
				continue // the last decision may be older than the override
			}
			now, left := *a.Status.DesiredReplicas, c.Override.Until.Sub(f.Now)
			switch without, ok := f.withoutOverride(a, &c); {
			case !ok:
			case !soon && without > now:
				out = append(out, Finding{subject(a), fmt.Sprintf("the %s allows %d replicas, and the decision without it is %d", &c.Override, now, without)})
			case soon && without < now && left <= endsSoon:
				out = append(out, Finding{subject(a), fmt.Sprintf("the %s ends in %d min, and the decision without it is %d replicas instead of %d", &c.Override, int(left.Round(time.Minute).Minutes()), without, now)})
			}
		}
		return out
	}
}

// overrideSince is when the controller first read the override; zero: not yet.
func overrideSince(a *v1alpha1.GPUAutoscaler) (since time.Time) {
	if s := a.Status.Override; s != nil && s.Until.Time.Equal(a.Spec.Override.Until.Time) {
		since = s.Since.Time
	}
	return since
}

// withoutOverride returns the last decision without the override, by its steps. ok is false
// if it cannot be known.
func (f *Facts) withoutOverride(a *v1alpha1.GPUAutoscaler, c *policy.Compiled) (replicas int32, ok bool) {
	replicas = *a.Status.DesiredReplicas
	overridden := false
	if d := a.Status.LastDecision; d != nil {
		for _, s := range d.Steps {
			switch scale.Rule(s.Rule) {
			case scale.RuleSetToZero:
				return 0, false // by others
			case scale.RuleOverride:
				if !overridden {
					replicas, overridden = s.Before, true
				}
			}
		}
	}
	p, bare := c.Policy, *c
	bare.Override = policy.Override{}
	bare.Apply(&p, f.Now, time.Time{})
	most := p.Max
	if p.MaxGPUs > 0 {
		w := f.workload(a)
		if w == nil {
			return 0, false // the GPUs of a replica are not known
		}
		var gpus int32
		for _, n := range w.gpus() {
			gpus += int32(n)
		}
		if gpus > 0 {
			most = min(most, max(p.MaxGPUs/gpus, p.InForce.OverBudget))
		}
	}
	return max(min(replicas, most), min(p.Min, most)), true
}

// checkEffects looks at overrides that are too long, and at schedules that change nothing.
// An override that has ended is no finding: it is left over, and does no harm.
func checkEffects(f *Facts) (out []Finding) {
	out = schedules(func(p *policy.ScheduleProblems) []string { return p.Idle })(f)
	for i := range f.Autoscalers.Items {
		a := &f.Autoscalers.Items[i]
		if c, ok := compiled(a); ok && a.Spec.Override != nil && c.Override.StateAt(f.Now, overrideSince(a)) == policy.OverrideTooLong {
			out = append(out, Finding{subject(a), fmt.Sprintf("the %s has no effect: it may last at most 30 days", &c.Override)})
		}
	}
	return out
}

// schedules is a check of the schedules of GPUAutoscalers.
func schedules(wrong func(*policy.ScheduleProblems) []string) func(*Facts) []Finding {
	return func(f *Facts) (out []Finding) {
		problems, _ := f.scheduleProblems()
		for i, p := range problems {
			for _, text := range wrong(&p) {
				out = append(out, Finding{subject(&f.Autoscalers.Items[i]), text})
			}
		}
		return out
	}
}

// maxWork bounds the work of looking at schedules, which tenants write. It is about two
// seconds, and 10,000 GPUAutoscalers with two schedules each.
const maxWork = 2_500_000

// scheduleProblems returns what is wrong with schedules, by the index of the GPUAutoscaler.
// It looks once for all checks, and at those with the fewest schedules first.
func (f *Facts) scheduleProblems() (map[int]policy.ScheduleProblems, error) {
	if f.schedules != nil {
		return f.schedules, f.schedulesErr
	}
	f.schedules = map[int]policy.ScheduleProblems{}
	var order []int
	for i := range f.Autoscalers.Items {
		if len(f.Autoscalers.Items[i].Spec.Schedules) > 0 {
			order = append(order, i)
		}
	}
	slices.SortStableFunc(order, func(i, j int) int {
		return len(f.Autoscalers.Items[i].Spec.Schedules) - len(f.Autoscalers.Items[j].Spec.Schedules)
	})
	work, skipped := 0, 0
	for _, i := range order {
		if work > maxWork {
			skipped++
			continue
		}
		c, ok := compiled(&f.Autoscalers.Items[i])
		if !ok {
			continue
		}
		p := c.ScheduleProblems(&c.Policy, f.Now, lookAhead)
		if p.Unknown {
			skipped++
		}
		work += p.Work
		f.schedules[i] = p
	}
	if skipped > 0 {
		f.schedulesErr = fmt.Errorf("the schedules of %d GPUAutoscalers have too many windows to look at all of them", skipped)
	}
	return f.schedules, f.schedulesErr
}

// The reasons of AbleToScale about an owned HorizontalPodAutoscaler.
const hpaStopping = "HPAStopping" // for one sync it is no problem

var hpaReasons = []string{"HPANotKept", "HPAReadsNoMetric", hpaStopping}

func checkOwnedHPAs(f *Facts) (out []Finding) {
	byUID := map[string]*scaler{}
	for i := range f.HPAs.Items {
		byUID[string(f.HPAs.Items[i].Metadata.UID)] = &f.HPAs.Items[i]
	}
	for i := range f.Autoscalers.Items {
		a := &f.Autoscalers.Items[i]
		able := condition(a.Status.Conditions, v1alpha1.ConditionAbleToScale)
		switch {
		case able == nil:
		case able.Status == metav1.ConditionFalse && slices.Contains(hpaReasons, able.Reason):
			if able.Reason != hpaStopping || f.Now.Sub(able.LastTransitionTime.Time) > patience {
				out = append(out, Finding{subject(a), fmt.Sprintf("%s: %s", able.Reason, able.Message)})
			}
		case a.Status.ObservedGeneration < a.Generation: // the controller has not seen the spec yet
		case a.Spec.Actuation != v1alpha1.ActuationHPA || able.Status != metav1.ConditionTrue || a.Status.DesiredReplicas == nil || f.HPAs.Err != nil:
		default:
			if message := f.notFollowed(a, byUID); message != "" {
				out = append(out, Finding{subject(a), message})
			}
		}
	}
	return out
}

// notFollowed says why the HorizontalPodAutoscaler of a GPUAutoscaler does not set the
// decided replicas; empty: it does, or will.
func (f *Facts) notFollowed(a *v1alpha1.GPUAutoscaler, byUID map[string]*scaler) string {
	if a.Status.HPA == nil {
		return "it has no HorizontalPodAutoscaler: the replicas do not change"
	}
	name := a.Status.HPA.Name
	h := byUID[string(a.Status.HPA.UID)]
	if h == nil {
		return fmt.Sprintf("its HorizontalPodAutoscaler %s does not exist: the replicas do not change", name)
	}
	if c := condition(h.Status.Conditions, "AbleToScale"); c != nil && c.Status == metav1.ConditionFalse {
		return fmt.Sprintf("its HorizontalPodAutoscaler %s cannot scale, %s: %s", name, c.Reason, c.Message)
	}
	if len(h.Status.Conditions) == 0 {
		if age := f.Now.Sub(h.Metadata.CreationTimestamp.Time); age > patience {
			return fmt.Sprintf("kube-controller-manager has not looked at its HorizontalPodAutoscaler %s in %d s: the replicas do not change", name, int(age.Seconds()))
		}
		return ""
	}
	if h.Status.DesiredReplicas == *a.Status.DesiredReplicas {
		return ""
	}
	v, err := f.view()
	if err != nil {
		return ""
	}
	for i := range v.Recent { // newest first
		e := &v.Recent[i]
		if e.Namespace != a.Namespace || e.Name != a.Name {
			continue
		}
		if e.Decision.Replicas == *a.Status.DesiredReplicas && f.Now.Sub(e.Decision.Time) > patience {
			return fmt.Sprintf("its HorizontalPodAutoscaler %s sets %d replicas, and the decision is %d since %s: kube-controller-manager does not sync it, or lacks the feature HPAConfigurableTolerance",
				name, h.Status.DesiredReplicas, e.Decision.Replicas, policy.Clock(e.Decision.Time))
		}
		break
	}
	return ""
}

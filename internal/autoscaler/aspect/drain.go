// SPDX-License-Identifier: Apache-2.0

package aspect

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/base/excerpt"
	"github.com/gpupilot/gpupilot/internal/base/fair"
	"github.com/gpupilot/gpupilot/internal/scale"
	evict "github.com/gpupilot/gpupilot/internal/scale/drain"
	"github.com/gpupilot/gpupilot/internal/scale/facts"
	"github.com/gpupilot/gpupilot/internal/scale/policy"
	"github.com/gpupilot/gpupilot/internal/scale/replica"
)

// The reasons of ConditionDraining. They are public.
const (
	reasonDraining   = "Draining"
	reasonGateFailed = "ReadinessGateNotWritten"
	reasonDisruption = "PodDisruptionBudget"
	reasonNoGate     = "NoReadinessGate"
	reasonNotCounted = "RequestsNotCounted"
	reasonGrace      = "GracePeriodTooShort"
	maxMessage       = 1024
	howToDeclare     = "readinessGates: [{conditionType: " + v1alpha1.ReadinessGate + "}]"
)

// gatesLag is the time within which the cache shows the readiness gates that were written.
const gatesLag = 2 * time.Second

// drain takes replicas out of the endpoints before they are removed (spec.drain).
type drain struct {
	None
	fleet           *Fleet
	backoff         Backoff   // after failed writes of readiness gates
	written         time.Time // when they were last written
	reason, message string    // of the condition; empty: there is none
}

// Decisions that are only advised take no replica out of the endpoints.
func (x *drain) Prepare(p *Pass) {
	if p.Plan.Actuation == v1alpha1.ActuationAdvise {
		p.Policy.Drain = 0
	}
	if p.Policy.Drain == 0 {
		return
	}
	x.fleet.Disruptions.apply(&p.Observation, p.Key.Namespace, &p.Units)
	for i := range p.Observation.Pods {
		p.Observation.Pods[i].Ordinal -= p.Target.First
	}
}

// Decided implements Aspect: it closes the readiness gates of the replicas that are to leave, and opens those of replicas that
// are to serve again.
func (x *drain) Decided(ctx context.Context, p *Pass) {
	failure := ""
	if len(p.Decision.Leave) > 0 || slices.ContainsFunc(p.Observation.Pods, func(r scale.Replica) bool { return r.Phase == scale.Leaving }) {
		failure = x.writeGates(ctx, p)
	}
	if x.reason = ""; p.Policy.Drain > 0 {
		x.reason, x.message = drainReason(p, failure)
	}
}

func (x *drain) Report(p *Pass) Part {
	out := Part{Unasked: p.Plan != nil && p.Plan.Policy.Drain == 0, Owns: []string{v1alpha1.ConditionDraining}}
	if p.Decision != nil && x.reason != "" {
		c := metav1.Condition{Type: v1alpha1.ConditionDraining, Status: metav1.ConditionFalse, Reason: x.reason, Message: excerpt.Of(x.message, maxMessage)}
		if c.Reason == reasonDraining {
			c.Status = metav1.ConditionTrue
		}
		out.Conditions = []metav1.Condition{c}
	}
	return out
}

// writeGates writes the readiness gates that differ from a decision. It returns the last
// error, for as long as writes fail.
func (x *drain) writeGates(ctx context.Context, p *Pass) (failure string) {
	if !x.fleet.Leading() {
		return ""
	}
	var claims []types.UID
	var closes, opens []*corev1.Pod
	for _, pod := range p.Units.Pods {
		phase, _ := replica.PhaseOf(pod)
		leave := phase != scale.Terminating && slices.Contains(p.Decision.Leave, pod.Name) && replica.Gated(&pod.Spec)
		switch {
		case leave && phase != scale.Leaving:
			closes = append(closes, pod)
		case !leave && phase == scale.Leaving:
			opens = append(opens, pod)
		}
		if leave {
			claims = append(claims, pod.UID)
		}
	}
	x.fleet.Gates.claim(claims, p.At)
	if len(closes)+len(opens) == 0 {
		x.backoff = Backoff{}
		return ""
	}
	if !x.backoff.HasEnded(p.At) || p.At.Sub(x.written) < gatesLag && x.backoff.Failures == 0 && len(opens) == 0 {
		return x.backoff.Message
	}
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	done, err := x.fleet.Writes.Acquire(ctx, fair.Request{Payer: fair.Namespace(p.Key.Namespace), Signal: true})
	if err != nil {
		return ""
	}
	defer done()
	if len(closes) > 0 && !p.UpToDate(ctx) {
		closes = nil
	}
	x.written = p.At
	if err := x.setGates(ctx, closes, opens); err != nil {
		if x.backoff.Failures == 0 {
			x.fleet.Log.Warn("cannot write a readiness gate", "gpuautoscaler", p.Key.String(), "err", err)
		}
		x.backoff.Extend(p.At, err.Error())
		return x.backoff.Message
	}
	x.backoff = Backoff{}
	return ""
}

// setGates returns the last error. Gates are opened first: requests wait for those replicas.
func (x *drain) setGates(ctx context.Context, closes, opens []*corev1.Pod) (failed error) {
	pods := slices.Concat(opens, closes)
	if len(pods) == 0 {
		return nil
	}
	var mu sync.Mutex
	err := x.fleet.Patches.Each(ctx, fair.Request{Payer: fair.Namespace(pods[0].Namespace), Signal: true}, len(pods), func(i int) {
		pod := pods[i]
		if err := x.fleet.Gates.write(ctx, pod.Namespace, pod.Name, pod.UID, i < len(opens)); err != nil {
			mu.Lock()
			failed = fmt.Errorf("pod %s: %w", pod.Name, err)
			mu.Unlock()
		}
	})
	return cmp.Or(failed, err)
}

// drainReason returns the reason and the message of ConditionDraining. They have no numbers of the load, because each change
// is written. failure is of the last write of a readiness gate.
func drainReason(p *Pass, failure string) (reason, message string) {
	if failure != "" {
		return reasonGateFailed, "a replica cannot leave the endpoints, and is removed after maxSeconds: " + failure
	}
	if p.Decision.Leaving > 0 {
		return reasonDraining, "replicas finish their requests before they are removed"
	}
	for i := range p.Decision.Steps {
		if name, ok := p.Decision.Steps[i].Facts.(facts.Disruption); ok {
			if name == "" {
				return reasonDisruption, "no replica is removed: PodDisruptionBudgets cannot be read (docs/drain.md)"
			}
			return reasonDisruption, fmt.Sprintf("no replica is removed: PodDisruptionBudget %s does not allow it", name)
		}
	}
	without := slices.IndexFunc(p.Units.Pods, func(x *corev1.Pod) bool { return !replica.Gated(&x.Spec) && !replica.Finished(x) })
	if without >= 0 {
		return reasonNoGate, "replicas are removed with their requests, because their pods do not declare the readiness gate. Add to the pod template: " + howToDeclare
	}
	counted := func(s policy.Source) bool { return len(s.InFlight) > 0 }
	if !slices.ContainsFunc(p.Plan.Sources, counted) {
		return reasonNotCounted, "no signal counts the requests in flight, so each replica leaves for maxSeconds. A preset of the server counts them"
	}
	if template := p.Target.Template.Pods; template != nil {
		if problem := replica.GraceProblem(template); problem != "" {
			return reasonGrace, problem
		}
	}
	return v1alpha1.ReasonNotDraining, "no replica leaves"
}

// maxBudgets bounds the PodDisruptionBudgets of a namespace that are evaluated. With more,
// what they allow is not known.
const maxBudgets = 64

// Disruptions knows the cluster's PodDisruptionBudgets. It is safe for concurrent use.
type Disruptions struct {
	mu          sync.RWMutex
	byNamespace map[string]map[string]budget
	listed      bool
}

type budget struct {
	selector labels.Selector
	allowed  int32
}

// SetListed says that all PodDisruptionBudgets were delivered once.
func (d *Disruptions) SetListed() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.listed = true
}

// Changed handles a change of a PodDisruptionBudget. One whose selector cannot be read
// covers every pod of its namespace.
func (d *Disruptions) Changed(b *policyv1.PodDisruptionBudget, gone bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if gone {
		delete(d.byNamespace[b.Namespace], b.Name)
		return
	}
	selector, err := metav1.LabelSelectorAsSelector(b.Spec.Selector)
	x := budget{selector, b.Status.DisruptionsAllowed}
	if err != nil {
		x = budget{labels.Everything(), 0}
	}
	if b.Status.ObservedGeneration < b.Generation { // as the Eviction API does
		x.allowed = 0
	}
	if d.byNamespace == nil {
		d.byNamespace = map[string]map[string]budget{}
	}
	if d.byNamespace[b.Namespace] == nil {
		d.byNamespace[b.Namespace] = map[string]budget{}
	}
	d.byNamespace[b.Namespace][b.Name] = x
}

// apply adds to an observation what PodDisruptionBudgets allow.
func (d *Disruptions) apply(o *scale.Observation, namespace string, units *replica.Units) {
	d.mu.RLock()
	defer d.mu.RUnlock()
	all := d.byNamespace[namespace]
	if !d.listed || len(all) > maxBudgets {
		o.DisruptionsLost = true
		return
	}
	if len(all) == 0 {
		return
	}
	byName := make(map[string]int, len(units.Pods))
	for at, pod := range units.Pods {
		byName[pod.Name] = at
	}
	for i := range o.Pods {
		r := &o.Pods[i]
		at, ok := byName[r.Name]
		if !ok {
			continue
		}
		for _, member := range units.Members(at) {
			for name, b := range all {
				if b.selector.Matches(labels.Set(member.Labels)) {
					r.Disrupts = append(r.Disrupts, name)
				}
			}
		}
		slices.Sort(r.Disrupts)
	}
	for name, b := range all {
		o.Disruptions = append(o.Disruptions, evict.Budget{Name: name, Allowed: b.allowed})
	}
	slices.SortFunc(o.Disruptions, func(a, b evict.Budget) int { return strings.Compare(a.Name, b.Name) })
}

// SPDX-License-Identifier: Apache-2.0

package aspect

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/autoscaler/observe"
	"github.com/gpupilot/gpupilot/internal/base/excerpt"
	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/scale"
	"github.com/gpupilot/gpupilot/internal/scale/policy"
	"github.com/gpupilot/gpupilot/internal/scale/replica"
	"github.com/gpupilot/gpupilot/internal/window/series"
	"github.com/gpupilot/gpupilot/internal/window/trust"
	"github.com/gpupilot/gpupilot/internal/window/view"
)

// maxPods bounds the names of the pods in a status.
const maxPods = 8

// idle removes the replicas that nobody uses (spec.idle).
type idle struct {
	None
	fleet   *Fleet
	said    *idleReport           // about the last decision; nil: the spec has no idle
	started bool                  // the stored status was read
	warned  bool                  // the Event about the present idleness was recorded
	asked   *v1alpha1.IdleRemoval // a scale-down that was decided and is not observed yet
	removed *v1alpha1.IdleRemoval // the last one
}

// idleReport says whether a workload is in use.
type idleReport struct {
	decision  *scale.Decision
	policy    scale.Policy
	activated bool // a signal can end the idleness
	removed   *v1alpha1.IdleRemoval
}

func (k *idle) Prepare(p *Pass) {
	if p.Policy.Idle.After > 0 {
		useReader{Store: k.fleet.Store, Devices: k.fleet.Devices, Pods: p.Reader}.Read(&p.Observation, &p.Units, p.Plan.Sources)
	}
}

func (k *idle) Decided(_ context.Context, p *Pass) {
	k.said = k.observe(&p.Policy, p.Decision, p.Object)
}

func (k *idle) Report(p *Pass) Part {
	said := k.said
	out := Part{Unasked: p.Plan != nil && p.Plan.Policy.Idle.After == 0, Owns: []string{v1alpha1.ConditionIdle}}
	if p.Decision == nil || said == nil {
		if !out.Unasked && !p.Blocked {
			out.Status = func(st, last *v1alpha1.GPUAutoscalerStatus) { st.Idle = last.Idle }
		}
		return out
	}
	out.Conditions, out.Notices = []metav1.Condition{said.condition()}, k.notices(said, k.fleet.Leading())
	out.Status = func(st, _ *v1alpha1.GPUAutoscalerStatus) { st.Idle = said.status() }
	out.View = func(v *view.Workload) { v.Idle = said.line() }
	return out
}

// recalled is a scale-down as a status has it, of the size that was written.
func recalled(x *v1alpha1.IdleRemoval) *v1alpha1.IdleRemoval {
	if x == nil {
		return nil
	}
	out := *x
	out.Pods = nil
	for _, name := range x.Pods[:min(len(x.Pods), maxPods)] {
		out.Pods = append(out.Pods, excerpt.Of(name, view.MaxName))
	}
	return &out
}

// observe returns the report about a decision by a policy. a has the status that the previous
// leader wrote.
func (k *idle) observe(p *scale.Policy, d *scale.Decision, a *v1alpha1.GPUAutoscaler) *idleReport {
	if p.Idle.After <= 0 {
		*k = idle{fleet: k.fleet}
		return nil
	}
	if !k.started {
		c := meta.FindStatusCondition(a.Status.Conditions, v1alpha1.ConditionIdle)
		k.started, k.warned = true, c != nil && (c.Reason == v1alpha1.ReasonIdleSoon || c.Reason == v1alpha1.ReasonIdleDown)
		if s := a.Status.Idle; s != nil {
			k.removed = recalled(s.Removed)
		}
	}
	switch u := &d.Idle; {
	case u.Down && d.Replicas < d.Current:
		if k.asked == nil {
			k.asked = &v1alpha1.IdleRemoval{From: d.Current}
		}
		k.asked.To, k.asked.GPUs, k.asked.Time = d.Replicas, (k.asked.From-d.Replicas)*p.GPUsPerReplica, metav1.Time{Time: d.Time.Truncate(time.Second)}
		for _, name := range d.Victims {
			if len(k.asked.Pods) < maxPods && !slices.Contains(k.asked.Pods, name) {
				k.asked.Pods = append(k.asked.Pods, name)
			}
		}
	case k.asked != nil && u.Down && d.Current <= k.asked.To:
		k.removed, k.asked = k.asked, nil
	case !u.Down:
		k.asked = nil
	}
	r := &idleReport{decision: d, policy: *p, removed: k.removed}
	for i := range p.Signals {
		r.activated = r.activated || p.Signals[i].Activation != nil
	}
	return r
}

// notices returns the Event that announces a scale-down, once for each.
func (k *idle) notices(r *idleReport, leading bool) []Notice {
	switch {
	case !leading:
		k.started = false // another leader records it
		return nil
	case !r.decision.Idle.Soon:
		k.warned = k.warned && r.decision.Idle.Down
		return nil
	case k.warned:
		return nil
	}
	k.warned = true
	return []Notice{{Kind: corev1.EventTypeWarning, Reason: v1alpha1.ReasonIdleSoon, Action: "Scale", Note: r.condition().Message}}
}

// at is when replicas are removed, to the second.
func (r *idleReport) at() time.Time {
	return r.decision.Time.Add(r.decision.Idle.Left + time.Second - 1).Truncate(time.Second)
}

// status returns the part of the status about a workload that nobody uses; nil: there is
// nothing to say.
func (r *idleReport) status() *v1alpha1.IdleStatus {
	if r.removed == nil && !r.decision.Idle.Soon {
		return nil
	}
	out := &v1alpha1.IdleStatus{Removed: r.removed}
	if r.decision.Idle.Soon {
		out.ScaleDownAt = &metav1.Time{Time: r.at()}
	}
	return out
}

// condition returns ConditionIdle. Its message has no numbers of the load, because each
// change of it is written.
func (r *idleReport) condition() metav1.Condition {
	c := metav1.Condition{Type: v1alpha1.ConditionIdle, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonIdleInUse}
	p, u := r.policy.Idle, &r.decision.Idle
	switch {
	case u.Down:
		c.Status, c.Reason = metav1.ConditionTrue, v1alpha1.ReasonIdleDown
		c.Message = fmt.Sprintf("%[2]s: nobody used it for %[1]s. %[3]s", length(p.After), replicas(p.To), r.back())
	case u.Soon:
		c.Status, c.Reason = metav1.ConditionTrue, v1alpha1.ReasonIdleSoon
		c.Message = fmt.Sprintf("nobody uses it: no GPU is active and no request in flight. %s at %s, unless somebody uses it, scales it up or holds it (gpupilot hold)",
			replicas(p.To), policy.Clock(r.at()))
	case u.Blind:
		c.Status, c.Reason = metav1.ConditionUnknown, v1alpha1.ReasonIdleUnknown
		c.Message = fmt.Sprintf("pod %s has no value of its GPUs or of its requests, so the workload does not count as idle", u.Without)
	default:
		c.Message = fmt.Sprintf("it is in use, or was in the last %s", length(p.After))
	}
	return c
}

// back says how a workload gets its replicas back.
func (r *idleReport) back() string {
	how := "To go on, scale it up, such as with kubectl scale --replicas=1"
	switch {
	case r.policy.Idle.To > 0:
		return "A GPU that becomes active, or a request, ends that; so does kubectl scale"
	case r.activated:
		return how + "; a signal above its activation does so, too"
	}
	return how
}

func replicas(n int32) string {
	if n == 1 {
		return "1 replica stays"
	}
	return fmt.Sprintf("%d replicas stay", n)
}

// line says that a workload is idle, for the page; empty: it is in use.
func (r *idleReport) line() string {
	u := &r.decision.Idle
	switch {
	case u.Down && r.removed != nil:
		return fmt.Sprintf("%d replicas with %d GPUs were removed at %s: nobody used them for %s", r.removed.From-r.removed.To, r.removed.GPUs, policy.Clock(r.removed.Time.Time), length(r.policy.Idle.After))
	case u.Down || u.Soon:
		return r.condition().Message
	}
	return ""
}

// length formats a duration of the spec.
func length(d time.Duration) string {
	switch {
	case d%(24*time.Hour) == 0 && d > 24*time.Hour:
		return fmt.Sprintf("%d days", d/(24*time.Hour))
	case d%time.Hour == 0:
		return fmt.Sprintf("%d h", d/time.Hour)
	case d%time.Minute == 0:
		return fmt.Sprintf("%d min", d/time.Minute)
	}
	return d.String()
}

const (
	// lookBack is how far back values count, so that use between two decisions is seen.
	lookBack = 5 * time.Second
	// idleRatio is the share of the time up to which the engines of a MIG instance are idle:
	// DCGM reports less than a thousandth for one that does nothing.
	idleRatio = 0.005
)

// ActivityFields are the GPUs' fields that say whether they are active: the first that a GPU has. MIG
// instances have no utilisation.
var ActivityFields = []gpu.FieldID{gpu.GPUUtil, gpu.GREngineActive}

// useReader reads whether replicas are in use at one moment.
type useReader struct {
	Store   *series.Store
	Devices *trust.Devices
	Pods    observe.Reader
}

// Read sets Used of the observation's replicas. It is absent for a replica of which a GPU has
// no value, or whose server counts requests and shows none: missing is not idle.
func (v useReader) Read(o *scale.Observation, units *replica.Units, sources []policy.Source) {
	members := map[string][]*corev1.Pod{}
	for i, pod := range units.Pods {
		members[pod.Name] = units.Members(i)
	}
	for i := range o.Pods {
		r := &o.Pods[i]
		r.Used = v.gpusOf(members[r.Name])
		for k := range r.Arrivals { // a request may come and go between two readings
			if a := &r.Arrivals[k]; a.OK && a.Value > 0 {
				r.Used = either(r.Used, scale.Reading{Value: 1, At: a.At, OK: true})
			}
		}
		for k := range sources {
			if len(sources[k].InFlight) > 0 && len(members[r.Name]) > 0 {
				r.Used = either(r.Used, v.Pods.RequestsOf(members[r.Name][0], &sources[k]))
			}
		}
		if r.Used.At.IsZero() {
			r.Used.OK = false // neither GPUs nor requests
		}
	}
}

// gpusOf returns whether a GPU of these pods is active. Its time is zero if they hold none.
func (v useReader) gpusOf(pods []*corev1.Pod) (out scale.Reading) {
	out.OK = len(pods) > 0
	for _, pod := range pods {
		n, known := v.Devices.InUse(pod)
		if known && n == 0 {
			continue
		}
		out = either(out, v.gpusOfPod(pod, n, known))
	}
	return out
}

// gpusOfPod returns whether one of the n GPUs of a pod is active.
func (v useReader) gpusOfPod(pod *corev1.Pod, n int, known bool) scale.Reading {
	holder := v.Devices.Holder(pod)
	var seen map[string]scale.Reading
	for _, f := range ActivityFields {
		var w series.Window
		r := v.Store.FieldReader(f, v.Pods.Now, v.Pods.MaxAge)
		r.WindowOn(&w, &holder, v.Pods.Now.Add(-lookBack))
		if seen == nil {
			seen = make(map[string]scale.Reading, len(w.Devices))
		}
		for i := range w.Devices {
			d := &w.Devices[i]
			newest, ok := d.Newest()
			if _, done := seen[d.Device]; done || !ok {
				continue
			}
			x := scale.Reading{At: newest.At, OK: true, MaxAge: w.MaxAge}
			for _, s := range d.Samples {
				if isActive(f, s.Value) {
					x.Value = 1
				}
			}
			seen[d.Device] = x
		}
	}
	out := scale.Reading{OK: true}
	for _, x := range seen {
		out = either(out, x)
	}
	if out.Value == 0 && (!known || len(seen) < n) {
		return scale.Reading{} // a GPU without a value may be active
	}
	return out
}

func isActive(f gpu.FieldID, v float64) bool {
	if f == gpu.GREngineActive {
		return v > idleRatio
	}
	return gpu.IsActive(v)
}

// either combines two readings: what is in use is so whatever else is not known. A zero time
// means that there is nothing to read.
func either(a, b scale.Reading) scale.Reading {
	switch {
	case a.OK && a.Value > 0:
		return a
	case b.OK && b.Value > 0:
		return b
	case !a.OK || !b.OK:
		return scale.Reading{}
	case a.At.IsZero() || !b.At.IsZero() && b.At.Before(a.At):
		return b
	}
	return a
}

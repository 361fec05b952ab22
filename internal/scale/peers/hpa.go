// SPDX-License-Identifier: Apache-2.0

package peers

import "math"

// Kind is the type of a HorizontalPodAutoscaler's metric and target.
type Kind uint8

// The kinds of metrics.
const (
	PodsAverage     Kind = iota // type Pods, an AverageValue: the mean over pods
	ObjectValue                 // type Object, a Value: one number for all of the ready pods
	ExternalAverage             // type External, an AverageValue: one number, divided by status.replicas; also KEDA's
)

// HPA models the HorizontalPodAutoscaler of Kubernetes 1.37 with one metric and with
// behavior (Up and Down; DefaultUp and DefaultDown are the API server's defaults).
// It scales between Min, at least 1, and Max. Scaling to and from zero is not
// modelled. The unexported fields are zero in a new HPA.
//
// Amounts are whole thousandths, as in the real HPA, which rounds averages down.
type HPA struct {
	Kind        Kind
	MilliTarget int64
	Min, Max    int
	Up, Down    Rules

	hasSynced            bool
	recommendations      []timedCount // before stabilisation
	scaleUps, scaleDowns []timedCount // changes of the replicas, for the rate policies
}

// Rules are one direction of an HPA's behavior.
type Rules struct {
	Tolerance float64
	Window    int // stabilisation, seconds
	Policies  []RatePolicy
	Select    Select
}

// RatePolicy limits the change of the replicas to Value within Period seconds.
type RatePolicy struct {
	Percent       bool // Value is a percentage of the replicas at the start of the period, else a number of pods
	Value, Period int
}

// Select is the choice among several rate policies.
type Select uint8

// The ways to select.
const (
	MaxChange Select = iota // the policy that allows the largest change
	MinChange               // the policy that allows the smallest change
	Disabled                // the replicas do not change in this direction
)

// DefaultUp returns the API server's default rules for scaling up.
func DefaultUp() Rules {
	return Rules{Tolerance: defaultTolerance, Policies: []RatePolicy{{Value: 4, Period: 15}, {Percent: true, Value: 100, Period: 15}}}
}

// DefaultDown returns the API server's default rules for scaling down.
func DefaultDown() Rules {
	return Rules{Tolerance: defaultTolerance, Window: 300, Policies: []RatePolicy{{Percent: true, Value: 100, Period: 15}}}
}

// SyncSeconds is kube-controller-manager's horizontal-pod-autoscaler-sync-period, in seconds.
const SyncSeconds = 15

// defaultTolerance is kube-controller-manager's horizontal-pod-autoscaler-tolerance.
const defaultTolerance = 0.1

// Reading holds the values that an HPA reads at a sync.
type Reading struct {
	Spec   int // spec.replicas of the scale
	Status int // status.replicas
	Pods   []Pod

	// Milli is the value of the object or external metric; valid only if HasValue.
	Milli    int64
	HasValue bool
}

// Pod is the state of a pod that an HPA uses.
type Pod struct {
	Terminating bool // or failed
	Pending     bool // the phase is Pending, else Running
	Ready       bool
	HasSample   bool `json:"Told"` // Milli is valid; recorded questions have the key Told
	Milli       int64
}

// timedCount is a number of replicas at a second.
type timedCount struct{ at, n int }

// Metric is one of several metrics of an HPA.
type Metric struct {
	Kind        Kind
	MilliTarget int64
}

// Sync returns the replicas that the HPA sets at second now. now must not decrease
// from one call to the next.
func (h *HPA) Sync(now int, r *Reading) int {
	return h.sync(now, r, func() (int, bool) { return h.proposeReplicas(r) })
}

// SyncAll is Sync with several metrics and a reading of each: the highest proposal counts.
// If a metric has no value, the others only scale up.
func (h *HPA) SyncAll(now int, metrics []Metric, readings []Reading) int {
	return h.sync(now, &readings[0], func() (highest int, any bool) {
		missing := false
		for i, m := range metrics {
			h.Kind, h.MilliTarget = m.Kind, m.MilliTarget
			n, ok := h.proposeReplicas(&readings[i])
			if !ok {
				missing = true
				continue
			}
			highest, any = max(highest, n), true
		}
		return highest, any && (!missing || highest >= readings[0].Spec)
	})
}

// sync bounds what the metrics propose.
func (h *HPA) sync(now int, r *Reading, propose func() (int, bool)) int {
	if !h.hasSynced { // the current replicas prevent a scale-down before the window has passed
		h.hasSynced, h.recommendations = true, append(h.recommendations, timedCount{now, r.Spec})
	}
	var desired int
	switch {
	case r.Spec == 0: // scaled to zero by a user: the HPA is disabled
		return 0
	case r.Spec > h.Max:
		desired = h.Max
	case r.Spec < h.Min:
		desired = h.Min
	default:
		proposed, ok := propose()
		if !ok {
			return r.Spec
		}
		desired = h.applyLimits(now, r.Spec, h.stabilize(now, r.Spec, max(proposed, 0)))
	}
	switch change := desired - r.Spec; {
	case change > 0:
		h.scaleUps = appendTimed(h.scaleUps, timedCount{now, change}, now-longestPeriod(h.Up.Policies))
	case change < 0:
		h.scaleDowns = appendTimed(h.scaleDowns, timedCount{now, -change}, now-longestPeriod(h.Down.Policies))
	}
	return desired
}

// proposeReplicas is the HPA's replica calculator. ok is false if there is no value.
func (h *HPA) proposeReplicas(r *Reading) (int, bool) {
	switch {
	case h.Kind == PodsAverage:
		return h.podsReplicas(r)
	case !r.HasValue:
		return 0, false
	case h.Kind == ObjectValue:
		return h.objectReplicas(r)
	default:
		return h.externalReplicas(r), true
	}
}

// isWithinTolerance reports whether the ratio is within tolerance of the target.
func (h *HPA) isWithinTolerance(ratio float64) bool {
	return 1-h.Down.Tolerance <= ratio && ratio <= 1+h.Up.Tolerance
}

// ratioToTarget returns the mean of the pods divided by the target.
func (h *HPA) ratioToTarget(sum int64, pods int) float64 {
	return float64(sum/int64(pods)) / float64(h.MilliTarget)
}

// podsReplicas is the replica calculator for plain pod metrics. When scaling up,
// pods that are Pending or without a sample count as 0. When scaling down, pods
// without a sample count as the target. All other pods count in full, ready or not.
func (h *HPA) podsReplicas(r *Reading) (int, bool) {
	var sampled, pending, missing int
	var sum int64
	for i := range r.Pods {
		switch p := &r.Pods[i]; {
		case p.Terminating:
		case p.Pending:
			pending++
		case !p.HasSample:
			missing++
		default:
			sampled++
			sum += p.Milli
		}
	}
	if sampled == 0 {
		return 0, false
	}
	ratio := h.ratioToTarget(sum, sampled)
	n, up := sampled, pending > 0 && ratio > 1
	if !up && missing == 0 {
		if h.isWithinTolerance(ratio) {
			return r.Spec, true
		}
		return roundUp(ratio * float64(n)), true
	}
	if ratio < 1 {
		sum += h.MilliTarget * int64(missing)
	}
	if ratio != 1 {
		n += missing
	}
	if up {
		n += pending
	}
	corrected := h.ratioToTarget(sum, n)
	if h.isWithinTolerance(corrected) || ratio < 1 && corrected > 1 || ratio > 1 && corrected < 1 {
		return r.Spec, true
	}
	desired := roundUp(corrected * float64(n))
	if corrected < 1 && desired > r.Spec || corrected > 1 && desired < r.Spec {
		return r.Spec, true
	}
	return desired, true
}

// objectReplicas is the calculator for a Value target: the ratio to the target, times
// the pods that are Running and Ready, terminating or not.
func (h *HPA) objectReplicas(r *Reading) (int, bool) {
	ratio := float64(r.Milli) / float64(h.MilliTarget)
	if h.isWithinTolerance(ratio) {
		return r.Spec, true
	}
	ready := 0
	for i := range r.Pods {
		if p := &r.Pods[i]; p.Ready && !p.Pending {
			ready++
		}
	}
	return roundUp(ratio * float64(ready)), len(r.Pods) > 0
}

// externalReplicas is the calculator for an external AverageValue, which ignores pods.
func (h *HPA) externalReplicas(r *Reading) int {
	value, target := float64(r.Milli), float64(h.MilliTarget)
	if h.isWithinTolerance(value / (target * float64(r.Status))) {
		return r.Status
	}
	return roundUp(value / target)
}

// roundUp rounds up as the calculator does: rounding errors of a division count.
func roundUp(x float64) int { return int(math.Ceil(min(x, math.MaxInt32))) }

// stabilize returns the number of replicas nearest to current that lies between the
// lowest recommendation of the up window and the highest of the down window.
func (h *HPA) stabilize(now, current, desired int) int {
	least, most := desired, desired
	for _, r := range h.recommendations {
		if now-r.at < h.Up.Window {
			least = min(least, r.n)
		}
		if now-r.at < h.Down.Window {
			most = max(most, r.n)
		}
	}
	h.recommendations = appendTimed(h.recommendations, timedCount{now, desired}, now-max(h.Up.Window, h.Down.Window))
	return min(max(current, least), most)
}

// applyLimits applies the bounds and the rate policies.
func (h *HPA) applyLimits(now, current, desired int) int {
	switch {
	case desired > current:
		return min(desired, h.Max, max(current, h.rateLimit(&h.Up, now, current, 1)))
	case desired < current:
		return max(desired, h.Min, min(current, h.rateLimit(&h.Down, now, current, -1)))
	}
	return desired
}

// rateLimit returns the replicas that the rate policies allow, up (sign 1) or down (-1).
func (h *HPA) rateLimit(rules *Rules, now, current, sign int) int {
	if rules.Select == Disabled {
		return current
	}
	furthest := 0
	for i, p := range rules.Policies {
		start := current - sumSince(h.scaleUps, now-p.Period) + sumSince(h.scaleDowns, now-p.Period)
		n := start + sign*p.Value
		if p.Percent {
			x := float64(start) * (1 + float64(sign)*float64(p.Value)/100)
			if n = int(x); sign > 0 {
				n = roundUp(x)
			}
		}
		if further := sign*n > sign*furthest; i == 0 || further == (rules.Select == MaxChange) {
			furthest = n
		}
	}
	return furthest
}

// sumSince returns the sum of the events after second since.
func sumSince(events []timedCount, since int) (n int) {
	for _, e := range events {
		if e.at > since {
			n += e.n
		}
	}
	return n
}

// appendTimed appends x, or replaces the last entry that is older than second before.
func appendTimed(list []timedCount, x timedCount, before int) []timedCount {
	for i := len(list) - 1; i >= 0; i-- {
		if list[i].at < before {
			list[i] = x
			return list
		}
	}
	return append(list, x)
}

func longestPeriod(policies []RatePolicy) (seconds int) {
	for _, p := range policies {
		seconds = max(seconds, p.Period)
	}
	return seconds
}

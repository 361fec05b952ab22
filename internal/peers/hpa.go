// SPDX-License-Identifier: Apache-2.0

package peers

import "math"

// Kind is how a HorizontalPodAutoscaler counts its metric.
type Kind uint8

// The kinds of metrics.
const (
	PodsAverage     Kind = iota // type Pods, an AverageValue: the mean over pods
	ObjectValue                 // type Object, a Value: one number for all of the ready pods
	ExternalAverage             // type External, an AverageValue: one number, divided by status.replicas; also KEDA's
)

// HPA is the HorizontalPodAutoscaler of Kubernetes 1.37 with one metric and with
// behavior (Up and Down; DefaultUp and DefaultDown are what the API server fills
// in). It scales between Min, at least 1, and Max: the ways to zero and back are
// not modelled. The zero value of what is not exported is an HPA just created.
//
// Amounts are whole thousandths, as the real one's: it rounds averages down to them.
type HPA struct {
	Kind        Kind
	MilliTarget int64
	Min, Max    int
	Up, Down    Rules

	begun       bool
	recommended []stamped // before they were stabilised
	ups, downs  []stamped // changes of the replicas, for the rate policies
}

// Rules are one direction of an HPA's behavior.
type Rules struct {
	Tolerance float64
	Window    int // stabilisation, seconds
	Policies  []RatePolicy
	Select    Select
}

// RatePolicy lets the replicas change by so much within so many seconds.
type RatePolicy struct {
	Percent       bool // of the replicas at the period's beginning; else pods
	Value, Period int
}

// Select says which of several rate policies counts.
type Select uint8

// The ways to select.
const (
	MaxChange Select = iota // the one that allows most
	MinChange               // the one that allows least
	Disabled                // the replicas do not change in this direction
)

// DefaultUp is what a behavior means for the way up where it says nothing.
func DefaultUp() Rules {
	return Rules{Tolerance: defaultTolerance, Policies: []RatePolicy{{Value: 4, Period: 15}, {Percent: true, Value: 100, Period: 15}}}
}

// DefaultDown is what a behavior means for the way down where it says nothing.
func DefaultDown() Rules {
	return Rules{Tolerance: defaultTolerance, Window: 300, Policies: []RatePolicy{{Percent: true, Value: 100, Period: 15}}}
}

// defaultTolerance is kube-controller-manager's horizontal-pod-autoscaler-tolerance.
const defaultTolerance = 0.1

// Reading is what an HPA reads when it syncs.
type Reading struct {
	Spec   int // spec.replicas of the scale
	Status int // status.replicas
	Pods   []Pod

	// Milli is the object's or the external metric's value; there is none
	// unless Told.
	Milli int64
	Told  bool
}

// Pod is a pod as an HPA sees it.
type Pod struct {
	Terminating bool // or failed
	Pending     bool // its phase, else Running
	Ready       bool
	Told        bool // there is a sample of it
	Milli       int64
}

type stamped struct{ at, n int }

// Sync returns the replicas that an HPA sets that looks at second now. Seconds
// do not decrease from one call to the next.
func (h *HPA) Sync(now int, r *Reading) int {
	if !h.begun { // so as not to go down before it has seen a window
		h.begun, h.recommended = true, append(h.recommended, stamped{now, r.Spec})
	}
	var desired int
	switch {
	case r.Spec == 0: // somebody else's wish: disabled
		return 0
	case r.Spec > h.Max:
		desired = h.Max
	case r.Spec < h.Min:
		desired = h.Min
	default:
		proposed, ok := h.metric(r)
		if !ok {
			return r.Spec
		}
		desired = h.limit(now, r.Spec, h.stabilize(now, r.Spec, max(proposed, 0)))
	}
	switch change := desired - r.Spec; {
	case change > 0:
		h.ups = keep(h.ups, stamped{now, change}, now-longest(h.Up.Policies))
	case change < 0:
		h.downs = keep(h.downs, stamped{now, -change}, now-longest(h.Down.Policies))
	}
	return desired
}

// metric is the replica calculator.
func (h *HPA) metric(r *Reading) (int, bool) {
	switch {
	case h.Kind == PodsAverage:
		return h.pods(r)
	case !r.Told:
		return 0, false
	case h.Kind == ObjectValue:
		return h.object(r)
	default:
		return h.external(r), true
	}
}

// within says whether a ratio to the target is none that is acted upon.
func (h *HPA) within(ratio float64) bool {
	return 1-h.Down.Tolerance <= ratio && ratio <= 1+h.Up.Tolerance
}

// ratio is a mean's to the target.
func (h *HPA) ratio(sum int64, pods int) float64 {
	return float64(sum/int64(pods)) / float64(h.MilliTarget)
}

// pods is the replica calculator for plain metrics of pods: those that are
// Pending count as nothing on the way up, those without a sample as nothing on
// the way up and as the target on the way down, all others in full, ready or not.
func (h *HPA) pods(r *Reading) (int, bool) {
	var told, pending, missing int
	var sum int64
	for i := range r.Pods {
		switch p := &r.Pods[i]; {
		case p.Terminating:
		case p.Pending:
			pending++
		case !p.Told:
			missing++
		default:
			told++
			sum += p.Milli
		}
	}
	if told == 0 {
		return 0, false
	}
	ratio := h.ratio(sum, told)
	n, up := told, pending > 0 && ratio > 1
	if !up && missing == 0 {
		if h.within(ratio) {
			return r.Spec, true
		}
		return ceil(ratio * float64(n)), true
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
	again := h.ratio(sum, n)
	if h.within(again) || ratio < 1 && again > 1 || ratio > 1 && again < 1 {
		return r.Spec, true
	}
	desired := ceil(again * float64(n))
	if again < 1 && desired > r.Spec || again > 1 && desired < r.Spec {
		return r.Spec, true
	}
	return desired, true
}

// object is the calculator for a Value: its ratio to the target, times the pods
// that are Running and Ready, whether or not they terminate.
func (h *HPA) object(r *Reading) (int, bool) {
	ratio := float64(r.Milli) / float64(h.MilliTarget)
	if h.within(ratio) {
		return r.Spec, true
	}
	ready := 0
	for i := range r.Pods {
		if p := &r.Pods[i]; p.Ready && !p.Pending {
			ready++
		}
	}
	return ceil(ratio * float64(ready)), len(r.Pods) > 0
}

// external is the calculator for an AverageValue: pods are not looked at.
func (h *HPA) external(r *Reading) int {
	value, target := float64(r.Milli), float64(h.MilliTarget)
	if h.within(value / (target * float64(r.Status))) {
		return r.Status
	}
	return ceil(value / target)
}

// ceil is the calculator's, which rounds up what a division left over as well.
func ceil(x float64) int { return int(math.Ceil(min(x, math.MaxInt32))) }

// stabilize brings the replicas as near to those there are as the
// recommendations of the windows allow.
func (h *HPA) stabilize(now, current, desired int) int {
	least, most := desired, desired
	for _, r := range h.recommended {
		if now-r.at < h.Up.Window {
			least = min(least, r.n)
		}
		if now-r.at < h.Down.Window {
			most = max(most, r.n)
		}
	}
	h.recommended = keep(h.recommended, stamped{now, desired}, now-max(h.Up.Window, h.Down.Window))
	return min(max(current, least), most)
}

// limit holds the replicas to what the bounds and the rate policies allow.
func (h *HPA) limit(now, current, desired int) int {
	switch {
	case desired > current:
		return min(desired, h.Max, max(current, h.allowed(&h.Up, now, current, 1)))
	case desired < current:
		return max(desired, h.Min, min(current, h.allowed(&h.Down, now, current, -1)))
	}
	return desired
}

// allowed is how far the rate policies let the replicas go, up (1) or down (-1).
func (h *HPA) allowed(rules *Rules, now, current, sign int) int {
	if rules.Select == Disabled {
		return current
	}
	furthest := 0
	for i, p := range rules.Policies {
		start := current - changes(h.ups, now-p.Period) + changes(h.downs, now-p.Period)
		n := start + sign*p.Value
		if p.Percent {
			x := float64(start) * (1 + float64(sign)*float64(p.Value)/100)
			if n = int(x); sign > 0 {
				n = ceil(x)
			}
		}
		if further := sign*n > sign*furthest; i == 0 || further == (rules.Select == MaxChange) {
			furthest = n
		}
	}
	return furthest
}

// changes are the sum of those since.
func changes(events []stamped, since int) (n int) {
	for _, e := range events {
		if e.at > since {
			n += e.n
		}
	}
	return n
}

// keep adds to a list, in the place of the last entry that is from before.
func keep(list []stamped, x stamped, before int) []stamped {
	for i := len(list) - 1; i >= 0; i-- {
		if list[i].at < before {
			list[i] = x
			return list
		}
	}
	return append(list, x)
}

func longest(policies []RatePolicy) (seconds int) {
	for _, p := range policies {
		seconds = max(seconds, p.Period)
	}
	return seconds
}

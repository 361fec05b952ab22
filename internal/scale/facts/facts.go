// SPDX-License-Identifier: Apache-2.0

// Package facts has the numbers behind the steps of a decision: a type for each rule, with its
// sentence for a person on call. Like package scale it is pure.
package facts

import (
	"fmt"
	"math"
	"time"

	"github.com/gpupilot/gpupilot/internal/scale/words"
)

// Facts are the numbers behind one step: one of the types of this package.
type Facts interface{ sentence(c Change) string }

// Sentence describes a step for a person on call. Status, events, the web page and the CLI show it.
func Sentence(f Facts, c Change) string { return f.sentence(c) }

// Change is what a step does to the wanted number of replicas.
type Change struct {
	Signal        string // empty: it is a step of the workload
	Before, After int32
	MostOf        int32 // as of scale.Step
}

func (c Change) instead() string { return fmt.Sprintf("%d instead of %d", c.After, c.Before) }

func (c Change) most() string {
	if c.MostOf > 1 {
		return fmt.Sprintf(", the most of %d signals", c.MostOf)
	}
	return ""
}

// Replicas is a demand in whole replicas. It rounds up, ignoring the rounding error of a division.
func Replicas(x float64) int32 {
	const most = math.MaxInt32 / 2
	if x > most || math.IsNaN(x) {
		return most
	}
	return int32(max(0, math.Ceil(x-1e-9)))
}

// Pending are replicas that do not serve yet.
type Pending struct {
	Starting, Stuck int32         // Stuck: unschedulable, or starting for too long
	Wait            time.Duration // until they serve; 0: not known
}

func (p Pending) String() string {
	out := fmt.Sprintf("%d starting", p.Starting)
	if p.Wait > 0 {
		out += fmt.Sprintf(" (ready in about %s)", words.Duration(p.Wait))
	}
	if p.Stuck > 0 {
		out += fmt.Sprintf(", %d stuck", p.Stuck)
	}
	return out
}

// The facts of replicas that start.
type (
	// NotServing are the replicas of a workload of which none serves.
	NotServing struct{ Pending }
	// Starting are replicas that were added: no other is removed while they start.
	Starting struct{ Pending }
	// Replaced are replicas that start in place of others of Of: others than they would be removed.
	Replaced struct{ N, Of int32 }
	// Rollout is a rollout during which too few replicas serve.
	Rollout struct {
		Serving int32
		Pending
	}
)

func (f NotServing) sentence(c Change) string {
	return fmt.Sprintf("keep %d: no replica serves yet, %s", c.After, f.Pending)
}

func (f Starting) sentence(c Change) string {
	return fmt.Sprintf("keep %s until those that start serve: %s", c.instead(), f.Pending)
}

func (f Replaced) sentence(c Change) string {
	return fmt.Sprintf("keep %s: %s, and a scale-down would remove others", c.instead(), words.Replaced(f.N, f.Of))
}

func (f Rollout) sentence(c Change) string {
	if f.Serving > 0 {
		return fmt.Sprintf("keep %s until enough serve: a rollout is in progress, %d serving, %s", c.instead(), f.Serving, f.Pending)
	}
	return fmt.Sprintf("keep %s until one serves: a rollout is in progress, none serving, %s", c.instead(), f.Pending)
}

// Reading is the mean of a signal over the replicas that serve.
type Reading struct {
	Serving int32
	Value   float64
	Unit    string
}

func (r Reading) String() string {
	return fmt.Sprintf("%d serving at %s are saturated", r.Serving, words.Quantity(r.Value, r.Unit))
}

// The facts of a signal with values, beside Demand.
type (
	// Tolerance is the relative deviation from the target that changes nothing.
	Tolerance float64
	// Forecast is a demand once a new replica serves, after Wait.
	Forecast struct {
		Demand float64
		Wait   time.Duration
	}
	// Saturated is a signal at its ceiling, which asks for a probe.
	Saturated struct{ Reading }
	// Awaited are starting replicas that a signal at its ceiling waits for.
	Awaited struct {
		Reading
		Pending
	}
	// Reduced is a signal at its ceiling because of a rollout.
	Reduced struct{ Reading }
	// Measuring is a signal whose cost of a token is not known yet.
	Measuring struct{}
	// Settling is a load that is not spread over the replicas yet.
	Settling struct{}
	// Partial are the serving replicas with a value.
	Partial struct {
		Fresh, Serving int32
		Without        string // a replica that should have one, and has none
	}
)

func (f Tolerance) sentence(c Change) string {
	return fmt.Sprintf("%s is within %s of %s: no change", c.Signal, words.Percent(float64(f)), words.Replicas(c.After))
}

func (f Forecast) sentence(c Change) string {
	return fmt.Sprintf("%s is forecast to need %s replicas in %s, when a new replica serves: %d", c.Signal, words.Quantity(f.Demand, ""), words.Duration(f.Wait), c.After)
}

func (f Saturated) sentence(c Change) string {
	return fmt.Sprintf("try %d: %s, so the load may need more", c.After, f.Reading)
}

func (f Awaited) sentence(c Change) string {
	return fmt.Sprintf("keep %d until those that start serve: %s, so the load may need more; %s", c.After, f.Reading, f.Pending)
}

func (f Reduced) sentence(c Change) string {
	return fmt.Sprintf("%d, and do not try more: %s because a rollout lets fewer serve", c.After, f.Reading)
}

func (Measuring) sentence(c Change) string {
	return fmt.Sprintf("keep %d: %s measures for a few seconds how much of a replica a token uses", c.After, c.Signal)
}

func (Settling) sentence(c Change) string {
	return fmt.Sprintf("keep %d, and not the %d of this signal, until the load has spread: the number of serving replicas has just changed", c.After, c.Before)
}

func (f Partial) sentence(c Change) string {
	without := ""
	if f.Without != "" {
		without = fmt.Sprintf(" (%s has none)", f.Without)
	}
	return fmt.Sprintf("keep at least %d: only %d of %d serving replicas have a fresh value of %s%s", c.After, f.Fresh, f.Serving, c.Signal, without)
}

// The facts of signals without values, of zero, and of the windows.
type (
	// Missing is how long no signal has had a value. Term is one that the formula needs.
	Missing struct {
		Term string
		Wait time.Duration
	}
	// Fallback is how long no signal has had a value, when the policy says what to do.
	Fallback time.Duration
	// SignalFallback is how long one signal has had no value.
	SignalFallback struct {
		Wait time.Duration
		Asks int32
	}
	// Active is a workload that leaves zero, or stays above it.
	Active struct{}
	// Inactive is a workload that goes to zero: after Wait of Window, if that is set.
	Inactive struct{ Wait, Window time.Duration }
	// Stabilization is a window that holds a number.
	Stabilization struct {
		Down         bool
		Window, Wait time.Duration
		Ago          time.Duration // since that many replicas were wanted; 0: not within Window
	}
)

func (f Missing) sentence(c Change) string {
	switch {
	case c.Before != c.After:
		return fmt.Sprintf("keep %s: a signal has no value", c.instead())
	case f.Term != "":
		return fmt.Sprintf("keep %d: the formula needs %s, which has no value", c.After, f.Term)
	case f.Wait < time.Second: // of a new object, or a new leader
		return fmt.Sprintf("keep %d: no signal has a value yet, and missing data never scales down", c.After)
	}
	return fmt.Sprintf("keep %d: all signals have been missing for %s, and missing data never scales down", c.After, words.Duration(f.Wait))
}

func (f Fallback) sentence(c Change) string {
	return fmt.Sprintf("at least %d (missingData): all signals have been missing for %s", c.After, words.Duration(time.Duration(f)))
}

func (f SignalFallback) sentence(c Change) string {
	out := c.Signal + " has no value"
	if f.Wait >= time.Second {
		out = fmt.Sprintf("%s has had no value for %s", c.Signal, words.Duration(f.Wait))
	}
	if f.Asks == 0 && c.After == c.Before {
		return out + ": its fallback lets the other signals decide"
	}
	return fmt.Sprintf("%s: its fallback asks for %s%s", out, words.Replicas(c.After), c.most())
}

func (Active) sentence(c Change) string {
	return fmt.Sprintf("at least %d: a signal is above its activation threshold", c.After)
}

func (f Inactive) sentence(Change) string {
	if f.Wait > 0 {
		return fmt.Sprintf("keep 1 for %s more: no signal may be above its activation threshold for %s", words.Duration(f.Wait), words.Duration(f.Window))
	}
	return "0 replicas: no signal is above its activation threshold"
}

func (f Stabilization) sentence(c Change) string {
	switch {
	case f.Ago > 0:
		return fmt.Sprintf("keep at least %[1]d for %[2]s: the load needed %[1]d within the scale-down window of %[3]s (now %[4]d)", c.After, words.Duration(f.Wait), words.Duration(f.Window), c.Before)
	case f.Down:
		return fmt.Sprintf("keep at least %d for %s (the load needs %d): a scale-down needs data of %s", c.After, words.Duration(f.Wait), c.Before, words.Duration(f.Window))
	}
	return fmt.Sprintf("at most %[1]d (the load needs %[2]d now): within the scale-up window of %[3]s it needed %[1]d", c.After, c.Before, words.Duration(f.Window))
}

// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"fmt"
	"time"

	"github.com/gpupilot/gpupilot/internal/scale/words"
)

// The facts of the rules that bound what the signals ask for.
type (
	// Rate is what the policies of the behavior allow within Window.
	Rate struct {
		Down   bool
		Limit  int32
		Window time.Duration
	}
	// Descent is the period of the default limit of scale-down steps.
	Descent time.Duration
	// FirstDescent is that of an objective while the record of its load is short.
	FirstDescent time.Duration
	// Min is minReplicas.
	Min int32
	// Max is maxReplicas.
	Max int32
	// Budget is the number of GPUs that the workload may have.
	Budget int32
	// Disabled is a direction that is switched off: down, or else up.
	Disabled bool
	// Pair is what the partner wants.
	Pair struct {
		With                string
		Wants, ForEachOfIts float64
	}
	// PairUnknown is the name of a partner. What it wants is not known.
	PairUnknown string
	// Idle is how long nobody has used the workload.
	Idle time.Duration
	// Forced is an override or a schedule, with its end.
	Forced string
	// SetToZero is a workload whose replicas others have set to 0.
	SetToZero struct{}
)

func (f Min) sentence(c Change) string { return fmt.Sprintf("minReplicas is %d: %s", f, c.instead()) }

func (f Max) sentence(c Change) string { return fmt.Sprintf("maxReplicas is %d: %s", f, c.instead()) }

func (f Budget) sentence(c Change) string {
	return fmt.Sprintf("the budget is %d GPUs: %s", f, c.instead())
}

func (f Disabled) sentence(c Change) string {
	return fmt.Sprintf("scaling %s is disabled: %s", words.UpOrDown(bool(f)), c.instead())
}

func (f PairUnknown) sentence(c Change) string {
	return fmt.Sprintf("keep %s: the need of its pair %s is not known", c.instead(), string(f))
}

func (f Forced) sentence(c Change) string { return fmt.Sprintf("%s: %s", string(f), c.instead()) }

func (f Rate) sentence(c Change) string {
	return fmt.Sprintf("behavior allows %d within %s: %s", f.Limit, words.Duration(f.Window), c.instead())
}

func (f Descent) sentence(c Change) string {
	return fmt.Sprintf("scale-down is limited to 20 %% of the replicas, at least one, per %s: %s", words.Duration(time.Duration(f)), c.instead())
}

func (f FirstDescent) sentence(c Change) string {
	return fmt.Sprintf("until the load of four hours is recorded, scale-down is limited to a replica per %s: %s", words.Duration(time.Duration(f)), c.instead())
}

func (f Pair) sentence(c Change) string {
	return fmt.Sprintf("%s: its pair %s needs %s replicas, and for each of them %s of these", c.instead(), f.With, words.Quantity(f.Wants, ""), words.Quantity(f.ForEachOfIts, ""))
}

func (f Idle) sentence(c Change) string {
	return fmt.Sprintf("%s until somebody uses it: for %s no GPU was active and no request in flight", c.instead(), words.Duration(time.Duration(f)))
}

func (SetToZero) sentence(c Change) string {
	return fmt.Sprintf("0 instead of %d until somebody scales it to 1 or more: the replicas were set to 0, and not by this controller", c.Before)
}

// The facts of replicas that finish their requests before they are removed.
type (
	// Leaving are these replicas, and the time until the last one is removed.
	Leaving struct {
		N    int32
		Left time.Duration
	}
	// Back are replicas that were leaving and serve again.
	Back int32
	// Ungated is a replica that is removed with its requests.
	Ungated string
	// Disruption is a PodDisruptionBudget that allows no removal; empty: they are not known.
	Disruption string
)

func (f Leaving) sentence(c Change) string {
	who := fmt.Sprintf("%d replicas finish their requests before they are", f.N)
	if f.N == 1 {
		who = "a replica finishes its requests before it is"
	}
	return fmt.Sprintf("keep %s for at most %s: %s removed", c.instead(), words.Duration(f.Left), who)
}

func (f Back) sentence(c Change) string {
	if f == 1 {
		return fmt.Sprintf("back to %d: a replica that was leaving serves again", c.After)
	}
	return fmt.Sprintf("back to %d: %d replicas that were leaving serve again", c.After, f)
}

func (f Ungated) sentence(Change) string {
	return string(f) + " is removed with its requests: it does not declare the readiness gate gpupilot.dev/serving"
}

func (f Disruption) sentence(c Change) string {
	if f == "" {
		return fmt.Sprintf("keep %s: PodDisruptionBudgets cannot be read, so no replica is removed", c.instead())
	}
	return fmt.Sprintf("keep %s: PodDisruptionBudget %s allows no removal now", c.instead(), string(f))
}

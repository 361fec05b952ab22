// SPDX-License-Identifier: Apache-2.0

package scale

import (
	"fmt"
	"strings"
	"time"

	"github.com/gpupilot/gpupilot/internal/scale/facts"
)

// Rule names the rule of a step. The names are public: status, metrics and
// events show them.
type Rule string

// The rules, in the order in which Decide may apply them.
const (
	RuleDemand        Rule = "Demand"        // a signal ÷ its target
	RuleTolerance     Rule = "Tolerance"     // close enough to the target: no change
	RuleForecast      Rule = "Forecast"      // more replicas are needed when new ones serve
	RuleSaturated     Rule = "Saturated"     // the signal is at its ceiling: probe
	RuleStarting      Rule = "Starting"      // replicas are starting: wait for them, and keep them
	RuleSettling      Rule = "Settling"      // the number of serving replicas has just changed
	RuleNotServing    Rule = "NotServing"    // no replica serves yet, so nothing is measured
	RulePartial       Rule = "PartialData"   // a replica without a reading may carry any load: not down
	RuleMissing       Rule = "MissingData"   // a signal has no value: no scale-down
	RuleFormula       Rule = "Formula"       // the formula over the signals
	RuleRollout       Rule = "Rollout"       // a rollout in progress: keep
	RuleFallback      Rule = "Fallback"      // no signal has had a value for long: the policy's fallback
	RuleActivation    Rule = "Activation"    // from zero, or to zero
	RuleStabilization Rule = "Stabilization" // the stabilisation window holds the number
	RuleRate          Rule = "Rate"          // a behavior policy limits the step
	RuleDescent       Rule = "Descent"       // the default limit of scale-down steps, without a behavior policy
	RulePair          Rule = "Pair"          // the ratio to what the partner wants
	RuleIdle          Rule = "Idle"          // nobody has used the workload for long
	RuleBounds        Rule = "Bounds"        // minReplicas, maxReplicas
	RuleBudget        Rule = "Budget"        // the GPU budget
	RuleDisabled      Rule = "Disabled"      // the direction is switched off
	RuleOverride      Rule = "Override"      // an override holds or bounds the number until a time
	RuleSchedule      Rule = "Schedule"      // a schedule bounds the number now
	RuleSetToZero     Rule = "SetToZero"     // others set the replicas to 0: they stay 0
	RuleDrain         Rule = "Drain"         // replicas finish their requests before they are removed
	RuleDisruption    Rule = "Disruption"    // a PodDisruptionBudget allows no scale-down now
)

// Step is the application of one rule to the wanted number of replicas.
type Step struct {
	Rule          Rule
	Signal        string // empty: it is a step of the workload
	Before, After int32
	MostOf        int32 // set on the first step of the signal that decides: the number of readable signals
	Facts         facts.Facts
}

// Sentence describes the step.
func (s *Step) Sentence() string {
	if s.Facts == nil {
		return fmt.Sprintf("%s: %d to %d", s.Rule, s.Before, s.After)
	}
	return facts.Sentence(s.Facts, facts.Change{Signal: s.Signal, Before: s.Before, After: s.After, MostOf: s.MostOf})
}

// Input is the value of one signal in a decision.
type Input struct {
	Signal string        `json:"signal"`
	Unit   string        `json:"unit,omitempty"`
	Value  float64       `json:"value"` // mean per serving replica, or the workload's total
	Target float64       `json:"target"`
	Fresh  int32         `json:"fresh"` // replicas with a fresh reading, or 1 for a total; 0: there is no Value
	Age    time.Duration `json:"age"`   // age of the oldest fresh reading
	Silent int32         `json:"-"`     // replicas that should have a reading, and have none: Value is that of the others

	Deciding bool `json:"deciding,omitempty"` // it asks for the most replicas
}

// Decision is a number of replicas, and the steps that lead to it.
type Decision struct {
	Time     time.Time `json:"time"`
	Current  int32     `json:"current"`  // observed spec.replicas
	Replicas int32     `json:"replicas"` // what spec.replicas should be
	Rule     Rule      `json:"rule"`     // of the step that made the decision
	Steps    []Step    `json:"steps"`
	Inputs   []Input   `json:"inputs"`

	Serving       int32 `json:"serving"`
	Starting      int32 `json:"starting"`
	Unschedulable int32 `json:"unschedulable"`

	Rollout Rollout    `json:"rollout,omitzero"`
	Idle    IdleReport `json:"idle,omitzero"`

	// Own is what the signals ask for, with windows and rates: the partner of Policy.Pair
	// follows it. It knows nothing of that one.
	Own int32 `json:"own,omitempty"`

	// Leave names the pods that are to be out of the endpoints: Leaving of them finish their
	// requests, the others are removed. A pod that leaves and is not named is to serve again.
	Leave   []string `json:"leave,omitempty"`
	Leaving int32    `json:"leaving,omitempty"`

	// Victims names the pods to remove first when Replicas < Current: unschedulable
	// and starting ones, then those with the lowest load.
	Victims []string `json:"victims,omitempty"`
}

// Changes reports whether the decision changes the number of replicas.
func (d *Decision) Changes() bool { return d.Replicas != d.Current }

// Sentence describes the decision in one line: the sentences of its steps.
func (d *Decision) Sentence() string {
	parts := make([]string, 0, len(d.Steps))
	for i := range d.Steps {
		parts = append(parts, d.Steps[i].Sentence())
	}
	return strings.Join(parts, "; ")
}

// Why says in one sentence what set the number of replicas: that of the step that made the decision.
func (d *Decision) Why() string {
	deciding, why := "", -1
	for _, in := range d.Inputs {
		if in.Deciding {
			deciding = in.Signal
		}
	}
	for i, s := range d.Steps {
		if s.Rule == d.Rule && (why < 0 || s.Signal == "" || s.Signal == deciding) {
			why = i
		}
	}
	if why < 0 {
		return d.Sentence()
	}
	return d.Steps[why].Sentence()
}

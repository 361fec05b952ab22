// SPDX-License-Identifier: Apache-2.0

package scale

import "time"

// Rule names what a step applied. The names are public: they stand in status,
// metrics and events.
type Rule string

// The rules, in the order in which Decide may apply them.
const (
	RuleDemand        Rule = "Demand"        // a signal against its target
	RuleTolerance     Rule = "Tolerance"     // close enough to the target
	RuleForecast      Rule = "Forecast"      // more is wanted by the time that new replicas serve
	RuleSaturated     Rule = "Saturated"     // the signal is at its ceiling: probe
	RuleStarting      Rule = "Starting"      // capacity is on the way: wait for it, and keep it
	RuleSettling      Rule = "Settling"      // the serving replicas have only just changed
	RuleDraining      Rule = "Draining"      // new capacity works off what had piled up
	RuleNotServing    Rule = "NotServing"    // nothing serves yet, nothing to measure
	RulePartial       Rule = "PartialData"   // too few replicas have a reading to go down
	RuleMissing       Rule = "MissingData"   // a signal cannot be read: no way down
	RuleFallback      Rule = "Fallback"      // nothing readable for long: the declared fallback
	RuleActivation    Rule = "Activation"    // from zero, or to it
	RuleStabilization Rule = "Stabilization" // the window holds
	RuleRate          Rule = "Rate"          // a behavior policy limits the step
	RuleDescent       Rule = "Descent"       // down step by step, where no policy says how
	RuleBounds        Rule = "Bounds"        // minReplicas, maxReplicas
	RuleBudget        Rule = "Budget"        // the GPU budget
	RuleDisabled      Rule = "Disabled"      // the direction is switched off
)

// Facts are the numbers behind a step. Which ones are set goes with the rule.
type Facts struct {
	Signal    string        `json:"signal,omitempty"`
	Unit      string        `json:"unit,omitempty"`
	Value     float64       `json:"value,omitempty"`     // mean per serving replica, or the workload's total
	Target    float64       `json:"target,omitempty"`    // in the same unit
	Total     bool          `json:"total,omitempty"`     // Value is for the workload
	Whole     bool          `json:"whole,omitempty"`     // Target is for the workload
	Learned   bool          `json:"learned,omitempty"`   // Target was learned
	Steadied  bool          `json:"steadied,omitempty"`  // Value is noisy, and the mean of the last seconds decides
	Demand    float64       `json:"demand,omitempty"`    // replicas that the reading asks for
	Mean      float64       `json:"mean,omitempty"`      // the same, averaged over the last seconds
	Tolerance float64       `json:"tolerance,omitempty"` // relative
	Serving   int32         `json:"serving,omitempty"`
	Fresh     int32         `json:"fresh,omitempty"` // serving replicas with a fresh reading
	Coming    int32         `json:"coming,omitempty"`
	Stuck     int32         `json:"stuck,omitempty"` // unschedulable, or starting for too long
	Limit     int32         `json:"limit,omitempty"`
	Wait      time.Duration `json:"wait,omitempty"`
	Window    time.Duration `json:"window,omitempty"`
	Down      bool          `json:"down,omitempty"`

	// Of requests in batches (Batching):
	Batching bool          `json:"batching,omitempty"`
	Load     float64       `json:"load,omitempty"`     // share of its capacity that a replica uses; 1 is at Target
	Arrivals float64       `json:"arrivals,omitempty"` // requests/s over the workload; 0: not known
	Capacity float64       `json:"capacity,omitempty"` // requests/s that a replica takes at Target; 0: not learned yet
	Watched  time.Duration `json:"watched,omitempty"`  // how long Capacity was learned
	Arriving bool          `json:"arriving,omitempty"` // Demand is Arrivals ÷ Capacity, else that of the batches
	Limited  bool          `json:"limited,omitempty"`  // Arrivals ask for more than is granted

	// MostOf is set on the demand of the signal that decides: the number of
	// signals that were readable.
	MostOf int32 `json:"mostOf,omitempty"`
}

// Step is one thing that made the wanted number of replicas what it is.
type Step struct {
	Rule   Rule  `json:"rule"`
	Before int32 `json:"before"`
	After  int32 `json:"after"`
	Facts  Facts `json:"facts"`
}

// Input is one signal as the decision saw it.
type Input struct {
	Signal string        `json:"signal"`
	Unit   string        `json:"unit,omitempty"`
	Value  float64       `json:"value"` // mean per serving replica, or the workload's total
	Target float64       `json:"target"`
	Fresh  int32         `json:"fresh"` // replicas (or 1 for a total) with a fresh reading; 0: Value means nothing
	Age    time.Duration `json:"age"`   // of the oldest fresh reading

	Deciding bool `json:"deciding,omitempty"` // it asked for the most replicas
}

// Decision is an answer that says why.
type Decision struct {
	Time     time.Time `json:"time"`
	Current  int32     `json:"current"`  // spec.replicas that was observed
	Replicas int32     `json:"replicas"` // what it should be
	Rule     Rule      `json:"rule"`     // of the step that had the last word
	Steps    []Step    `json:"steps"`
	Inputs   []Input   `json:"inputs"`

	Serving       int32 `json:"serving"`
	Starting      int32 `json:"starting"`
	Unschedulable int32 `json:"unschedulable"`

	// Victims are the pods that should go first when Replicas < Current:
	// unschedulable and starting ones, then the idlest.
	Victims []string `json:"victims,omitempty"`
}

// Changes says whether the decision asks for another number than there is.
func (d *Decision) Changes() bool { return d.Replicas != d.Current }

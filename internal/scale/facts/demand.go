// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"fmt"
	"strings"
	"time"

	"github.com/gpupilot/gpupilot/internal/scale/promise"
	"github.com/gpupilot/gpupilot/internal/scale/words"
)

// Demand is the equation that turns a signal's value into replicas.
type Demand struct {
	Reading               // the mean per serving replica, or the workload's total
	Fresh         int32   // serving replicas with a fresh reading
	Target        float64 // in the same unit
	Total         bool    // Value is for the workload
	Whole         bool    // Target is for the workload
	Demand        float64 // replicas that Value asks for
	Mean          float64 // Demand, averaged over Window
	Averaged      bool    // Value is noisy: Mean decides, not Demand
	Window        time.Duration
	Earlier       float64 // replicas that the load needed before some ended; Demand may lack what those carried
	Held          bool    // Demand has the backlog of a rollout, and is limited
	Replaced      int32   // of the replicas, those that start in place of others
	Outlier       Outlier
	Batch         *Batch // nil: the signal does not have the law Batching, or its plan decides
	Plan          *Plan  // nil: the signal has no objective, or too little is known
	TargetLearned bool
}

// Outlier is a replica with a value that counts as Limit; without a name there is none.
type Outlier struct {
	Name         string
	Value, Limit float64
}

// Batch is the demand of a signal with the law Batching.
type Batch struct {
	Load        float64       // share of its capacity that a replica uses; 1: it is at Target
	Arrivals    float64       // requests/s over the workload; 0: not known
	Capacity    float64       // requests/s that a replica takes at Target; 0: not learned yet
	LearnedFrom time.Duration // how much traffic Capacity was learned from
	Arriving    bool          // the demand is Arrivals ÷ Capacity, else by the requests in flight
	Limited     bool          // Arrivals ÷ Capacity is more than the demand may be
}

// Plan is the demand of a signal with an objective: the higher of Highest and Reserve, ÷ BusyTarget.
type Plan struct {
	Objective  float64 // share of the requests, below 1
	Limits     promise.Limits
	Busy       float64 // replicas that the load keeps busy now
	Caches     bool    // by what it holds of their KV caches
	Highest    float64 // and at most within Window
	Window     time.Duration
	Reserve    float64 // busy replicas that are always provided for
	BusyTarget float64 // busy share of a replica
	Missed     promise.Misses
}

func (f *Demand) sentence(c Change) string {
	var out string
	result := f.result(c.After)
	switch {
	case f.Plan != nil:
		out, result = f.Plan.equation(f.Demand, result)
	case f.Batch != nil && f.Batch.Arriving:
		out = fmt.Sprintf("%s requests/s ÷ %s per replica", words.Rate(f.Batch.Arrivals), words.Rate(f.Batch.Capacity))
	case f.Batch != nil:
		out = f.inFlight()
	case f.Whole:
		out = fmt.Sprintf("%d serving × %s ÷ target %s", f.Serving, words.Quantity(f.Value, f.Unit), words.Quantity(f.Target, f.Unit))
	case f.Total:
		out = fmt.Sprintf("%s ÷ target %s per replica", words.Quantity(f.Value, f.Unit), words.Quantity(f.Target, f.Unit))
	default:
		out = fmt.Sprintf("%s × %s ÷ target %s", f.serving(), words.Quantity(f.Value, f.Unit), words.Quantity(f.Target, f.Unit))
	}
	out = c.Signal + ": " + out + result
	if o := f.Outlier; o.Name != "" {
		out += fmt.Sprintf(", %s with %s counted as %s", o.Name, words.Quantity(o.Value, f.Unit), words.Quantity(o.Limit, f.Unit))
	}
	out += c.most()
	if f.Plan != nil {
		if why := f.Plan.Missed.Sentence(); why != "" {
			out += "; " + why
		}
	}
	if f.Batch != nil {
		out += f.batch()
	}
	if c.MostOf > 0 && f.Replaced > 0 {
		out += "; " + words.Replaced(f.Replaced, c.Before)
	}
	return out
}

// equation says what the load needs, which asks for demand replicas, and how the result goes on.
func (p *Plan) equation(demand float64, result string) (out, right string) {
	out, most := fmt.Sprintf("the load fills %s replicas now", words.Quantity(p.Busy, "")), p.Busy
	if p.Caches {
		out += " by their KV caches"
	}
	if p.Highest > p.Busy {
		out, most = out+fmt.Sprintf(", %s at the peak of the last %s", words.Quantity(p.Highest, ""), words.Minutes(p.Window)), p.Highest
	}
	if p.Reserve > p.Highest {
		out, most = out+fmt.Sprintf(", %s with the reserve", words.Quantity(p.Reserve, "")), p.Reserve
	}
	out += fmt.Sprintf(". To keep %s of the requests within %s, a replica may be %s busy: %s ÷ %s", words.Share(p.Objective), p.Limits, words.Percent(p.BusyTarget), words.Quantity(most, ""), words.Quantity(p.BusyTarget, ""))
	if most < 0.99*demand*p.BusyTarget { // the rise of the last minute asks for more
		out += fmt.Sprintf(" = %s; if it goes on rising", words.Quantity(most/p.BusyTarget, ""))
		result = strings.Replace(result, " =", ",", 1)
	}
	return out, result
}

// inFlight is the equation of requests in flight, of which there are more per unit of load the higher the load is.
func (f *Demand) inFlight() string {
	load := words.Quantity(f.Batch.Load, "")
	out := fmt.Sprintf("%s in flight per replica (%s)", words.Quantity(f.Value, ""), f.target())
	if load != words.Quantity(f.Value/f.Target, "") {
		out += " count as a load of " + load + ", since batches grow faster than the load"
	}
	return out + fmt.Sprintf(": %s × %s", f.serving(), load)
}

// target is the target of the requests in flight.
func (f *Demand) target() string {
	if f.TargetLearned {
		return "learned target " + words.Quantity(f.Target, "")
	}
	return "target " + words.Quantity(f.Target, "")
}

// serving is the number of replicas that Value is the mean of.
func (f *Demand) serving() string {
	if f.Fresh < f.Serving {
		return fmt.Sprintf("%d of %d serving", f.Fresh, f.Serving)
	}
	return fmt.Sprintf("%d serving", f.Serving)
}

// result is the right side of the equation, in whole replicas. If these are not
// the next whole number, it gives the reason.
func (f *Demand) result(after int32) string {
	why, mean := "", words.Quantity(f.Mean, "")+" on average over "+words.Duration(f.Window)
	switch asked := fmt.Sprintf(" = %s, ", words.Quantity(f.Demand, "")); {
	case f.Held:
		why = asked + "limited while a rollout lets fewer replicas serve"
	case f.Batch != nil && f.Batch.Limited && f.Batch.Arriving:
		why = ", limited to twice the demand of the requests in flight"
		if f.Averaged {
			why += ", " + mean
		}
	case f.Averaged:
		why = asked + mean
	case after > Replicas(f.Demand) && after <= Replicas(f.Earlier):
		why = asked + words.Quantity(f.Earlier, "") + " before some replicas ended"
	case after != Replicas(f.Demand) && f.Fresh < f.Serving && !f.Total:
		why = asked + "and " + words.Replicas(int32(f.Serving-f.Fresh)) + " without a value, counted as loaded to the target"
	case after != Replicas(f.Demand):
		why = " = " + words.Quantity(f.Demand, "")
	case words.Quantity(f.Demand, "") != words.Quantity(float64(after), ""):
		return fmt.Sprintf(" = %s, so %s", words.Quantity(f.Demand, ""), words.Replicas(after))
	}
	if why != "" {
		return fmt.Sprintf("%s: %s", why, words.Replicas(after))
	}
	return " = " + words.Replicas(after)
}

// batch adds the requests in flight per replica, and where the capacity comes
// from.
func (f *Demand) batch() string {
	b, learned := f.Batch, "learned earlier"
	if b.LearnedFrom > 0 {
		learned = "learned from " + words.Minutes(b.LearnedFrom) + " of traffic"
	}
	switch {
	case b.Arriving:
		return fmt.Sprintf(" (%s in flight per replica, %s), capacity %s", words.Quantity(f.Value, ""), f.target(), learned)
	case b.Arrivals <= 0 && b.Capacity <= 0:
		return "; the arrival rate is not known"
	case b.Capacity <= 0:
		return fmt.Sprintf("; %s requests/s arrive, and how many a replica can take is not learned yet", words.Rate(b.Arrivals))
	}
	need := b.Arrivals / b.Capacity
	out := fmt.Sprintf("; by arrivals it is %s requests/s ÷ %s per replica = %s, %s", words.Rate(b.Arrivals), words.Rate(b.Capacity), words.Quantity(need, ""), learned)
	if need > f.Demand {
		out += ", not used yet"
	}
	return out
}

// Formula is the result of a formula over the signals.
type Formula struct {
	Text, Terms string // as the user wrote it, and the values of its terms
	Failed      string // why it has no result; empty: it has one
	Demand      float64
	Keeper      string  // a signal that keeps more; empty: none
	Tolerance   float64 // relative; 0: it changes the number
	Replaced    int32   // as of Demand
}

// formulaExcerpt is how many characters of a formula a sentence shows.
const formulaExcerpt = 120

func (f *Formula) sentence(c Change) string {
	text := []rune(strings.Join(strings.Fields(f.Text), " "))
	if len(text) > formulaExcerpt {
		text = append(text[:formulaExcerpt], '…')
	}
	out := fmt.Sprintf("formula %s, with %s", string(text), f.Terms)
	if f.Failed != "" {
		return fmt.Sprintf("keep %d: %s (%s)", c.After, f.Failed, out)
	}
	if f.Demand != float64(c.After) {
		out += ": " + words.Quantity(f.Demand, "")
	}
	switch {
	case f.Keeper != "":
		out = fmt.Sprintf("%s, and %s keeps %s", out, f.Keeper, words.Replicas(c.After))
	case f.Tolerance > 0:
		out = fmt.Sprintf("%s, within %s of %s: no change", out, words.Percent(f.Tolerance), words.Replicas(c.After))
	default:
		out += " = " + words.Replicas(c.After)
	}
	if f.Replaced > 0 {
		out += "; " + words.Replaced(f.Replaced, c.Before)
	}
	return out
}

// SPDX-License-Identifier: Apache-2.0

package objective

import (
	"cmp"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/gpupilot/gpupilot/internal/scale"
	"github.com/gpupilot/gpupilot/internal/scale/budget"
	"github.com/gpupilot/gpupilot/internal/scale/policy"
	"github.com/gpupilot/gpupilot/internal/scale/promise"
	"github.com/gpupilot/gpupilot/internal/window/requests"
)

// Report says how well one objective is kept, and what it costs.
type Report struct {
	Signal    string
	Objective float64 // share of the requests, below 1
	Over      time.Duration
	First     float64 // limit of the time to the first token in seconds; 0: none
	Token     float64 // limit of the time between tokens in seconds; 0: none

	budget.Report
	edges requests.Edges

	Plan    promise.Plan // Target 0: none was learned yet
	cost    promise.Cost // of tokens, if learned
	learned bool
	causes  promise.Misses // shares of the requests of the last day
	aim     float64        // share of the requests that plans aim to miss
	calm    calm
	at      time.Time
	max     int32         // replicas
	startup time.Duration // of a replica
}

// calm is the requests that ended while replicas were hardly busy.
type calm struct{ ended, missed float64 }

// Reports returns a report for each objective of a policy.
func (k *Keeper) Reports(p *policy.Compiled, s *scale.State, startup time.Duration, now time.Time) (out []Report) {
	for _, x := range k.kept {
		sig := &p.Policy.Signals[x.source]
		r := Report{
			Signal: x.name, Objective: sig.Objective, Over: sig.Over, First: sig.FirstLimit, Token: sig.Limit,
			Report: x.ledger.Report(now, sig.Objective, sig.Over), edges: x.edges, at: now,
			max: p.Policy.Max, startup: cmp.Or(startup, scale.DefaultStartup),
		}
		if learned := learnedOf(s, x.source, sig.Name); learned != nil {
			r.Plan, r.causes, r.aim = learned.Plan, learned.Causes(), learned.Aim(sig.Terms())
			r.cost, r.learned = learned.Work.Cost()
			r.calm.ended, r.calm.missed = learned.Curve.Calm()
		}
		out = append(out, r)
	}
	return out
}

// looser and stricter are the objectives with twice and with half of the allowed misses.
func (r *Report) looser() float64   { return 1 - 2*(1-r.Objective) }
func (r *Report) stricter() float64 { return 1 - (1-r.Objective)/2 }

// isRange reports whether the numbers of missed requests are a range.
func (r *Report) isRange() bool { return r.MissedMost-r.Missed >= 0.5 }

// Sentence says how well the objective is kept, what is left of its budget, and what it
// costs.
func (r *Report) Sentence() string {
	parts := []string{fmt.Sprintf("no request has ended yet; objective %s over %s", percent(r.Objective), period(r.Over))}
	if r.Ended > 0 {
		parts = []string{fmt.Sprintf("%s of %.0f requests kept %s in %s; objective %s over %s",
			r.attained(), r.Ended, r.limits(), period(r.measured()), percent(r.Objective), period(r.Over))}
		parts = append(parts, fmt.Sprintf("%s of the error budget is left", r.left()))
		parts = append(parts, "burn rate "+strings.Join(r.burns(), ", "))
	}
	if why := r.causes.Sentence(); why != "" {
		parts = append(parts, why)
	}
	if r.Plan.Target > 0 {
		parts = append(parts, fmt.Sprintf("with what is left of the budget, plans may miss %s; on average your recorded load needs %s replicas, %s for %s and %s for %s",
			hundredths(math.Round(1e4*r.aim)), number(r.Plan.Replicas), number(r.Plan.Looser), percent(r.looser()), number(r.Plan.Stricter), percent(r.stricter())))
	}
	return strings.Join(parts, "; ")
}

// measured is for how long requests have been counted, at most Over.
func (r *Report) measured() time.Duration {
	return min(max(0, r.at.Sub(r.Since)), r.Over)
}

// limits names the limits of the objective.
func (r *Report) limits() string { return promise.Limits{Token: r.Token, FirstToken: r.First}.String() }

func (r *Report) attained() string {
	least, most := attainedLeast(r.Attained), attainedMost(r.AttainedMost)
	if !r.isRange() {
		return least
	}
	return least + " to " + most
}

func (r *Report) left() string {
	if !r.isRange() {
		return budgetLeft(r.BudgetLeft)
	}
	return budgetLeft(r.BudgetLeft) + " to " + budgetLeft(r.BudgetLeftMost)
}

func (r *Report) burns() (out []string) {
	for i := range r.Burns {
		if b := &r.Burns[i]; b.Requests > 0 {
			out = append(out, fmt.Sprintf("%s (%s)", number(b.Rate), budget.Windows[i].Name))
		}
	}
	if len(out) == 0 {
		out = []string{"unknown"}
	}
	return out
}

// percent writes a share, such as 99.95%.
func percent(share float64) string {
	return strconv.FormatFloat(math.Round(share*1e6)/1e4, 'f', -1, 64) + "%"
}

// attainedLeast and attainedMost write an attained share in hundredths of a percent. The
// first is rounded down, so that a missed objective never looks kept.
func attainedLeast(share float64) string { return hundredths(math.Floor(share*1e4 + 1e-6)) }
func attainedMost(share float64) string  { return hundredths(math.Ceil(share*1e4 - 1e-6)) }

func hundredths(x float64) string { return strconv.FormatFloat(x/100, 'f', 2, 64) + "%" }

// budgetLeft writes the share of a budget that is left. Less than −999 % has no meaning.
func budgetLeft(share float64) string {
	return strconv.FormatFloat(max(-999, math.Floor(100*share+1e-6)), 'f', 0, 64) + "%"
}

// number writes a number with three significant digits at most.
func number(x float64) string {
	if a := math.Abs(x); a >= 100 || a == 0 || math.IsNaN(x) {
		return strconv.FormatFloat(math.Round(x), 'f', -1, 64)
	} else if a < 0.01 {
		return "0"
	} else if a < 10 {
		return strconv.FormatFloat(math.Round(x*100)/100, 'f', -1, 64)
	}
	return strconv.FormatFloat(math.Round(x*10)/10, 'f', -1, 64)
}

// period writes a duration in days, hours or minutes.
func period(d time.Duration) string {
	const day = 24 * time.Hour
	switch {
	case d >= day && d%day == 0 || d >= 10*day:
		return fmt.Sprintf("%dd", d/day)
	case d >= day:
		return fmt.Sprintf("%dd%dh", d/day, d%day/time.Hour)
	case d >= time.Hour:
		return strings.TrimSuffix(fmt.Sprintf("%dh%dm", d/time.Hour, d%time.Hour/time.Minute), "0m")
	case d < time.Minute:
		return fmt.Sprintf("%ds", d/time.Second)
	}
	return fmt.Sprintf("%dm", d/time.Minute)
}

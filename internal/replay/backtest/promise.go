// SPDX-License-Identifier: Apache-2.0

package backtest

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
)

// Promise says whether a contender keeps its objective, and what that costs. Its replays
// are of different stretches of the load, so its interval is over these and not only over
// random numbers.
type Promise struct {
	Contender string  `json:"who"`
	Percent   float64 `json:"objectivePercent"`
	Replays   int     `json:"replays"`
	Kept      int     `json:"replaysKept"` // of them, each by itself

	// Missed is the mean share of the requests over a limit, in percent, and Low to High
	// its 95 % interval over the replays; absent with fewer than three
	// replays.
	Missed float64  `json:"missedPercent"`
	Low    *float64 `json:"missedLowPercent,omitempty"`
	High   *float64 `json:"missedHighPercent,omitempty"`

	GPUHoursPerMonth float64 `json:"gpuHoursPerMonth"`
	// OverOracle is the GPU-hours ÷ those of the cheapest oracle that keeps the objective:
	// the geometric mean over all replays in which one does, also those that the contender
	// misses. 0: there is none.
	OverOracle float64 `json:"gpuHoursOverOracle,omitempty"`
	// Saves is the share of the GPU-hours that is saved against the user's own autoscaler
	// Against, in percent; below 0: it takes more. "": none was given.
	Saves   float64 `json:"savesPercent,omitempty"`
	Against string  `json:"savesAgainst,omitempty"`
	// Change says what the user should change.
	Change string `json:"change"`
}

const (
	// hoursPerMonth is a twelfth of 365 days.
	hoursPerMonth = 730
	// defaultObjective is that of a policy without an slo, in percent.
	defaultObjective = 99
)

// Promises returns the promises of our policies and of the user's autoscalers, in order.
func (s *Study) Promises(cases []Case) (out []Promise) {
	objective, given := float64(defaultObjective), ""
	for _, e := range s.Ours {
		if e.Objective > 0 {
			objective = 100 * e.Objective
		}
		if e.Given && given == "" {
			given = e.Name
		}
	}
	hours := map[string]float64{}
	for i := range s.Ours {
		e := &s.Ours[i]
		percent := objective
		if e.Objective > 0 {
			percent = 100 * e.Objective
		}
		p := promiseOf(cases, e.Name, percent)
		hours[e.Name] = p.GPUHoursPerMonth
		out = append(out, p)
	}
	for i := range out {
		if p := &out[i]; given != "" && p.Contender != given && hours[given] > 0 {
			p.Against, p.Saves = given, 100*(1-p.GPUHoursPerMonth/hours[given])
		}
		out[i].Change = s.change(&out[i], out, cases)
	}
	return out
}

// GPUHours returns the GPU-hours of some hours.
func (p *Promise) GPUHours(hours float64) float64 { return p.GPUHoursPerMonth / hoursPerMonth * hours }

func promiseOf(cases []Case, name string, percent float64) Promise {
	p := Promise{Contender: name, Percent: percent}
	allowed := 100 - percent
	var missed []float64
	hours, gpuHours, logs, compared := 0.0, 0.0, 0.0, 0.0
	for i := range cases {
		c := &cases[i]
		k := slices.IndexFunc(c.Ours, func(r Result) bool { return r.Name == name })
		if k < 0 {
			continue
		}
		r := &c.Ours[k]
		missed = append(missed, r.Violations)
		hours, gpuHours = hours+cmp.Or(c.Counted, c.Hours), gpuHours+r.GPUHours
		if r.Violations <= allowed+1e-9 {
			p.Kept++
		}
		if o := c.oracle(allowed); o != nil && o.Violations <= allowed && r.GPUHours > 0 {
			logs, compared = logs+math.Log(r.GPUHours/o.GPUHours), compared+1
		}
	}
	if p.Replays = len(missed); p.Replays == 0 {
		return p
	}
	var half float64
	if p.Missed, half = meanWithin(missed); p.Replays > 2 {
		low, high := max(0, p.Missed-half), min(100, p.Missed+half)
		p.Low, p.High = &low, &high
	}
	p.GPUHoursPerMonth = gpuHours / max(hours, 1e-9) * hoursPerMonth
	if compared > 0 {
		p.OverOracle = math.Exp(logs / compared)
	}
	return p
}

// meanWithin returns the mean, and half of its 95 % interval by Student's t.
func meanWithin(x []float64) (mean, half float64) {
	n := float64(len(x))
	for _, v := range x {
		mean += v / n
	}
	if n < 2 {
		return mean, 0
	}
	squares := 0.0
	for _, v := range x {
		squares += (v - mean) * (v - mean)
	}
	return mean, studentT(len(x)-1) * math.Sqrt(squares/(n-1)/n)
}

// studentT is the 97.5th percentile of Student's t with these degrees of freedom: exact to
// 0.01 from 4 on (Cornish-Fisher's expansion about the normal quantile).
func studentT(freedom int) float64 {
	switch freedom {
	case 1:
		return 12.706
	case 2:
		return 4.303
	case 3:
		return 3.182
	}
	const z = 1.95996
	v := float64(freedom)
	return z + (z*z*z+z)/(4*v) + (5*math.Pow(z, 5)+16*z*z*z+3*z)/(96*v*v) + (3*math.Pow(z, 7)+19*math.Pow(z, 5)+17*z*z*z-15*z)/(384*v*v*v)
}

// verdict says whether the objective is kept.
func (p *Promise) verdict() string {
	out := fmt.Sprintf("keeps %g %%", p.Percent)
	switch {
	case p.Kept == p.Replays:
	case p.Missed <= 100-p.Percent:
		out += " on the mean"
	default:
		out = fmt.Sprintf("does not keep %g %%", p.Percent)
	}
	out += fmt.Sprintf(": in %d of %s, %.2f %% missed", p.Kept, count(p.Replays, "replay", "replays"), p.Missed)
	if p.Low != nil {
		out += fmt.Sprintf(" (%.2f to %.2f)", *p.Low, *p.High)
	}
	return out
}

// cost says what that takes, and what it saves, with the price of a GPU-hour in US dollars;
// 0: unknown.
func (p *Promise) cost(dollars float64) string {
	out := GroupDigits(int(math.Round(p.GPUHoursPerMonth))) + " GPU-hours a month"
	if dollars > 0 {
		out += fmt.Sprintf(", $%s", GroupDigits(int(math.Round(p.GPUHoursPerMonth*dollars))))
	}
	if p.OverOracle > 0 {
		out += fmt.Sprintf(", %.2f × the oracle's", p.OverOracle)
	}
	switch {
	case p.Against == "":
	case p.Saves < 0:
		out += fmt.Sprintf(", %.0f %% more than %s", -p.Saves, shorten(p.Against, policyWidth))
	default:
		out += fmt.Sprintf(", %.0f %% fewer than %s", p.Saves, shorten(p.Against, policyWidth))
	}
	return out
}

// writePromises writes for each policy whether it keeps its objective, what that takes, and what to change.
func (r *Report) writePromises(b *strings.Builder) {
	for i := range r.Promises {
		p := &r.Promises[i]
		fmt.Fprintf(b, "%s %s\n  %s\n  change: %s\n", shorten(p.Contender, policyWidth), p.verdict(), p.cost(r.onlyPrice()), p.Change)
	}
	b.WriteString("\n")
}

// onlyPrice is the price of a GPU-hour in US dollars; 0: unknown, or there are several
// models.
func (r *Report) onlyPrice() float64 {
	if len(r.Models) != 1 {
		return 0
	}
	return r.price(r.Models[0].Name)
}

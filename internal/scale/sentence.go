// SPDX-License-Identifier: Apache-2.0

package scale

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// Sentence says what the step did, for a person on call. It is the one place
// where steps become words: status, events, the web page and the CLI show this.
func (s Step) Sentence() string {
	f := s.Facts
	switch s.Rule {
	case RuleDemand:
		return s.demand()
	case RuleTolerance:
		return fmt.Sprintf("%s is within %s of its target: leaving it at %d", f.Signal, percent(f.Tolerance), s.After)
	case RuleForecast:
		return fmt.Sprintf("%s rises, and new replicas take %s to serve: %d wanted by then", f.Signal, duration(f.Wait), s.After)
	case RuleSaturated:
		return fmt.Sprintf("%d serving at %s (saturated, the load may be higher): trying %d", f.Serving, quantity(f.Value, f.Unit), s.After)
	case RuleStarting:
		return s.starting()
	case RuleSettling:
		return fmt.Sprintf("the serving replicas have only just changed: letting the load spread over %d before thinking of %d", s.After, s.Before)
	case RuleDraining:
		return fmt.Sprintf("new replicas are still working off what had piled up: holding %d for %s before thinking of %d", s.After, duration(f.Wait), s.Before)
	case RuleNotServing:
		return fmt.Sprintf("nothing serves yet, %s: keeping %d", onTheWay(f), s.After)
	case RulePartial:
		return fmt.Sprintf("only %d of %d serving replicas have a fresh value of %s: not going below %d", f.Fresh, f.Serving, f.Signal, s.After)
	case RuleMissing:
		return s.missing()
	case RuleFallback:
		return fmt.Sprintf("no signal readable for %s: falling back to %d", duration(f.Wait), s.After)
	case RuleActivation:
		return s.activation()
	case RuleStabilization:
		return s.stabilization()
	case RuleRate:
		return fmt.Sprintf("behavior allows %d within %s: %d instead of %d", f.Limit, duration(f.Window), s.After, s.Before)
	case RuleDescent:
		return fmt.Sprintf("going down step by step, a fifth or one in %s: %d instead of %d", duration(f.Window), s.After, s.Before)
	case RuleBounds:
		name := "maxReplicas"
		if f.Down {
			name = "minReplicas"
		}
		return fmt.Sprintf("%s is %d: %d instead of %d", name, f.Limit, s.After, s.Before)
	case RuleBudget:
		return fmt.Sprintf("the budget is %d GPUs: %d instead of %d", f.Limit, s.After, s.Before)
	case RuleDisabled:
		return fmt.Sprintf("scaling %s is disabled: staying at %d instead of %d", upOrDown(f.Down), s.After, s.Before)
	}
	return fmt.Sprintf("%s: %d to %d", s.Rule, s.Before, s.After)
}

// Sentence tells the whole decision in one line: the steps' sentences.
func (d *Decision) Sentence() string {
	parts := make([]string, 0, len(d.Steps))
	for _, s := range d.Steps {
		parts = append(parts, s.Sentence())
	}
	return strings.Join(parts, "; ")
}

func (s Step) demand() string {
	f := s.Facts
	by := ""
	if f.Arriving {
		by = " by the requests that come"
	}
	switch {
	case f.Steadied && f.Arriving:
		by += ", in the last seconds' mean"
	case f.Steadied:
		by = " by the last seconds' mean"
	}
	if f.Total {
		return fmt.Sprintf("%s is %s against a target of %s: %d wanted%s", f.Signal, quantity(f.Value, f.Unit), quantity(f.Target, f.Unit), s.After, by)
	}
	blind := ""
	if f.Fresh < f.Serving {
		blind = fmt.Sprintf(" (%d without a value)", f.Serving-f.Fresh)
	}
	learned := ""
	if f.Learned {
		learned = " (learned)"
	}
	return fmt.Sprintf("%s: %d serving at %s%s against a target of %s%s: %d wanted%s",
		f.Signal, f.Serving, quantity(f.Value, f.Unit), blind, quantity(f.Target, f.Unit), learned, s.After, by)
}

func (s Step) starting() string {
	f := s.Facts
	if f.Down {
		return fmt.Sprintf("%s: keeping %d until they serve, before thinking of %d", onTheWay(f), s.After, s.Before)
	}
	return fmt.Sprintf("%d serving at %s (saturated), %s: holding %d until they serve", f.Serving, quantity(f.Value, f.Unit), onTheWay(f), s.After)
}

func (s Step) missing() string {
	f := s.Facts
	if s.Before != s.After {
		return fmt.Sprintf("a signal cannot be read: not going down to %d, staying at %d", s.Before, s.After)
	}
	return fmt.Sprintf("no signal readable for %s, missing is not zero: keeping %d", duration(f.Wait), s.After)
}

func (s Step) activation() string {
	if s.Facts.Down {
		return "no signal is above its activation: going to 0"
	}
	return fmt.Sprintf("a signal is above its activation: at least %d", s.After)
}

func (s Step) stabilization() string {
	f := s.Facts
	if f.Down {
		return fmt.Sprintf("up to %d were wanted within the last %s: %d instead of %d", s.After, duration(f.Window), s.After, s.Before)
	}
	return fmt.Sprintf("only %d were wanted all through the last %s: %d instead of %d", s.After, duration(f.Window), s.After, s.Before)
}

func onTheWay(f Facts) string {
	out := fmt.Sprintf("%d on the way", f.Coming)
	if f.Wait > 0 {
		out += fmt.Sprintf(" (ready in ~%s)", duration(f.Wait))
	}
	if f.Stuck > 0 {
		out += fmt.Sprintf(", %d stuck", f.Stuck)
	}
	return out
}

func upOrDown(down bool) string {
	if down {
		return "down"
	}
	return "up"
}

// quantity writes a value with as many digits as a person wants to read.
func quantity(x float64, unit string) string {
	digits := 0
	switch a := math.Abs(x); {
	case a == 0 || a >= 100:
	case a >= 10:
		digits = 1
	default:
		digits = 2
	}
	s := strconv.FormatFloat(x, 'f', digits, 64)
	if strings.Contains(s, ".") {
		s = strings.TrimRight(strings.TrimRight(s, "0"), ".")
	}
	if math.Abs(x) >= 1e9 {
		s = strconv.FormatFloat(x, 'g', 3, 64)
	}
	if unit == "" || unit == "ratio" {
		return s
	}
	return s + " " + unit
}

func percent(x float64) string { return quantity(100*x, "%") }

func duration(d time.Duration) string {
	switch {
	case d >= 10*time.Minute:
		return fmt.Sprintf("%d min", int(d.Round(time.Minute).Minutes()))
	case d >= time.Second:
		return fmt.Sprintf("%d s", int(d.Round(time.Second).Seconds()))
	}
	return fmt.Sprintf("%d ms", d.Milliseconds())
}

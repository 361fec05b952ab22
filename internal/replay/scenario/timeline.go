// SPDX-License-Identifier: Apache-2.0

package scenario

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gpupilot/gpupilot/internal/scale"
)

// event is a line of the timeline: the changes of the observation from then on.
type event struct {
	line        int
	at          time.Duration
	assignments []assignment
}

// assignment is one field of a line, such as serving=2@97.
type assignment struct{ key, value string }

// group is a set of pods in one phase, with their values of each signal.
type group struct {
	count  int
	values [][]float64 // by pod, oldest first; the last is that of all others; nil: no values
	absent [][]bool    // true: no reading, in contrast to a reading of NaN
}

// maxPods bounds a group, so that a typing error does not exhaust the memory.
const maxPods = 10_000

func parseTimeline(b []byte) (out []event, err error) {
	for _, l := range lines(b) {
		words := strings.Fields(l.text)
		e := event{line: l.line}
		if e.at, err = parseTime(words[0]); err != nil {
			return nil, fmt.Errorf("line %d: %w", l.line, err)
		}
		for _, w := range words[1:] {
			key, value, _ := strings.Cut(w, "=")
			e.assignments = append(e.assignments, assignment{key, value})
		}
		out = append(out, e)
	}
	return out, nil
}

func parseTime(s string) (time.Duration, error) {
	d, err := time.ParseDuration(s)
	if err != nil || d < 0 || d%tick != 0 {
		return 0, fmt.Errorf("%q is not a time: want whole seconds since the start, such as 90s or 5m", s)
	}
	return d, nil
}

// parseGroup reads N, N@VALUE, N@VALUE,VALUE,… or @VALUE,VALUE,…
func parseGroup(s string, signals int) (g group, err error) {
	count, values, hasValues := strings.Cut(s, "@")
	if hasValues {
		for _, v := range strings.Split(values, ",") {
			x, silent, err := parseValues(v, signals)
			if err != nil {
				return g, err
			}
			g.values, g.absent = append(g.values, x), append(g.absent, silent)
		}
	}
	g.count = len(g.values)
	if count != "" {
		if g.count, err = strconv.Atoi(count); err != nil || g.count < 0 || g.count > maxPods {
			return g, fmt.Errorf("%q is not a group of pods: want a number, and the pods' values after @, such as 2@97 or @97,95", s)
		}
	}
	return g, nil
}

// parseValues parses one value for each signal, separated by /; - is no value.
func parseValues(s string, signals int) (out []float64, silent []bool, err error) {
	parts := strings.Split(s, "/")
	if len(parts) > signals {
		return nil, nil, fmt.Errorf("%q has %d values, but the policy has %d signals", s, len(parts), signals)
	}
	for _, p := range parts {
		if p == "-" {
			out, silent = append(out, math.NaN()), append(silent, true)
			continue
		}
		x, err := strconv.ParseFloat(p, 64)
		if err != nil {
			return nil, nil, fmt.Errorf("%q is not a value: want a number, NaN, Inf, or - for none", p)
		}
		out, silent = append(out, x), append(silent, false)
	}
	return out, silent, nil
}

// parseArrivals parses the requests/s that arrive at each serving pod, one number for
// each signal.
func parseArrivals(s string, signals []scale.Signal) (g group, err error) {
	if g, err = parseGroup("1@"+s, len(signals)); err != nil {
		return g, err
	}
	if len(g.values) != 1 {
		return g, fmt.Errorf("%q: all pods have the same arrival rate: want one number for each signal, separated by /", s)
	}
	for i, x := range g.values[0] {
		switch {
		case g.absent[0][i]:
		case !(x >= 0) || math.IsInf(x, 1):
			return g, fmt.Errorf("%q: want requests/s, 0 or more, or - for none", s)
		case signals[i].Law != scale.Batching:
			return g, fmt.Errorf("%q: %s does not count requests, unlike a preset's first signal: want - for it", s, signals[i].Name)
		}
	}
	return g, nil
}

// tokenLatencies are the times between tokens and to the first token of a pod's
// requests; 0: absent.
type tokenLatencies struct{ perToken, firstToken time.Duration }

// parsePaces parses LATENCY or LATENCY/FIRST for each serving pod, oldest first; the
// last is that of all others; - is none.
func parsePaces(s string, signals []scale.Signal) (out []tokenLatencies, err error) {
	if !slices.ContainsFunc(signals, func(sig scale.Signal) bool { return sig.Learned() }) {
		return nil, fmt.Errorf("%q: the policy does not learn a target, which needs a preset with an slo", s)
	}
	for _, one := range strings.Split(s, ",") {
		var p tokenLatencies
		if one == "-" {
			out = append(out, p)
			continue
		}
		latency, first, hasFirst := strings.Cut(one, "/")
		if p.perToken, err = parseLatency(latency); err != nil {
			return nil, err
		}
		if hasFirst {
			if p.firstToken, err = parseLatency(first); err != nil {
				return nil, err
			}
		}
		out = append(out, p)
	}
	return out, nil
}

func parseLatency(s string) (time.Duration, error) {
	d, err := time.ParseDuration(s)
	if err != nil || d <= 0 {
		return 0, fmt.Errorf("%q is not a latency: want the time between tokens, such as 12ms, or both latencies, such as 12ms/300ms", s)
	}
	return d, nil
}

// readings returns the readings of pod i of the group, measured at a time.
func (g *group) readings(i int, at time.Time) []scale.Reading {
	if len(g.values) == 0 {
		return nil
	}
	i = min(i, len(g.values)-1)
	return readings(g.values[i], g.absent[i], at)
}

func readings(values []float64, silent []bool, at time.Time) []scale.Reading {
	out := make([]scale.Reading, len(values))
	for k, v := range values {
		if !silent[k] {
			out[k] = scale.Reading{Value: v, At: at, OK: true}
		}
	}
	return out
}

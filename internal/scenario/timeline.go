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

// event is a line of the timeline: what is seen otherwise from then on.
type event struct {
	line int
	at   time.Duration
	sets []set
}

// set is one word of a line, such as serving=2@97.
type set struct{ key, value string }

// group is some pods in a phase, with what each of them tells of each signal.
type group struct {
	count  int
	values [][]float64 // by pod, oldest first; the last stands for the rest; NaN and nil: nothing
	silent [][]bool    // a value that is not told, as opposed to NaN, which is
}

// maxPods bounds a group: enough for any story, and for a person to be warned.
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
			e.sets = append(e.sets, set{key, value})
		}
		out = append(out, e)
	}
	return out, nil
}

func parseTime(s string) (time.Duration, error) {
	d, err := time.ParseDuration(s)
	if err != nil || d < 0 || d%tick != 0 {
		return 0, fmt.Errorf("%q is no time: want whole seconds from the beginning, such as 90s or 5m", s)
	}
	return d, nil
}

// parseGroup reads N, N@VALUE, N@VALUE,VALUE,… or @VALUE,VALUE,…
func parseGroup(s string, signals int) (g group, err error) {
	count, values, told := strings.Cut(s, "@")
	if told {
		for _, v := range strings.Split(values, ",") {
			x, silent, err := parseValues(v, signals)
			if err != nil {
				return g, err
			}
			g.values, g.silent = append(g.values, x), append(g.silent, silent)
		}
	}
	g.count = len(g.values)
	if count != "" {
		if g.count, err = strconv.Atoi(count); err != nil || g.count < 0 || g.count > maxPods {
			return g, fmt.Errorf("%q is no group of pods: want a number, and after @ what each tells, such as 2@97 or @97,95", s)
		}
	}
	return g, nil
}

// parseValues reads one value for each signal, with / between them; - is none.
func parseValues(s string, signals int) (out []float64, silent []bool, err error) {
	parts := strings.Split(s, "/")
	if len(parts) > signals {
		return nil, nil, fmt.Errorf("%q has %d values, the policy %d signals", s, len(parts), signals)
	}
	for _, p := range parts {
		if p == "-" {
			out, silent = append(out, math.NaN()), append(silent, true)
			continue
		}
		x, err := strconv.ParseFloat(p, 64)
		if err != nil {
			return nil, nil, fmt.Errorf("%q is no value: want a number, NaN, Inf, or - for none", p)
		}
		out, silent = append(out, x), append(silent, false)
	}
	return out, silent, nil
}

// parseCame reads the requests/s that come to each pod that serves, one number
// for each signal.
func parseCame(s string, signals []scale.Signal) (g group, err error) {
	if g, err = parseGroup("1@"+s, len(signals)); err != nil {
		return g, err
	}
	if len(g.values) != 1 {
		return g, fmt.Errorf("%q: the same comes to each pod: want one number for each signal, with / between them", s)
	}
	for i, x := range g.values[0] {
		switch {
		case g.silent[0][i]:
		case !(x >= 0) || math.IsInf(x, 1):
			return g, fmt.Errorf("%q: want requests/s, 0 or more, or - for none", s)
		case signals[i].Law != scale.Batching:
			return g, fmt.Errorf("%q: %s is no number of requests, as a preset's first signal is: want - there", s, signals[i].Name)
		}
	}
	return g, nil
}

// pace is how long a pod's requests wait: for the next token, and for the first
// one, 0 where that is not told.
type pace struct{ latency, first time.Duration }

// parsePaces reads LATENCY or LATENCY/FIRST for each pod that serves, oldest
// first, the last for the rest; - is none.
func parsePaces(s string, signals []scale.Signal) (out []pace, err error) {
	if !slices.ContainsFunc(signals, func(sig scale.Signal) bool { return sig.Learned() }) {
		return nil, fmt.Errorf("%q: the policy learns no target: that takes a preset with an slo", s)
	}
	for _, one := range strings.Split(s, ",") {
		var p pace
		if one == "-" {
			out = append(out, p)
			continue
		}
		latency, first, two := strings.Cut(one, "/")
		if p.latency, err = parseLatency(latency); err != nil {
			return nil, err
		}
		if two {
			if p.first, err = parseLatency(first); err != nil {
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
		return 0, fmt.Errorf("%q is no latency: want the time between tokens, such as 12ms, or with that to the first one, 12ms/300ms", s)
	}
	return d, nil
}

// readings are what pod i of the group tells, measured at some time.
func (g *group) readings(i int, at time.Time) []scale.Reading {
	if len(g.values) == 0 {
		return nil
	}
	i = min(i, len(g.values)-1)
	return readings(g.values[i], g.silent[i], at)
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

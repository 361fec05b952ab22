// SPDX-License-Identifier: Apache-2.0

package arena

import (
	"cmp"
	"math"
	"slices"

	"github.com/gpupilot/gpupilot/internal/replay/trace"
)

// Load is a trace of the arena, and how its requests are drawn.
type Load struct {
	Name string

	rate           func(t float64) float64 // requests/s at a second of traceSeconds
	prompt, output size
	shared         float64 // first tokens of a prompt that are the same in all requests

	recorded []trace.Request // instead of the above
}

// size is a log-normal distribution of token counts.
type size struct{ median, sigma float64 }

const (
	traceSeconds = 180
	blockTokens  = 512
)

// Loads returns the seven generated public traces of Planner Gym
// (src/autoscaling_arena/workloads).
func Loads() []Load {
	flat := func(float64) float64 { return 5.6 }
	staircase := func(t float64) float64 { return 1 + math.Floor(t/20) }
	longPrompt, shortOutput := size{6000, 0.8}, size{34, 0.5}
	return []Load{
		{Name: "flat", rate: flat, prompt: longPrompt, output: shortOutput},
		{Name: "staircase", rate: staircase, prompt: longPrompt, output: shortOutput},
		{Name: "square wave", rate: func(t float64) float64 {
			if math.Mod(t, 40) < 20 {
				return 10
			}
			return 1
		}, prompt: longPrompt, output: shortOutput},
		{Name: "flash crowd", rate: func(t float64) float64 {
			if t >= 80 && t < 95 {
				return 30
			}
			return 3
		}, prompt: longPrompt, output: shortOutput},
		{Name: "diurnal", rate: func(t float64) float64 {
			return max(0, 5.6+4*math.Sin(2*math.Pi*t/traceSeconds))
		}, prompt: longPrompt, output: shortOutput},
		{Name: "decode-heavy", rate: staircase, prompt: size{200, 0.5}, output: size{600, 0.5}},
		{Name: "shared prefix", rate: flat, prompt: size{1000, 0.5}, output: size{200, 0.5}, shared: 8 * blockTokens},
	}
}

// mooncakeRequests is how many requests the published match replays of Mooncake's trace.
const mooncakeRequests = 1000

// requests draws the requests, over stretch times the published time at the same rates, and
// returns the seconds of the load. A recorded load is the published number of first
// requests, or for a stretch all of its first stretch × traceSeconds.
func (l *Load) requests(seed uint32, stretch float64) (out []trace.Request, seconds float64) {
	if l.recorded != nil {
		return l.firstRequests(stretch)
	}
	rng := newMersenne(seed)
	seconds = traceSeconds * stretch
	for t := 0.0; t < seconds; t++ {
		for range rng.poisson(l.rate(t / stretch)) {
			out = append(out, trace.Request{At: (t + rng.float64()) * 1000})
		}
	}
	slices.SortFunc(out, func(a, b trace.Request) int { return cmp.Compare(a.At, b.At) })
	for i := range out {
		q := &out[i]
		q.At = math.Floor(q.At) / 1000 // whole milliseconds
		q.Prompt, q.Output = rng.tokens(l.prompt), rng.tokens(l.output)
		q.Prompt -= l.cached(q.Prompt)
	}
	return out, seconds
}

// cached returns the prompt tokens that are in the prefix cache. At least one is computed.
func (l *Load) cached(prompt float64) float64 { return min(l.shared, prompt-1) }

func (l *Load) firstRequests(stretch float64) (out []trace.Request, seconds float64) {
	out = l.recorded
	if stretch == 1 {
		out = out[:min(len(out), mooncakeRequests)]
	} else if i := slices.IndexFunc(out, func(q trace.Request) bool { return q.At >= traceSeconds*stretch }); i >= 0 {
		out = out[:i]
	}
	return out, math.Floor(out[len(out)-1].At) + 1
}

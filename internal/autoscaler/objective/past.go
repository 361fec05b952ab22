// SPDX-License-Identifier: Apache-2.0

package objective

import (
	"math"
	"slices"
	"sync"
	"time"

	"github.com/gpupilot/gpupilot/internal/scale"
	"github.com/gpupilot/gpupilot/internal/scale/promise"
	"github.com/gpupilot/gpupilot/internal/window/history"
)

// Past reads the minutes of a workload: those from one time until another, oldest first. The
// values are those of the metrics, in their order; the mean of a missing one is NaN.
type Past interface {
	Each(w history.Workload, from, to time.Time, metrics []history.Metric, f func(at time.Time, values []history.Value))
}

// Recorded is where a workload's load is recorded.
type Recorded struct {
	Past     Past // nil: nowhere
	Workload history.Workload
	// Tokens are the metrics of a signal: the tokens/s of the prompts, and of the outputs.
	Tokens func(signal int) []history.Metric
	Turn   *sync.Mutex // whoever has it reads; the others try again later
}

// Learner has the engine learn its plans. The zero Learner has not learned. It is not safe for
// concurrent use.
type Learner struct {
	learned, recalled time.Time // the last time
	from              time.Time // the load before is another target's
}

// Forget has the next plans be made from the load after now: that before is another target's.
func (l *Learner) Forget(now time.Time) { *l = Learner{from: now} }

// Learn returns the state with new plans every scale.LearnInterval: after a start at once, from
// what was recorded.
func (l *Learner) Learn(p *scale.Policy, s scale.State, r Recorded, now time.Time) scale.State {
	if !slices.ContainsFunc(p.Signals, func(x scale.Signal) bool { return x.Objective > 0 }) {
		return s
	}
	if l.learned.IsZero() {
		l.learned = now
	}
	due := now.Sub(l.learned) >= scale.LearnInterval
	if (l.recalled.IsZero() || due) && r.Past != nil && r.Turn.TryLock() {
		// Later calls find what was read from Prometheus meanwhile.
		s = scale.Recall(*p, s, func(signal int, from, until time.Time) []promise.Load {
			if from.Before(l.from) {
				from = l.from
			}
			return Steps(r.Past, r.Workload, r.Tokens(signal), from, until)
		})
		r.Turn.Unlock()
		due, l.recalled = due || l.recalled.IsZero(), now
	}
	if due {
		l.learned, s = now, scale.Learn(*p, s)
	}
	return s
}

// Steps returns a workload's recorded load in the engine's steps, of which the last one ends
// at until. tokens are the metrics of the prompts' and of the outputs' tokens/s. Steps of which
// the history has nothing are missing; nil: it has nothing of all of them.
func Steps(past Past, w history.Workload, tokens []history.Metric, from, until time.Time) (steps []promise.Load) {
	const step = promise.StepSeconds * time.Second
	n := int(until.Sub(from) / step)
	if n <= 0 {
		return nil
	}
	past.Each(w, from.Add(-time.Minute), until, tokens, func(at time.Time, values []history.Value) {
		mean := promise.Load{Prompt: float32(values[0].Mean), Output: float32(values[1].Mean)}
		highest := promise.Load{Prompt: float32(values[0].Max), Output: float32(values[1].Max)}
		for i, l := range promise.Minute(mean, highest) {
			begin := at.Add(time.Duration(i) * step)
			k := n - int(math.Round(until.Sub(begin).Seconds()/promise.StepSeconds))
			if k < 0 || k >= n || l == promise.Missing {
				continue
			}
			if steps == nil {
				steps = missing(n)
			}
			steps[k] = l
		}
	})
	return steps
}

// missing returns steps without a load.
func missing(n int) []promise.Load {
	steps := make([]promise.Load, n)
	for i := range steps {
		steps[i] = promise.Missing
	}
	return steps
}

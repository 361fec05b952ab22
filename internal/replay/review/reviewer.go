// SPDX-License-Identifier: Apache-2.0

// Package review replays what the controller has recorded of a GPUAutoscaler: under its own
// policy, under a few others, and under an HPA with the same targets. It is the backtest of
// the page. Whoever may see the page can ask for one, so one replay runs at a time, it leaves
// most of the time to what scales, its work is bounded, and a namespace has few of them.
package review

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/base/bearer"
	"github.com/gpupilot/gpupilot/internal/base/meter"
	"github.com/gpupilot/gpupilot/internal/window/view"
)

const (
	// keepResult is how long a result counts, and keepRefusal the reason why there is none:
	// the history grows. keepResults bounds the memory: a result has a few kB.
	keepResult  = time.Hour
	keepRefusal = 5 * time.Minute
	keepResults = 256
	// A namespace may begin turnsAtOnce replays, and another one each turnEvery.
	turnsAtOnce    = 4
	turnEvery      = 10 * time.Minute
	turnNamespaces = 4096
	// mostWaiting bounds the queue, in which a namespace has one place.
	mostWaiting = 32
)

// Deps are what a Reviewer reads.
type Deps struct {
	// Object returns a GPUAutoscaler; nil: there is none.
	Object func(namespace, name string) *v1alpha1.GPUAutoscaler
	// Minutes returns what was recorded of it.
	Minutes func(namespace, name string, q *view.MinuteQuery) (m view.Minutes, known bool, err error)
	// Price returns the USD of a GPU-hour of a workload's pods; 0: unknown. nil: there are no prices.
	Price func(namespace, kind, name string) float64
}

// Reviewer replays workloads, one at a time.
type Reviewer struct {
	deps   Deps
	turns  *bearer.Buckets // by namespace
	wake   chan struct{}
	replay func(ctx context.Context, j *job) (view.Backtest, error)

	mu      sync.Mutex
	results map[workload]result
	queue   []*job // the first one is running once it has begun
	ended   map[view.BacktestState]uint64
}

type workload struct{ namespace, name string }

// result is an answer, of one version of an object's spec.
type result struct {
	spec   [sha256.Size]byte
	answer view.Backtest
	until  time.Time
}

// job is a replay that waits or runs.
type job struct {
	workload
	object *v1alpha1.GPUAutoscaler
	spec   [sha256.Size]byte
	begun  bool
	parts  [2]int // done, and all of them
}

// New returns a Reviewer. It replays while Run runs.
func New(d Deps) *Reviewer {
	r := &Reviewer{
		deps: d, turns: bearer.NewBuckets(turnsAtOnce, 1/turnEvery.Seconds(), turnNamespaces), wake: make(chan struct{}, 1),
		results: map[workload]result{}, ended: map[view.BacktestState]uint64{},
	}
	r.replay = r.study
	return r
}

// Backtest returns the result of a workload, or how far its replay is. It asks for a replay
// if there is no result of the present spec. known is false for an unknown workload.
func (r *Reviewer) Backtest(namespace, name string) (b view.Backtest, known bool) {
	object := r.deps.Object(namespace, name)
	if object == nil {
		return b, false
	}
	text, err := json.Marshal(object.Spec)
	if err != nil {
		return refused("the object cannot be encoded"), true
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	j := &job{workload: workload{namespace, name}, object: object, spec: sha256.Sum256(text)}
	now := time.Now()
	if x, ok := r.results[j.workload]; ok && x.spec == j.spec && now.Before(x.until) {
		return x.answer, true
	}
	for i, other := range r.queue {
		if other.workload == j.workload && other.spec == j.spec {
			return other.progress(i), true
		}
		if other.namespace == namespace {
			return view.Backtest{State: view.BacktestWaiting, Text: "another replay of the namespace comes first"}, true
		}
	}
	if len(r.queue) >= mostWaiting {
		return view.Backtest{State: view.BacktestWaiting, Text: fmt.Sprintf("%d replays of other namespaces wait already", len(r.queue))}, true
	}
	if ok, retry := r.turns.Take(namespace, now); !ok {
		return refused(fmt.Sprintf("the namespace has had its replays for now: the next one may begin in %.0f min; gpupilot backtest --from-cluster %s/%s runs on your machine",
			math.Ceil(retry.Minutes()), namespace, name)), true
	}
	r.queue = append(r.queue, j)
	select {
	case r.wake <- struct{}{}:
	default:
	}
	return j.progress(len(r.queue) - 1), true
}

func refused(why string) view.Backtest {
	return view.Backtest{State: view.BacktestRefused, Text: why}
}

// progress says how far a job is that has this place in the queue. r.mu is held.
func (j *job) progress(place int) view.Backtest {
	switch {
	case j.begun && j.parts[1] > 0:
		return view.Backtest{State: view.BacktestRunning, Text: fmt.Sprintf("%d of %d parts of the history are replayed", j.parts[0], j.parts[1])}
	case j.begun:
		return view.Backtest{State: view.BacktestRunning, Text: "the history is read"}
	case place == 0:
		return view.Backtest{State: view.BacktestWaiting, Text: "it begins now"}
	case place == 1:
		return view.Backtest{State: view.BacktestWaiting, Text: "1 other replay comes first"}
	}
	return view.Backtest{State: view.BacktestWaiting, Text: fmt.Sprintf("%d other replays come first", place)}
}

// Run replays what is asked for until ctx is done.
func (r *Reviewer) Run(ctx context.Context) {
	for {
		j := r.first()
		if j == nil {
			select {
			case <-ctx.Done():
				return
			case <-r.wake:
			}
			continue
		}
		b, err := r.replay(ctx, j)
		if ctx.Err() != nil {
			return
		}
		keep := keepResult
		if err != nil {
			b, keep = refused(err.Error()), keepRefusal
		}
		r.end(j, result{j.spec, b, time.Now().Add(keep)})
	}
}

// first begins the first job; nil: there is none.
func (r *Reviewer) first() *job {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.queue) == 0 {
		return nil
	}
	r.queue[0].begun = true
	return r.queue[0]
}

// end keeps the result of the first job.
func (r *Reviewer) end(j *job, x result) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.queue = r.queue[1:]
	r.ended[x.answer.State]++
	r.results[j.workload] = x
	if len(r.results) <= keepResults {
		return
	}
	oldest := j.workload
	for w, y := range r.results { // of the others, the one that ends first goes
		if w != j.workload && (oldest == j.workload || y.until.Before(r.results[oldest].until)) {
			oldest = w
		}
	}
	delete(r.results, oldest)
}

// note notes how many parts of a job are done.
func (r *Reviewer) note(j *job, done, all int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	j.parts = [2]int{done, all}
}

// Meter collects the metrics.
func (r *Reviewer) Meter(to meter.Sink) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, state := range []view.BacktestState{view.BacktestDone, view.BacktestRefused} {
		to.Counter("gpupilot_page_backtests_total", "Replays for the page that ended, by the state: done, or refused: the history cannot be replayed.", float64(r.ended[state]), "state", string(state))
	}
	to.Gauge("gpupilot_page_backtests_waiting", "Replays for the page that wait or run.", float64(len(r.queue)))
}

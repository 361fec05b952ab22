// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"sync"
	"time"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

// With a goroutine for each device, a tick wakes a dozen threads. That costs
// more than the reads, most of which take less than a millisecond. Fast devices
// are therefore read one after the other.
const (
	// sweepShare is the part of an interval that the reads of one sweep may
	// take in total, by their durations at the last tick.
	sweepShare = 1.0 / 50
	// sweepPatience is the part of a tick's patience that a sweep gets. After
	// that the remaining devices are read by their own goroutines, so that a
	// hung device does not delay the others for long.
	sweepPatience = 1.0 / 4
)

// sweep is a sequence of reads by one goroutine. If a read hangs, the loop
// abandons the sweep.
type sweep struct {
	mu   sync.Mutex
	todo []task // not begun
	done []reading
}

// task is one read.
type task struct {
	worker *worker
	question
}

// run makes the reads and sends the sweep to out at its end.
func (s *sweep) run(ctx context.Context, out chan<- *sweep) {
	for t, ok := s.next(); ok; t, ok = s.next() {
		s.add(t.worker.perform(t.question))
	}
	select {
	case out <- s:
	case <-ctx.Done():
	}
}

func (s *sweep) next() (task, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.todo) == 0 {
		return task{}, false
	}
	t := s.todo[0]
	s.todo = s.todo[1:]
	return t, true
}

func (s *sweep) add(r reading) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.done = append(s.done, r)
}

// results removes and returns the readings made so far.
func (s *sweep) results() []reading {
	s.mu.Lock()
	defer s.mu.Unlock()
	done := s.done
	s.done = nil
	return done
}

// rest removes and returns the tasks that have not begun.
func (s *sweep) rest() []task {
	s.mu.Lock()
	defer s.mu.Unlock()
	todo := s.todo
	s.todo = nil
	return todo
}

// askDevices starts the reads of the devices. It returns the sweeps that it
// started and the workers to wait for.
func (l *loop) askDevices(ctx context.Context, now time.Time, want gpu.FieldSet) (sweeps []*sweep, asked []*worker) {
	budget := time.Duration(float64(l.Interval()) * sweepShare)
	health := l.deps.WantsHealth != nil && l.deps.WantsHealth()
	var tasks []task
	var sum time.Duration
	flush := func() {
		if s := l.begin(ctx, tasks); s != nil {
			sweeps = append(sweeps, s)
		}
		tasks, sum = nil, 0
	}
	for _, w := range l.workers {
		q, ok := w.question(now, want, health)
		if !ok {
			continue
		}
		if w.took <= l.patience() { // a device that was slow is read, but not waited for
			asked = append(asked, w)
		}
		if !w.known || w.took > budget {
			w.ask <- q // does not block: the last question was received before its result
			continue
		}
		if sum+w.took > budget {
			flush()
		}
		tasks, sum = append(tasks, task{w, q}), sum+w.took
	}
	flush()
	return sweeps, asked
}

// begin starts a sweep. A single device is read by its own goroutine.
func (l *loop) begin(ctx context.Context, tasks []task) *sweep {
	switch len(tasks) {
	case 0:
		return nil
	case 1:
		tasks[0].worker.ask <- tasks[0].question
		return nil
	}
	s := &sweep{todo: tasks, done: make([]reading, 0, len(tasks))}
	go s.run(ctx, l.sweeps)
	return s
}

// rescue handles the results of unfinished sweeps, and hands their remaining
// devices to the devices' own goroutines.
func (l *loop) rescue(sweeps []*sweep) {
	for _, s := range sweeps {
		for _, t := range s.rest() {
			t.worker.ask <- t.question
		}
		l.swept(s)
	}
}

// swept handles a sweep's results.
func (l *loop) swept(s *sweep) {
	for _, r := range s.results() {
		if !r.worker.ended {
			l.accept(r)
		}
	}
}

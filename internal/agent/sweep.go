// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"sync"
	"time"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

// A goroutine for each device makes a tick wake a dozen threads, which costs more
// than what they do: most reads take less than a millisecond. Devices that
// answer quickly are therefore read one after the other.
const (
	// sweepShare is the part of an interval that the reads of one sweep may take
	// together, as they took the last time.
	sweepShare = 1.0 / 50
	// sweepPatience is the part of a tick's patience after which a sweep that
	// has not ended gives the devices that it has not begun to their own
	// goroutines: a device that hangs holds up no other for long.
	sweepPatience = 1.0 / 4
)

// sweep is reads by one goroutine. A read that hangs leaves it behind.
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

// run makes the reads, and hands itself to out at its end.
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

// results takes the readings that there are.
func (s *sweep) results() []reading {
	s.mu.Lock()
	defer s.mu.Unlock()
	done := s.done
	s.done = nil
	return done
}

// rest takes the tasks that have not begun.
func (s *sweep) rest() []task {
	s.mu.Lock()
	defer s.mu.Unlock()
	todo := s.todo
	s.todo = nil
	return todo
}

// askDevices has the devices read, and gives the sweeps that it began and the
// workers that are worth waiting for.
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
		if w.took <= l.patience() { // who was slow before is asked, but not waited for
			asked = append(asked, w)
		}
		if !w.known || w.took > budget {
			w.ask <- q // has room: the last one was taken before its result came
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

// begin starts a sweep; one device alone is read by its own goroutine.
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

// rescue takes what sweeps have read in, and has the devices that they have not
// begun read by their own goroutines.
func (l *loop) rescue(sweeps []*sweep) {
	for _, s := range sweeps {
		for _, t := range s.rest() {
			t.worker.ask <- t.question
		}
		l.swept(s)
	}
}

// swept takes a sweep's readings in.
func (l *loop) swept(s *sweep) {
	for _, r := range s.results() {
		if !r.worker.ended {
			l.read(r)
		}
	}
}

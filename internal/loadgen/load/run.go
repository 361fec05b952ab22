// SPDX-License-Identifier: Apache-2.0

package load

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gpupilot/gpupilot/internal/loadgen/cuda"
)

// Job is what one process does: a load on the first GPU that it sees.
type Job struct {
	List      bool       `json:"list,omitempty"` // only report the GPUs
	Library   string     `json:"library"`        // libcuda
	NVML      string     `json:"nvml"`
	Index     int        `json:"index"` // of the GPU, for the reports
	Sequences []Sequence `json:"sequences,omitempty"`
	Bounds    Bounds     `json:"bounds"`
}

// Message is what a process reports: one of the fields.
type Message struct {
	GPU     *GPU     `json:"gpu,omitempty"` // a GPU that is seen or, of a load, that is used
	Step    *Step    `json:"step,omitempty"`
	Note    string   `json:"note,omitempty"` // what the user should know
	Failure *Failure `json:"failure,omitempty"`
}

// HangAfter is how long a slice may take before the GPU counts as lost. A slice ends by itself.
const HangAfter = 5 * time.Second

// Run does a job and sends what it has to report. It returns a *Failure, or an error of context.Canceled. If the GPU
// hangs, Run returns while a thread is still in the driver: the process must end.
func Run(ctx context.Context, job Job, clock Clock, send func(Message) error) error {
	return (&runner{job: job, clock: clock, send: send, hangAfter: HangAfter}).start(ctx)
}

// start runs the job in a thread of its own.
func (r *runner) start(ctx context.Context) error {
	done := make(chan error, 1)
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	r.cancel = cancel
	go func() {
		runtime.LockOSThread() // a context belongs to a thread; the thread ends with the goroutine
		done <- r.run(ctx)
	}()
	err := r.wait(ctx, done)
	if cause := context.Cause(ctx); err == nil && cause != nil {
		err = cause
	}
	switch {
	case err == nil:
		return nil
	case errors.Is(err, context.Canceled):
		return err
	}
	return failureOf(err)
}

// runner is a job under way.
type runner struct {
	job       Job
	clock     Clock
	hangAfter time.Duration
	cancel    context.CancelCauseFunc

	mu   sync.Mutex // of send
	send func(Message) error

	beat    atomic.Int64 // when the device last answered, Unix ns; 0: nothing is in flight
	reading atomic.Pointer[cuda.Reading]
}

// hangTicks is how many times a GPU is looked at before it counts as lost.
const hangTicks = 10

// wait waits for the job's end, or until the GPU hangs. It counts its own ticks: on a machine that stands still, they are
// late too.
func (r *runner) wait(ctx context.Context, done <-chan error) error {
	every := r.hangAfter / hangTicks
	tick := time.NewTicker(every)
	defer tick.Stop()
	unchanged, last := 0, int64(0)
	for {
		select {
		case err := <-done:
			return err
		case <-tick.C:
			most := hangTicks
			if ctx.Err() != nil {
				most = min(most, int(max(1, time.Second/every)))
			}
			beat := r.beat.Load()
			if unchanged++; beat == 0 || beat != last {
				unchanged, last = 0, beat
			}
			if unchanged > most {
				return failuref(ExitLost, "the GPU has not finished within %v what ends by itself within %v: it hangs. "+
					"The kernel's log may name the cause: dmesg | grep -i xid", time.Duration(most)*every, 2*slice)
			}
		}
	}
}

func (r *runner) report(m Message) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.send(m)
}

func (r *runner) note(format string, args ...any) {
	_ = r.report(Message{Note: fmt.Sprintf(format, args...)}) // without a reader, the next step fails
}

func (r *runner) run(ctx context.Context) (err error) {
	r.beat.Store(time.Now().UnixNano())
	if r.job.List {
		return r.list()
	}
	s, err := open(r.job, r.note)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	if err := s.start(); err != nil {
		return err
	}
	if err := r.report(Message{GPU: &s.gpu}); err != nil {
		return err
	}
	stop := r.watch(ctx, s)
	defer stop()
	for i, q := range r.job.Sequences {
		if err := r.sequence(ctx, s, i, q); err != nil {
			return fmt.Errorf("%s: %w", Names(q.Kinds), err)
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
	return nil
}

// list reports the GPUs that this process sees.
func (r *runner) list() error {
	driver, err := cuda.Open(r.job.Library)
	if err != nil {
		return err
	}
	devices, err := driver.Devices()
	if err != nil {
		return err
	}
	for _, d := range devices {
		m, err := modelOf(d)
		if err != nil {
			return err
		}
		g := gpuOf(d, m)
		if err := r.report(Message{GPU: &g}); err != nil {
			return err
		}
	}
	return nil
}

// watch reads the sensors until stop is called, and ends the load at a bound.
func (r *runner) watch(ctx context.Context, s *session) (stop func()) {
	if s.sensors == nil {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	r.look(s)
	var wait sync.WaitGroup
	wait.Go(func() {
		tick := time.NewTicker(sensorEvery)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				r.look(s)
			}
		}
	})
	return func() { cancel(); wait.Wait() }
}

// sensorEvery is how often the sensors are read. NVML averages power over 25 to 100 ms.
const sensorEvery = 200 * time.Millisecond

func (r *runner) look(s *session) {
	reading := s.sensors.Read()
	r.reading.Store(&reading)
	b := r.job.Bounds
	switch {
	case b.MaxWatts > 0 && reading.Watts != nil && *reading.Watts > b.MaxWatts:
		r.cancel(failuref(ExitBound, "stopped: the GPU draws %.0f W, more than --power-max %.0f", *reading.Watts, b.MaxWatts))
	case b.MaxCelsius > 0 && reading.Celsius != nil && *reading.Celsius > b.MaxCelsius:
		r.cancel(failuref(ExitBound, "stopped: the GPU has %.0f °C, more than --temp-max %.0f", *reading.Celsius, b.MaxCelsius))
	case b.MaxWatts > 0 && reading.Watts == nil, b.MaxCelsius > 0 && reading.Celsius == nil:
		r.cancel(failuref(ExitUnmeasured, "--power-max and --temp-max cannot be kept: NVML does not tell the power or the temperature"))
	}
}

// sequence runs the kinds of a sequence at the same time, each on a thread.
func (r *runner) sequence(ctx context.Context, s *session, index int, q Sequence) error {
	type member struct {
		kind Kind
		work work
	}
	var members []member
	for _, name := range q.Kinds {
		k, ok := KindOf(name)
		if !ok {
			return fmt.Errorf("no load %q", name)
		}
		r.beat.Store(time.Now().UnixNano())
		w, err := s.work(k, len(q.Kinds) == 1)
		if err != nil {
			return err
		}
		members = append(members, member{k, w})
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	errs := make([]error, len(members))
	var wait sync.WaitGroup
	for i, m := range members {
		p := &pump{
			work: watched{m.work, &r.beat}, clock: r.clock, shape: q.Shapes[m.kind.Name], limit: q.Duration, every: q.Report,
			emit: func(_ int, t totals) error { return r.step(s, index, m.kind, m.work, t) },
		}
		wait.Go(func() {
			runtime.LockOSThread()
			if errs[i] = s.context.Use(); errs[i] == nil {
				errs[i] = p.run(ctx)
			}
			if errs[i] != nil {
				cancel()
			}
		})
	}
	wait.Wait()
	return errors.Join(errs...)
}

// watched is work that says when the device last answered.
type watched struct {
	work
	beat *atomic.Int64
}

func (w watched) start(slot int, length time.Duration, duty float64) (time.Duration, error) {
	w.beat.Store(time.Now().UnixNano())
	return w.work.start(slot, length, duty)
}

func (w watched) finish(slot int) (measured, error) {
	w.beat.Store(time.Now().UnixNano())
	return w.work.finish(slot)
}

// step reports what a step's sums mean.
func (r *runner) step(s *session, index int, k Kind, w work, t totals) error {
	step := Step{
		Sequence: index, Load: k.Name, Field: k.Field, GPU: s.gpu, Unit: k.Unit(), RateUnit: k.RateUnit, Variant: w.variant(),
		Start: t.start, End: t.start.Add(time.Duration(t.wall)), Duty: t.asked / t.wall, Busy: t.busy / t.wall,
	}
	step.Generated, step.Error, step.Rate, step.Share = w.generated(t, s.timerStep)
	if hertz := t.hertz(); hertz > 0 {
		step.ClockMHz = ptr(hertz / 1e6)
	}
	if reading := r.reading.Load(); reading != nil {
		step.Watts, step.Celsius, step.Throttle = reading.Watts, reading.Celsius, slices.Clone(reading.Throttle)
	}
	return r.report(Message{Step: &step})
}

// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

const (
	// enumerateEvery is the time between enumerations while devices are
	// readable; enumerateSoon is the time from the loss of a device to the next
	// one.
	enumerateEvery = 10 * time.Second
	enumerateSoon  = time.Second
	// minBackoff and maxBackoff limit the time between enumerations while no
	// device is found.
	minBackoff = time.Second
	maxBackoff = 30 * time.Second
	// firstEnumeration is how long the first tick waits for the first
	// enumeration: a driver that starts takes seconds, and a hung one never
	// answers. firstPatience is how long it then waits for the first readings.
	firstEnumeration = 10 * time.Second
	firstPatience    = time.Second
	// keepGone is how long a GPU that was taken away stays listed as down, so that
	// an alert on it has time to fire. A GPU that fails stays without end.
	keepGone = 10 * time.Minute
)

// errStarting is the snapshot's error while the first enumeration takes longer
// than firstEnumeration.
var errStarting = errors.New("the GPUs are still being enumerated")

// errSilent is the error of a device whose read has not returned for
// gpu.MaxAge.
var errSilent = errors.New("a read of the device has not returned from the GPU library")

// enumeration is the result of one enumeration.
type enumeration struct {
	devices []gpu.Device
	err     error
	asked   time.Time
	onBus   []gpu.BusGPU // read before devices; nil: unknown
}

// loop is the tick loop's state; one goroutine owns it.
type loop struct {
	*Agent
	workers  []*worker
	readings chan reading
	sweeps   chan *sweep

	enumerations  chan enumeration
	enumerating   bool
	nextEnumerate time.Time
	backoff       time.Duration
	backendErr    error // the error of the last enumeration, if it found no device
	partial       bool  // the last enumeration failed for some devices
	unselected    bool  // it found devices, and none of them is selected
	driver        driver
	inventory     inventory
	release       release

	unmatched map[string]*unmatched // by resource
	strayJobs map[string]bool       // the files of the job mapping that named no device, as logged

	owners    ownership
	answers   chan answer
	strangers bool // none of the pods that hold devices is in the API server

	parts partReads

	collectors collectors
	processes  processReads
	topology   topologyReads

	errors uint64
}

func newLoop(a *Agent) *loop {
	parts, _ := a.deps.Reader.(gpu.PartReader)
	return &loop{
		parts:        partReads{reader: parts, answers: make(chan partsRead, 1)},
		Agent:        a,
		readings:     make(chan reading),
		sweeps:       make(chan *sweep),
		enumerations: make(chan enumeration, 1),
		answers:      make(chan answer, 1),
		inventory:    inventory{answers: make(chan offers, 1)},
		release:      release{finished: make(chan error, 1)},
		backoff:      minBackoff,
		backendErr:   errStarting,
		unmatched:    map[string]*unmatched{},
		strayJobs:    map[string]bool{},
		processes:    processReads{read: a.deps.Processes, workers: map[string]*processWorker{}, answers: make(chan processReading)},
		topology:     topologyReads{answers: make(chan topologyRead, 1)},
	}
}

func (l *loop) run(ctx context.Context) {
	l.start(ctx)
	l.tick(ctx)
	timer := time.NewTimer(l.untilTick())
	defer timer.Stop()
	for ctx.Err() == nil {
		if l.next(ctx, timer.C) {
			l.tick(ctx)
			timer.Reset(l.untilTick())
		}
	}
}

// start waits for the first enumeration, for up to firstEnumeration: until then
// there is nothing to show. Its failure is something to show.
func (l *loop) start(ctx context.Context) {
	began := time.Now()
	l.enumerate(began)
	for l.enumerating && ctx.Err() == nil && time.Since(began) < firstEnumeration {
		now := time.Now()
		l.lastWait.Store(now.UnixNano())
		l.awaitFor(ctx, now, time.Second, func() bool { return l.enumerating })
	}
}

// patience returns how long a tick waits for answers.
func (l *loop) patience() time.Duration {
	if l.lastTick.Load() == 0 {
		return firstPatience
	}
	return min(max(l.Interval()/4, 20*time.Millisecond), time.Second)
}

// untilTick returns the time until the next tick.
func (l *loop) untilTick() time.Duration {
	interval := l.Interval()
	return untilTick(time.Now(), interval, Phase(l.cfg.Node, interval))
}

// next handles the next answer. It reports whether late fired or the interval
// changed first. If ctx is done, it may handle nothing.
func (l *loop) next(ctx context.Context, late <-chan time.Time) (isLate bool) {
	select {
	case <-ctx.Done():
	case <-late:
		return true
	case <-l.repaced:
		return true
	case p := <-l.processes.answers:
		l.processesAnswered(p)
	case t := <-l.topology.answers:
		l.topologyAnswered(t)
	case r := <-l.readings:
		l.accept(r)
	case s := <-l.sweeps:
		l.swept(s)
	case e := <-l.enumerations:
		l.enumerated(ctx, e, time.Now())
	case a := <-l.answers:
		l.answered(a)
	case release := <-l.orders:
		l.ordered(release, time.Now())
	case err := <-l.release.finished:
		l.releasedBy(err)
	case o := <-l.inventory.answers:
		l.offersAnswered(o)
	case p := <-l.parts.answers:
		l.partsAnswered(p)
	}
	return false
}

// tick starts all reads, waits for the answers for up to patience, and
// publishes.
func (l *loop) tick(ctx context.Context) {
	now := time.Now()
	if l.released() {
		l.keepReleased(now)
	}
	if l.released() {
		l.tickReleased(ctx, now)
		return
	}
	if !now.Before(l.nextEnumerate) {
		l.enumerate(now)
	}
	want := *l.fields.Load()
	sweeps, asked := l.askDevices(ctx, now, want)
	l.askTopology(now)
	l.askOffers(ctx, now)
	listing := l.askProcesses(ctx, now)
	waitOwners := l.owners.ask(ctx, now, l.Interval(), l.deps.Owners, l.answers) && !l.owners.slow
	waitParts := l.askParts(now, want)
	unread := func() bool { return slices.ContainsFunc(asked, func(w *worker) bool { return w.asked.Equal(now) }) }
	if len(sweeps) > 0 {
		l.awaitFor(ctx, now, time.Duration(float64(l.patience())*sweepPatience), unread)
		l.rescue(sweeps)
	}
	l.await(ctx, now, func() bool { return waitOwners && l.owners.busy || waitParts && l.parts.busy || unread() })
	l.await(ctx, now, func() bool { return slices.ContainsFunc(listing, func(w *processWorker) bool { return w.busy }) })
	if ctx.Err() == nil {
		l.publish(now)
	}
}

// tickReleased is tick without reads of the GPUs.
func (l *loop) tickReleased(ctx context.Context, now time.Time) {
	waitOwners := l.owners.ask(ctx, now, l.Interval(), l.deps.Owners, l.answers) && !l.owners.slow
	l.await(ctx, now, func() bool { return waitOwners && l.owners.busy })
	if ctx.Err() == nil {
		l.publish(now)
	}
}

// await handles answers while wanted returns true, for up to patience.
func (l *loop) await(ctx context.Context, since time.Time, wanted func() bool) {
	l.awaitFor(ctx, since, l.patience(), wanted)
}

// awaitFor is await with another patience.
func (l *loop) awaitFor(ctx context.Context, since time.Time, patience time.Duration, wanted func() bool) {
	if !wanted() {
		return
	}
	timeout := time.NewTimer(time.Until(since.Add(patience)))
	defer timeout.Stop()
	for wanted() && ctx.Err() == nil {
		if l.next(ctx, timeout.C) {
			return
		}
	}
}

// publish builds and publishes the snapshot of the tick that began at now.
func (l *loop) publish(now time.Time) {
	s := &gpu.Snapshot{
		Time: now, Interval: l.Interval(), Backend: l.deps.Reader.Backend(), Err: l.backendErr,
		Devices:    make([]gpu.DeviceSnapshot, len(l.workers)),
		OwnersTime: l.owners.at, OwnersErr: l.owners.err,
		Collectors: l.collectors.list(), Inventory: l.inventory.now,
		Parts: l.parts.list, PartsTime: l.parts.at, PartsErr: l.parts.err,
	}
	profiler, _ := l.deps.Reader.(gpu.Profiler)
	explainer, _ := l.deps.Reader.(gpu.Explainer)
	for i, w := range l.workers {
		s.Devices[i] = w.snap
		if profiler != nil {
			s.Devices[i].NoProfiling = profiler.NoProfiling(w.snap.UUID)
		}
		if explainer != nil {
			s.Devices[i].Reasons = explainer.Reasons(w.snap.UUID)
		}
		s.Devices[i].XIDs = l.deps.Reader.XIDs(w.snap.UUID)
		if m := w.snap.MIG; m != nil {
			s.Devices[i].GPUXIDs = l.deps.Reader.XIDs(m.ParentUUID)
		}
		if !w.asked.IsZero() && now.Sub(w.asked) > gpu.MaxAge(l.Interval()) {
			s.Devices[i].Err = errSilent
			l.logSilent(w)
		}
	}
	if l.deps.Pods != nil {
		s.Pods, s.PodsErr = l.deps.Pods()
	}
	allocs := living(l.owners.allocs, s)
	l.logStrangers(len(l.owners.allocs) > 0 && len(allocs) == 0)
	s.Unmatched = gpu.Attribute(s.Devices, allocs)
	l.logUnmatched(s)
	l.addProcesses(s)
	l.addJobs(s)
	l.snapshot.Store(s)
	end := time.Now()
	l.deps.Publish(s, Stats{Duration: end.Sub(now), Errors: l.errors}, end)
	l.lastTick.Store(end.UnixNano())
}

// accept handles the result of a read.
func (l *loop) accept(r reading) {
	was := r.worker.snap.Err
	if l.released() && r.err != nil { // it was in the library when that was closed
		r.worker.asked = time.Time{}
		return
	}
	r.worker.accept(r)
	l.collectors.done(ofGPUs, r.asked, r.took, r.err)
	if r.err != nil {
		l.errors++
	}
	uuid := r.worker.snap.UUID
	switch {
	case was == nil && r.err != nil:
		l.deps.Log.Warn("device cannot be read", "uuid", uuid, "err", r.err)
		if changed(r.err) {
			l.enumerateBy(time.Now().Add(enumerateSoon))
		}
	case was != nil && r.err == nil:
		l.deps.Log.Info("device is read again", "uuid", uuid)
	}
}

// changed reports whether a read's error means that the devices have changed
// since the enumeration.
func changed(err error) bool {
	for _, e := range []error{gpu.ErrLost, gpu.ErrUnknownDevice, gpu.ErrNoDriver, gpu.ErrNoLibrary} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

func (l *loop) logSilent(w *worker) {
	if !w.silent {
		w.silent = true
		l.deps.Log.Warn("device does not answer", "uuid", w.snap.UUID, "since", w.asked)
	}
}

// answered handles the kubelet's answer.
func (l *loop) answered(a answer) {
	now := time.Now()
	was := l.owners.err
	l.owners.busy = false
	l.owners.slow = now.Sub(l.owners.asked) > l.patience()
	l.owners.accept(a, now)
	l.collectors.done(ofAllocations, l.owners.asked, now.Sub(l.owners.asked), a.err)
	switch {
	case was == nil && a.err != nil:
		l.deps.Log.Warn("owners of the devices cannot be read; the last known owners are kept", "err", a.err)
	case was != nil && a.err == nil:
		l.deps.Log.Info("owners of the devices are read again")
	}
}

// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

// enumerate starts an enumeration unless one is running. It does not limit the
// time of the library's call.
func (l *loop) enumerate(now time.Time) {
	if l.enumerating {
		return
	}
	l.enumerating = true
	l.nextEnumerate = now.Add(enumerateEvery)
	go func() {
		e := enumeration{asked: now}
		if l.deps.Bus != nil {
			e.onBus = l.deps.Bus()
		}
		e.devices, e.err = l.deps.Reader.Devices()
		l.enumerations <- e // buffered
	}()
}

// enumerateBy makes the next enumeration start at t or earlier.
func (l *loop) enumerateBy(t time.Time) {
	if t.Before(l.nextEnumerate) {
		l.nextEnumerate = t
	}
}

// enumerated handles the result of an enumeration.
func (l *loop) enumerated(ctx context.Context, e enumeration, now time.Time) {
	l.enumerating = false
	l.collectors.done(ofDevices, e.asked, now.Sub(e.asked), e.err)
	l.nextEnumerate = now.Add(enumerateEvery)
	if l.released() {
		return // another enumeration follows the release
	}
	if e.err != nil {
		l.errors++
	}
	if len(e.devices) == 0 {
		l.nextEnumerate = now.Add(l.backoff)
		l.backoff = min(2*l.backoff, maxBackoff)
	} else {
		l.backoff = minBackoff
	}
	l.setBackend(e)
	l.takeInventory(e)
	l.judgeDriver(e, now)
	// An empty list with an error does not mean that there are no devices.
	if len(e.devices) > 0 || e.err == nil {
		l.adopt(ctx, e, now)
	}
}

// setBackend stores and logs whether any device can be read.
func (l *loop) setBackend(e enumeration) {
	was := l.backendErr
	l.backendErr = nil
	if len(e.devices) == 0 {
		l.backendErr = e.err
	}
	backend := l.deps.Reader.Backend()
	switch {
	case l.backendErr != nil && (was == nil || was.Error() != l.backendErr.Error()):
		l.deps.Log.Warn("no GPU can be read", "backend", backend, "err", l.backendErr)
	case l.backendErr == nil && was != nil:
		l.deps.Log.Info("GPUs can be enumerated", "backend", backend, "found", len(e.devices))
	}
	if partial := e.err != nil && len(e.devices) > 0; partial != l.partial {
		l.partial = partial
		if partial {
			l.deps.Log.Warn("some GPUs cannot be enumerated", "err", e.err)
		}
	}
}

// adopt starts workers for new selected devices, and ends those of devices that
// are gone. A GPU that is no longer enumerated stays for keepGone.
func (l *loop) adopt(ctx context.Context, e enumeration, now time.Time) {
	selected := l.cfg.Devices.Filter(e.devices)
	if none := len(selected) == 0 && len(e.devices) > 0; none != l.unselected {
		l.unselected = none
		if none {
			l.deps.Log.Warn("--devices selects none of the devices", "found", len(e.devices))
		}
	}
	old := make(map[string]*worker, len(l.workers))
	for _, w := range l.workers {
		old[w.snap.UUID] = w
	}
	workers := make([]*worker, 0, len(selected))
	for _, d := range selected {
		w := old[d.UUID]
		if w == nil {
			w = startWorker(ctx, d, l.deps.Reader, l.readings)
			l.deps.Log.Info("device found", "uuid", d.UUID, "index", d.Index, "model", d.Model)
		}
		delete(old, d.UUID)
		w.snap.Device, w.gone = d, time.Time{}
		workers = append(workers, w)
	}
	for _, w := range l.workers {
		if old[w.snap.UUID] == nil {
			continue
		}
		if w.stays(e, now) {
			workers = append(workers, w)
			continue
		}
		w.end()
		l.deps.Log.Info("device is gone", "uuid", w.snap.UUID)
	}
	slices.SortStableFunc(workers, func(a, b *worker) int { return cmp.Compare(a.snap.Index, b.snap.Index) })
	l.workers = workers
}

// stays reports whether a device that is no longer selected stays listed. A
// destroyed MIG instance does not, nor does a GPU that is enumerated but not
// selected: it has instances now. A GPU that is missing from a complete
// enumeration was taken away, and stays for keepGone. While an enumeration
// fails for some GPUs, a missing GPU may be one of them, and stays.
func (w *worker) stays(e enumeration, now time.Time) bool {
	if w.snap.MIG != nil && e.err == nil {
		return false
	}
	if slices.ContainsFunc(e.devices, func(d gpu.Device) bool { return d.UUID == w.snap.UUID }) {
		return false
	}
	if w.gone.IsZero() || e.err != nil && w.snap.MIG == nil {
		w.gone = now
	}
	return now.Sub(w.gone) < keepGone
}

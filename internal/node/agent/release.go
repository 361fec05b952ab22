// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"time"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

// ReleaseFor is how long the GPUs stay released unless the agent is told to go on: longer
// than a reset, a change of MIG instances or the installation of a driver.
const ReleaseFor = 10 * time.Minute

// release is the loop's state of a release: nobody reads the GPUs, and the library is closed.
type release struct {
	until    time.Time // zero: not released
	begun    bool      // Release was called
	busy     bool      // and has not returned
	finished chan error
}

// Release makes the agent let go of the GPUs: within about a second no file of a device is
// open, if no call hangs in the GPU library. The agent reads them again after ReleaseFor, or
// when Resume is called. It does not block.
func (a *Agent) Release() { a.order(true) }

// Resume ends a release. Without one it does nothing.
func (a *Agent) Resume() { a.order(false) }

// order replaces an order that the loop has not seen yet.
func (a *Agent) order(release bool) {
	select {
	case <-a.orders:
	default:
	}
	select {
	case a.orders <- release:
	default: // another caller was faster
	}
}

// ordered begins, extends or ends a release.
func (l *loop) ordered(release bool, now time.Time) {
	_, able := l.deps.Reader.(gpu.Releaser)
	switch {
	case !release:
		if l.released() {
			l.release.until = now
		}
	case !able:
		l.deps.Log.Warn("the GPUs are not released: this backend holds none", "backend", l.deps.Reader.Backend())
	default:
		l.deps.Log.Info("the GPUs are being released", "until", now.Add(ReleaseFor))
		l.release.until = now.Add(ReleaseFor)
	}
}

func (l *loop) released() bool { return !l.release.until.IsZero() }

// keepReleased lets go of the GPUs once no enumeration runs, which would open the library
// again, and ends the release when it is over.
func (l *loop) keepReleased(now time.Time) {
	r := &l.release
	switch {
	case r.busy || l.enumerating:
	case !now.Before(r.until):
		l.deps.Log.Info("the GPUs are read again after a release")
		r.until, r.begun = time.Time{}, false
		l.nextEnumerate, l.backoff = now, minBackoff
	case !r.begun:
		r.begun, r.busy = true, true
		l.backendErr = gpu.ErrReleased
		l.inventory.listed = nil
		l.inventory.take()
		reader := l.deps.Reader.(gpu.Releaser)         //nolint:forcetypeassert // ordered has checked it
		go func() { r.finished <- reader.Release() }() // buffered
	}
}

// releasedBy handles the result of a release.
func (l *loop) releasedBy(err error) {
	l.release.busy = false
	if err != nil {
		l.deps.Log.Warn("the GPUs are not released: stop the agent instead", "err", err)
		return
	}
	l.deps.Log.Info("the GPUs are released: no file of a GPU is open", "until", l.release.until)
}

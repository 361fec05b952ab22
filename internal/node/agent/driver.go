// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"fmt"
	"time"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

// replacedGrace is how long a driver may have another version than its library before the
// program ends: an upgrade may replace the library after the driver.
const replacedGrace = 30 * time.Second

// driver is what the enumerations have said about the driver's version.
type driver struct {
	fitted   bool      // an enumeration found no driver of another version
	replaced time.Time // since when the versions differ; zero: they do not
	version  string    // the loaded driver's, when GPUs were last enumerated; empty: not known
}

// judge returns the error of an enumeration, as a gpu.ErrReplaced if no driver is found
// though one is loaded, of another version than the last one: DCGM does not say that.
func (d *driver) judge(e enumeration, version string) error {
	if len(e.devices) > 0 {
		d.version = version
	}
	if errors.Is(e.err, gpu.ErrNoDriver) && !errors.Is(e.err, gpu.ErrReplaced) && version != "" && d.version != "" && version != d.version {
		return fmt.Errorf("%w (%s, before %s): %w", gpu.ErrReplaced, version, d.version, e.err)
	}
	return e.err
}

// judgeDriver ends the program if the driver was replaced while it ran: its library is
// loaded for as long as it runs, and in a container also mounted. A program that has
// seen nothing else since its start goes on: another start would not help. It opens the
// new library when it is there.
func (l *loop) judgeDriver(e enumeration, now time.Time) {
	d := &l.driver
	version := ""
	if l.deps.DriverVersion != nil {
		version = l.deps.DriverVersion()
	}
	err := d.judge(e, version)
	if !errors.Is(err, gpu.ErrReplaced) {
		d.fitted, d.replaced = true, time.Time{}
		return
	}
	if d.replaced.IsZero() {
		d.replaced = now
		if d.fitted {
			l.deps.Log.Warn("the GPU driver was replaced: the agent ends if its library is not replaced too", "within", replacedGrace)
		} else {
			l.deps.Log.Warn("the GPU library is not that of the driver; the agent waits for the right one. " +
				"If it is mounted into the container, delete the pod: a new one gets the new library")
		}
	}
	if d.fitted && l.deps.Fail != nil && now.Sub(d.replaced) >= replacedGrace {
		l.deps.Fail(fmt.Errorf("the driver was replaced %s ago; the agent ends so that its next start loads the new library: %w",
			now.Sub(d.replaced).Round(time.Second), err))
	}
}

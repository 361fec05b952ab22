// SPDX-License-Identifier: Apache-2.0

package series

import (
	"time"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

// measuredFor is for how long shares that nobody measures any more keep the
// device's value from standing for them. A gap in their measurement must not
// make a pod seem to use all of a device that it shares.
const measuredFor = time.Minute

// seriesOf finds the series of a pod on a device that it holds: its own share
// where it shares the device with other pods and shares are measured, else the
// device's. Where they are measured and its own is not, there is none. t.mu is
// held.
func (t *Target) seriesOf(d *device, k podKey, f gpu.FieldID, now int64) (uint32, bool) {
	if len(d.shares) == 0 || !d.isShared() {
		return d.series(f)
	}
	own, found, measured := uint32(0), false, false
	for i := range d.shares {
		s := &d.shares[i]
		if s.field != f {
			continue
		}
		measured = measured || t.series[s.id].last >= now-int64(measuredFor)
		if k.is(s.pod) {
			own, found = s.id, true
		}
	}
	if measured {
		return own, found
	}
	return d.series(f)
}

// isShared says whether several pods hold the device.
func (d *device) isShared() bool {
	for i := range d.owners {
		if o := &d.owners[i]; o.Namespace != d.owners[0].Namespace || o.Pod != d.owners[0].Pod {
			return true
		}
	}
	return false
}

// is says whether s is the pod as Key has it.
func (k podKey) is(s string) bool {
	n := len(k.namespace)
	return len(s) == n+1+len(k.pod) && s[:n] == k.namespace && s[n] == '/' && s[n+1:] == k.pod
}

// SPDX-License-Identifier: Apache-2.0

package series

import (
	"time"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

// measuredFor is the time after the last measured share of a device for which pods
// have no value, instead of the device's value. With the device's value, a gap in the
// measurement would look as if each pod used the whole shared device.
const measuredFor = time.Minute

// seriesOf finds the series of a pod on a device that it holds. On a shared device
// with measured shares, it is the pod's share, and there is none if only other pods'
// shares are measured. Otherwise it is the device's series.
func (c *columns) seriesOf(d *device, k podKey, f gpu.FieldID, now int64) (uint32, bool) {
	if len(d.shares) == 0 || !d.isShared() {
		return d.series(f)
	}
	own, found, measured := uint32(0), false, false
	for i := range d.shares {
		s := &d.shares[i]
		if s.field != f {
			continue
		}
		measured = measured || c.series[s.id].last >= now-int64(measuredFor)
		if k.is(s.pod) {
			own, found = s.id, true
		}
	}
	if measured {
		return own, found
	}
	return d.series(f)
}

// isShared reports whether several pods hold the device.
func (d *device) isShared() bool {
	for i := range d.owners {
		if o := &d.owners[i]; o.Namespace != d.owners[0].Namespace || o.Pod != d.owners[0].Pod {
			return true
		}
	}
	return false
}

// is reports whether s is the pod in the form of Key.Pod.
func (k podKey) is(s string) bool {
	n := len(k.namespace)
	return len(s) == n+1+len(k.pod) && s[:n] == k.namespace && s[n] == '/' && s[n+1:] == k.pod
}

// SPDX-License-Identifier: Apache-2.0

package gpu

import "time"

// IdleUtilization is the GPUUtil, in %, up to which a GPU is idle. NVML and DCGM report
// whole percents: an active GPU has at least 1 %.
const IdleUtilization = 0

// IsActive reports whether a GPU with this GPUUtil (%) is active.
func IsActive(utilization float64) bool { return utilization > IdleUtilization }

// IdleRun is since when a GPU shows no activity. The zero IdleRun has no value yet. A fleet has one
// for each GPU.
type IdleRun struct {
	since int64 // ns since 1970; 0: it is active; negative: it may have been idle before that time
	last  int64 // of the newest value, ns since 1970; 0: none
}

// Add adds a GPUUtil (%) with its time, in ns since 1970. A time of more than gap without a value may
// have had activity: the run then begins again at this value.
func (r *IdleRun) Add(stamp, gap int64, utilization float64) {
	switch {
	case IsActive(utilization):
		r.since = 0
	case r.last == 0 || stamp-r.last > gap:
		r.since = -stamp
	case r.since == 0:
		r.since = r.last // the last activity
	}
	r.last = stamp
}

// Since returns since when the GPU shows no activity. atLeast reports that nothing is known of the time
// before. ok is false if the newest value shows activity, or there is none.
func (r IdleRun) Since() (at time.Time, atLeast, ok bool) {
	switch {
	case r.since == 0:
		return time.Time{}, false, false
	case r.since < 0:
		return time.Unix(0, -r.since), true, true
	}
	return time.Unix(0, r.since), false, true
}

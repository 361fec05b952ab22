// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"time"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

const (
	// unmatchedFor is how long devices of containers must be unknown before the log names
	// them: a new MIG instance is enumerated within enumerateEvery.
	unmatchedFor = time.Minute
	// maxUnmatched limits the resources that are named, until a restart.
	maxUnmatched = 64
)

// unmatched is the state of a resource whose devices match none of the collected ones.
type unmatched struct {
	since  time.Time // without a break; zero: all match
	logged bool
}

// logUnmatched names each resource once whose devices are none of those collected here, with
// one of them and what to do.
func (l *loop) logUnmatched(s *gpu.Snapshot) {
	if len(s.Devices) == 0 {
		return
	}
	first := map[string]*gpu.Allocation{}
	for i := range s.Unmatched {
		if a := &s.Unmatched[i]; first[a.Resource] == nil {
			first[a.Resource] = a
		}
	}
	for resource, u := range l.unmatched {
		if first[resource] == nil {
			u.since = time.Time{}
		}
	}
	for resource, a := range first {
		u := l.unmatched[resource]
		if u == nil && len(l.unmatched) < maxUnmatched {
			u = &unmatched{}
			l.unmatched[resource] = u
		}
		if u == nil || u.logged {
			continue
		}
		if u.since.IsZero() {
			u.since = s.Time
		}
		if !a.Uncounted && s.Time.Sub(u.since) < unmatchedFor {
			continue
		}
		u.logged = true
		message := "a container holds a device that is none of those collected here: --devices leaves it out, or the GPU library does not list it"
		if a.Uncounted {
			message = "containers hold GPUs under a resource that does not count as one: add it to --nvidia-resource-names, and to the controller's --gpu-resources"
		}
		l.deps.Log.Warn(message, "resource", resource, "device", a.DeviceID, "namespace", a.Owner.Namespace, "pod", a.Owner.Pod)
	}
}

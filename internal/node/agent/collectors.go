// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"time"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

// The collectors, under their names in gpupilot_collector_*.
const (
	ofDevices     = iota // enumerations
	ofGPUs               // reads of GPUs and MIG instances, each by itself
	ofParts              // reads of NvSwitches, NVLinks and CPUs
	ofAllocations        // questions to the kubelet, or to Docker
	numCollectors
)

// collectors is the state of each collector. A collector that never ran is not
// published.
type collectors [numCollectors]gpu.CollectorState

var collectorNames = [numCollectors]string{"devices", "gpus", "parts", "allocations"}

// done records one run of a collector: when it was asked, how long it took, and
// its error.
func (c *collectors) done(which int, asked time.Time, took time.Duration, err error) {
	s := &c[which]
	s.Name = collectorNames[which]
	if err != nil {
		s.Errors++
		return
	}
	if asked.Equal(s.Last) { // several runs in one tick: keep the slowest
		took = max(took, s.Took)
	}
	s.Last, s.Took = asked, took
}

// list returns the collectors that have run.
func (c *collectors) list() []gpu.CollectorState {
	out := make([]gpu.CollectorState, 0, numCollectors)
	for _, s := range c {
		if s.Name != "" {
			out = append(out, s)
		}
	}
	return out
}

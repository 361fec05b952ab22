// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"time"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

// The collectors, as gpupilot_collector_* name them.
const (
	ofDevices     = iota // enumerations
	ofGPUs               // reads of GPUs and MIG instances, each by itself
	ofParts              // reads of NvSwitches, NVLinks and CPUs
	ofAllocations        // questions to the kubelet, or to Docker
	numCollectors
)

// collectors is how they do. Those that were never asked are not shown.
type collectors [numCollectors]gpu.CollectorState

var collectorNames = [numCollectors]string{"devices", "gpus", "parts", "allocations"}

// done takes in how one went that was asked at a time.
func (c *collectors) done(which int, asked time.Time, took time.Duration, err error) {
	s := &c[which]
	s.Name = collectorNames[which]
	if err != nil {
		s.Errors++
		return
	}
	if asked.Equal(s.Last) { // several of one tick: the slowest tells
		took = max(took, s.Took)
	}
	s.Last, s.Took = asked, took
}

// list is what is published.
func (c *collectors) list() []gpu.CollectorState {
	out := make([]gpu.CollectorState, 0, numCollectors)
	for _, s := range c {
		if s.Name != "" {
			out = append(out, s)
		}
	}
	return out
}

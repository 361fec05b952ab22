// SPDX-License-Identifier: Apache-2.0

package load

import (
	"strings"
	"time"
)

// slice is the length of one kernel launch, and the period of a load with gaps. Two are in flight at most, so that a
// load ends within 40 ms, whatever became of the process that started it.
const slice = 20 * time.Millisecond

// Sequence is one selection and how it is run. Sequences run one after another.
type Sequence struct {
	Kinds    []string         `json:"kinds"`  // names; they run at the same time
	Shapes   map[string]Shape `json:"shapes"` // by kind
	Duration time.Duration    `json:"duration"`
	Report   time.Duration    `json:"report"` // length of a step
}

// Bounds are what a load must not exceed.
type Bounds struct {
	MemoryBytes uint64  `json:"memoryBytes"`
	MaxWatts    float64 `json:"maxWatts,omitempty"`   // 0: none
	MaxCelsius  float64 `json:"maxCelsius,omitempty"` // 0: none
}

// Names joins the names of kinds that run at the same time.
func Names(kinds []string) string { return strings.Join(kinds, "+") }

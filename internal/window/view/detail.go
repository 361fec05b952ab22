// SPDX-License-Identifier: Apache-2.0

package view

import "time"

// WorkloadDetail is one workload with what only its own page shows.
type WorkloadDetail struct {
	Time       time.Time     `json:"time"`
	MaxAge     time.Duration `json:"maxAge"`   // as View.MaxAge
	Workload   Workload      `json:"workload"` // its decision has inputs
	Conditions []Condition   `json:"conditions"`
	Spans      []Span        `json:"spans"` // oldest first
	// Changes are sentences that say which signal values would change the last decision; nil:
	// not known now.
	Changes   []string `json:"changes"`
	Decisions []Event  `json:"decisions"` // the last that changed its replicas, or would have, newest first
}

// Condition is a condition of a GPUAutoscaler.
type Condition struct {
	Type    string `json:"type"`
	Status  string `json:"status"`
	Reason  string `json:"reason"`
	Message string `json:"message"`
	Notable bool   `json:"notable,omitempty"` // not the usual status
}

// The kinds of a Span.
const (
	SpanCondition = "condition"
	SpanSchedule  = "schedule"
	SpanHeld      = "held"
)

// Span is a state of a workload that lasts.
type Span struct {
	Kind  string    `json:"kind"`
	Name  string    `json:"name"`
	Text  string    `json:"text,omitempty"` // why
	From  time.Time `json:"from"`
	Until time.Time `json:"until,omitzero"` // zero: it lasts
}

// Device is one GPU or MIG instance with all that its exporter says about it.
type Device struct {
	Time   time.Time     `json:"time"`
	MaxAge time.Duration `json:"maxAge"` // as View.MaxAge
	Node   string        `json:"node"`
	GPU    GPU           `json:"gpu"`
	State  State         `json:"state"`
	Fields []DeviceField `json:"fields"` // in order of their ids; those without a value are left out
}

// DeviceField is a field with its newest value and the last minutes.
type DeviceField struct {
	Name  string        `json:"name"`
	Help  string        `json:"help"`
	Unit  string        `json:"unit,omitempty"`
	Value float64       `json:"value"`
	Age   time.Duration `json:"age"` // in ns
	// Past are the values of the last ten minutes while its present owner has held it, oldest
	// first, as offsets in seconds from Time and values; a counter's are increases per second.
	Past [][2]float64 `json:"past,omitempty"`
}

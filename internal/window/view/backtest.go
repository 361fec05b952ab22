// SPDX-License-Identifier: Apache-2.0

package view

import "time"

// Backtest is what the recorded load of a workload would have cost and kept under its own
// policy and under others.
type Backtest struct {
	State BacktestState `json:"state"`
	// Text says how far a replay is, what it waits for, or why there is none.
	Text string `json:"text,omitempty"`

	Time     time.Time `json:"time,omitzero"` // of the replay
	From     time.Time `json:"from,omitzero"` // of the history
	To       time.Time `json:"to,omitzero"`
	Hours    float64   `json:"hours,omitempty"` // replayed
	Parts    int       `json:"parts,omitempty"` // in which they lie
	Recorded *float64  `json:"recordedGPUHours,omitempty"`

	// The answers: is the objective kept, at what cost, what would be saved, what to change.
	Kept   string `json:"kept,omitempty"`
	Cost   string `json:"cost,omitempty"`
	Saved  string `json:"saved,omitempty"`
	Change string `json:"change,omitempty"`

	Objective float64          `json:"objectivePercent,omitempty"`
	Price     float64          `json:"usdPerGPUHour,omitempty"`
	Policies  []BacktestPolicy `json:"policies,omitempty"` // the workload's own one first
	Notes     []string         `json:"notes,omitempty"`
}

// BacktestState is how far a replay is.
type BacktestState string

// The states.
const (
	BacktestDone    BacktestState = "done"
	BacktestRunning BacktestState = "running"
	BacktestWaiting BacktestState = "waiting"
	BacktestRefused BacktestState = "refused" // there is no replay, and Text says why
)

// BacktestPolicy is a policy with its result.
type BacktestPolicy struct {
	Name   string  `json:"name"`
	Missed float64 `json:"missedPercent"` // share of the requests over a limit
	Kept   int     `json:"partsKept"`     // parts in which the objective is kept
	// GPUHours are those of the whole history, counted up from the parts.
	GPUHours float64  `json:"gpuHours"`
	Cost     *float64 `json:"costUSD,omitempty"`
	// More is the share of the GPU-hours of the workload's own policy that this one takes
	// on top, in percent; below 0: it saves them.
	More float64 `json:"morePercent"`
}

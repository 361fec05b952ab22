// SPDX-License-Identifier: Apache-2.0

package view

import "time"

// NodePage is a part of the nodes that a request selects.
type NodePage struct {
	Time   time.Time     `json:"time"`
	Total  int           `json:"total"`  // number of nodes that the request selects
	Offset int           `json:"offset"` // of the first one in Nodes
	Nodes  []NodeSummary `json:"nodes"`
}

// WorkloadPage is a part of the workloads that a request selects.
type WorkloadPage struct {
	Time      time.Time  `json:"time"`
	Total     int        `json:"total"`
	Offset    int        `json:"offset"`
	Workloads []Workload `json:"workloads"`
}

// GPUPage is a part of the GPUs that a request selects.
type GPUPage struct {
	Time   time.Time     `json:"time"`
	MaxAge time.Duration `json:"maxAge"` // as View.MaxAge
	Total  int           `json:"total"`  // number of GPUs that the request selects
	Offset int           `json:"offset"` // of the first one in GPUs
	GPUs   []GPUEntry    `json:"gpus"`
}

// GPUEntry is a GPU with its node and its state.
type GPUEntry struct {
	Node  string `json:"node"`
	Pool  string `json:"pool,omitempty"`
	Model string `json:"model,omitempty"`
	State State  `json:"state"`
	GPU
}

// HolderPage are the pods that hold idle GPUs, those with the most first.
type HolderPage struct {
	Time  time.Time `json:"time"`
	Total int       `json:"total"`                   // number of such pods
	GPUs  float64   `json:"gpus"`                    // idle-held GPUs of all of them
	Price float64   `json:"usdPerGPUHour,omitempty"` // if there is one for all GPUs
	// Prices is the price list of the request, by which the costs are; empty: they are the controller's.
	Prices string `json:"prices,omitempty"`
	IdleCost
	Holders []Holder `json:"holders"`
}

// Holder is a pod that holds idle GPUs.
type Holder struct {
	Namespace string    `json:"namespace"`
	Pod       string    `json:"pod"`
	Node      string    `json:"node"`
	GPUs      float64   `json:"gpus"` // idle-held; of a GPU that several pods hold, each has its share
	HeldSince time.Time `json:"heldSince,omitzero"`
	// IdleSince is since when all of these GPUs are idle-held, as of GPU; zero: it is not known of all of them.
	IdleSince   time.Time `json:"idleSince,omitzero"`
	IdleAtLeast bool      `json:"idleAtLeast,omitempty"` // they may have been idle for longer
	IdleCost
}

// TokenHeader is the header for a token behind the API server's service proxy, which
// removes the header Authorization.
const TokenHeader = "X-Gpupilot-Token" // the name of a header

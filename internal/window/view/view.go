// SPDX-License-Identifier: Apache-2.0

// Package view is the fleet and the workloads at one moment, and a workload's past, as
// JSON: what the controller shows, and the page and the CLI read.
package view

import (
	"cmp"
	"time"

	"github.com/gpupilot/gpupilot/internal/scale"
)

// View is the state of the fleet and of the workloads at one moment. A pointer is nil
// if the value is unknown: missing is not zero.
type View struct {
	Time time.Time `json:"time"`
	// MaxAge is the age above which a value does not count, in ns.
	MaxAge   time.Duration `json:"maxAge"`
	Version  string        `json:"version"`
	Leader   bool          `json:"leader"`   // this replica is the leader, which decides
	LeaderID string        `json:"leaderID"` // the leader's identity

	Fleet    Counts   `json:"fleet"` // sums over all nodes
	Hottest  *Hottest `json:"hottest,omitempty"`
	Targeted Answers  `json:"targeted"` // sums over all targets
	Pools    []Pool   `json:"pools"`    // by name; null for a viewer who may not see nodes
	// Problems are nodes with problems: the first node of each group, the largest group of each kind first, then others.
	Problems []NodeSummary `json:"problems"`

	// Nodes are sorted by name. The list is empty for a fleet that is too large to
	// send whole; Omitted then has the number of nodes.
	Nodes     []Node     `json:"nodes"`
	Targets   []Target   `json:"targets"`   // the scrape targets, sorted by name; if not all are sent, those with a fault
	Workloads []Workload `json:"workloads"` // one per GPUAutoscaler, sorted by namespace and name
	HPAs      []HPA      `json:"hpas"`      // those that read the controller's metrics APIs, those with a problem first
	Recent    []Event    `json:"recent"`    // the last decisions that changed replicas, or would have, newest first
	Omitted   Omitted    `json:"omitted"`
	// Refresh is the time after which there is a newer view, in ns.
	Refresh time.Duration `json:"refresh"`

	// Namespaces are the namespaces that the viewer may see; null: all of them.
	Namespaces []string `json:"namespaces"`
	// UnaskedNamespaces is the number of namespaces whose rights are not known yet. A
	// later view has them.
	UnaskedNamespaces int `json:"unaskedNamespaces,omitempty"`
}

// Omitted is the number of entries that the limits removed from each list.
type Omitted struct {
	Pools      int `json:"pools,omitempty"`
	Problems   int `json:"problems,omitempty"`
	Nodes      int `json:"nodes,omitempty"`
	Targets    int `json:"targets,omitempty"`
	Workloads  int `json:"workloads,omitempty"`
	HPAs       int `json:"hpas,omitempty"`
	Recent     int `json:"recent,omitempty"`
	Namespaces int `json:"namespaces,omitempty"`
}

// Counts are sums over GPUs. MIG instances count as GPUs.
type Counts struct {
	Nodes        int `json:"nodes"`
	ProblemNodes int `json:"problemNodes"` // nodes with a problem
	// ProblemGPUs are the GPUs of these nodes that are stale or that the node's condition names; of a node without
	// any, all: the problem is its exporter's.
	ProblemGPUs int `json:"problemGPUs,omitempty"`
	GPUs        int `json:"gpus"`      // the sum of Active, Idle, Free and Stale
	Allocated   int `json:"allocated"` // a pod holds it
	Active      int `json:"active"`    // a pod holds it, and its fresh utilisation is at least 1 %
	Idle        int `json:"idle"`      // a pod holds it, and its fresh utilisation is below 1 %
	Free        int `json:"free"`      // no pod holds it, and it has a fresh utilisation
	Stale       int `json:"stale"`     // it has no fresh utilisation, or it is lost
	// Utilization is the mean of the fresh utilisations of allocated GPUs, in
	// percent; nil if there is none.
	Utilization *float64 `json:"utilization,omitempty"`

	// MaxTemperatureC is the highest fresh temperature, in °C; nil if there is none.
	MaxTemperatureC *float64 `json:"maxTemperatureCelsius,omitempty"`

	// Cost is what the allocated and the free GPUs cost; nil: none of them has a price.
	Cost *Cost `json:"cost,omitempty"`

	sum   float64 // the sum of those utilisations
	fresh int     // their number
	cost  Cost    // before it is known whether any GPU has a price
}

// Hottest is the GPU with the highest fresh temperature.
type Hottest struct {
	Node         string  `json:"node"`
	UUID         string  `json:"uuid"`
	Index        *int    `json:"index,omitempty"` // as of GPU
	Cell         int     `json:"cell,omitempty"`  // of NodeSummary.Cells, from 0
	TemperatureC float64 `json:"temperatureCelsius"`
}

// Answers counts scrape targets by state.
type Answers struct {
	Targets  int `json:"targets"`
	Up       int `json:"up"`
	Starting int `json:"starting"` // of pods that are not ready yet and do not answer
}

// Pool is a node pool, named by the well-known labels of nodes.
type Pool struct {
	Name   string   `json:"name"` // empty: nodes without such a label
	Models []string `json:"models,omitempty"`
	Counts
}

// NodeSummary is a node without its GPUs' values.
type NodeSummary struct {
	Name  string `json:"name"`
	Pool  string `json:"pool,omitempty"`
	Model string `json:"model,omitempty"`
	Counts
	// Cells has a character for each GPU: 0 to 4 for an allocated one by its
	// utilisation in steps of 20 %, . for one without an owner, - for one without
	// a fresh utilisation, x for a lost one.
	Cells    string   `json:"cells"`
	Problems []string `json:"problems,omitempty"`
	// ProblemSince is since when it has the first of its problems for which that is known; zero: for none.
	ProblemSince time.Time `json:"problemSince,omitzero"`
	// Alike is set in View.Problems, on the first node of a group: how many nodes of its pool have the same
	// kinds of problems, itself included. AlikeGPUs is the sum of their ProblemGPUs, and AlikeSince the earliest
	// known ProblemSince.
	Alike      int       `json:"alike,omitempty"`
	AlikeGPUs  int       `json:"alikeGPUs,omitempty"`
	AlikeSince time.Time `json:"alikeSince,omitzero"`

	severe bool // a GPU is stale, or the node's condition says that one is not healthy
}

// Node is a node with its GPUs.
type Node struct {
	Name string `json:"name"`
	GPUs []GPU  `json:"gpus"`

	Pool  string `json:"pool,omitempty"`  // from the node's labels; empty: unknown
	Model string `json:"model,omitempty"` // of its GPUs
	Fault string `json:"fault,omitempty"` // why its condition GPUHealthy is False
	// FaultSince is since when the condition is False; zero: unknown.
	FaultSince time.Time `json:"faultSince,omitzero"`
}

// GPU is one device (a GPU or a MIG instance).
type GPU struct {
	UUID           string   `json:"uuid"`
	Index          *int     `json:"index,omitempty"`          // of its GPU on the node, as nvidia-smi counts; nil: not known
	Utilization    *float64 `json:"utilization,omitempty"`    // percent
	MemoryUsedMiB  *float64 `json:"memoryUsedMiB,omitempty"`  // MiB
	MemoryTotalMiB *float64 `json:"memoryTotalMiB,omitempty"` // MiB
	PowerWatts     *float64 `json:"powerWatts,omitempty"`     // W
	TemperatureC   *float64 `json:"temperatureCelsius,omitempty"`
	Owners         []Owner  `json:"owners,omitempty"`
	// HeldSince is when these became the owners; zero: unknown.
	HeldSince time.Time `json:"heldSince,omitzero"`
	// IdleSince is since when it is idle-held without a gap in its values; zero: it is not idle-held, or that is unknown.
	// IdleAtLeast means that it may have been idle for longer: nothing is known of the time before.
	IdleSince   time.Time `json:"idleSince,omitzero"`
	IdleAtLeast bool      `json:"idleAtLeast,omitempty"`
	// USDPerHour is its price: of a MIG instance its share of the GPU's; nil: it has none.
	USDPerHour *float64 `json:"usdPerHour,omitempty"`
	// Share is the share of its GPU that a MIG instance is; 0: it is no instance, or it is not known.
	Share float64 `json:"share,omitempty"`
	// Slices are the compute slices of a MIG instance, as its exporter says; 0: not known.
	Slices int `json:"-"`
	// Lost is set if the node's condition says that the GPU cannot be read any more: none of its values counts.
	Lost bool `json:"lost,omitempty"`
	// Age is the age of the newest value, in ns. Above View.MaxAge, no value counts.
	Age time.Duration `json:"age"`
}

// Owner is a pod that holds a GPU.
type Owner struct {
	Namespace string `json:"namespace"`
	Pod       string `json:"pod"`
	Container string `json:"container,omitempty"`
}

// Target is one scrape target.
type Target struct {
	Name        string        `json:"name"`
	Node        string        `json:"node"`
	Kind        string        `json:"kind"`                // agent, dcgm-exporter or pod
	Namespace   string        `json:"namespace,omitempty"` // of a pod
	URL         string        `json:"url"`
	Up          bool          `json:"up"`
	LastSuccess time.Time     `json:"lastSuccess,omitzero"`
	Error       string        `json:"error,omitempty"`
	Lag         time.Duration `json:"lag"` // from the collection of the sample to its arrival, in ns
	// Starting is the start of a pod that is not ready yet. While it is set, a pod
	// that does not answer has no fault.
	Starting time.Time `json:"starting,omitzero"`
	// Contradiction is how the target's owners of GPUs contradict the API server.
	Contradiction string `json:"contradiction,omitempty"`

	Freshness  string `json:"freshness,omitempty"`  // how the age of the values is known: timestamp, energy, power or unknown
	Frozen     int    `json:"frozen,omitempty"`     // devices whose values have not changed for too long
	OutOfRange int    `json:"outOfRange,omitempty"` // values of the last page that were omitted
	Limited    string `json:"limited,omitempty"`    // its memory and refusals, if a limit applied
}

// Workload is one GPUAutoscaler with its target.
type Workload struct {
	Namespace string   `json:"namespace"`
	Name      string   `json:"name"`
	Kind      string   `json:"kind"`          // of the scale target
	Target    string   `json:"target"`        // the name of the scale target
	Actuation string   `json:"actuation"`     // Scale, HPA or Advise
	HPA       string   `json:"hpa,omitempty"` // the HorizontalPodAutoscaler that sets the replicas, with actuation: HPA
	Min       int32    `json:"min"`
	Max       int32    `json:"max"`
	Ready     bool     `json:"ready"`
	Problem   string   `json:"problem,omitempty"` // why it is not ready
	Waiting   string   `json:"waiting,omitempty"` // why it is not ready, if that is not a problem: no replica serves yet
	Signals   []Signal `json:"signals"`
	// AtLimit says that maxReplicas, a schedule or the budget keeps fewer replicas than the load needs, and how many that is.
	AtLimit string `json:"atLimit,omitempty"`
	// Override says what holds or bounds the replicas until when, and why.
	Override string `json:"override,omitempty"`
	// Schedules are the active ones. Min and Max are the bounds in force.
	Schedules []string `json:"schedules,omitempty"`
	// Rollout means that pods of more than one version run, or are being replaced.
	Rollout bool `json:"rollout,omitempty"`
	// Idle says that nobody uses the replicas, and when they are removed, or were.
	Idle string `json:"idle,omitempty"`
	// Leaving is the number of replicas that finish their requests before they are removed.
	Leaving int32 `json:"leaving,omitempty"`
	// Deletion says what becomes of the replicas when the GPUAutoscaler is deleted.
	Deletion string `json:"deletion,omitempty"`

	Objectives []Objective `json:"objectives,omitempty"` // of signals with an slo

	// StartingSince is the start of the replica that has been starting for the longest
	// time; zero: none is starting. Startup is the usual duration of a start, in ns; 0:
	// unknown.
	StartingSince time.Time     `json:"startingSince,omitzero"`
	Startup       time.Duration `json:"startup,omitempty"`

	// Decision is the last decision; nil before the first. Package scale renders its
	// sentences.
	Decision *Decision `json:"decision,omitempty"`
}

// HPA is a HorizontalPodAutoscaler that reads metrics of the controller, as kube-controller-manager has written its status.
type HPA struct {
	Namespace string   `json:"namespace"`
	Name      string   `json:"name"`
	Kind      string   `json:"kind"`   // of the scale target
	Target    string   `json:"target"` // the name of the scale target
	Min       int32    `json:"min"`
	Max       int32    `json:"max"`
	Current   int32    `json:"current"`
	Desired   int32    `json:"desired"`
	Metrics   []Signal `json:"metrics"`           // Value is a mean per pod where the target is one
	Problem   string   `json:"problem,omitempty"` // why it sets no replicas
	Note      string   `json:"note,omitempty"`    // what limits it, if that is no problem
}

// Signal is a signal with its newest value.
type Signal struct {
	Name   string   `json:"name"`
	Unit   string   `json:"unit,omitempty"`
	Value  *float64 `json:"value,omitempty"` // mean per serving replica, or the total
	Target float64  `json:"target"`
}

// Objective says how well an slo is kept. Shares are texts, and ranges where the servers'
// histograms leave one; empty: no request was counted.
type Objective struct {
	Signal     string   `json:"signal"`
	Objective  string   `json:"objective"`            // share of the requests, such as 99%
	Over       string   `json:"over"`                 // the time over which it is judged
	Attained   string   `json:"attained,omitempty"`   // share of the requests
	BudgetLeft string   `json:"budgetLeft,omitempty"` // share of the allowed misses
	Missed     bool     `json:"missed,omitempty"`     // the objective is certainly not kept now
	Burning    bool     `json:"burning,omitempty"`    // the budget is used up fast: an alert fires
	Burns      []Burn   `json:"burns,omitempty"`
	Cost       string   `json:"cost,omitempty"`     // mean replicas, by the recorded load
	Problems   []string `json:"problems,omitempty"` // why it cannot be kept or measured
	Sentence   string   `json:"sentence"`
}

// Burn is the rate at which an error budget is used in a window: at 1 it lasts for the
// objective's time.
type Burn struct {
	Window string  `json:"window"`
	Rate   float64 `json:"rate"`
}

// Decision is a decision with its explanation.
type Decision struct {
	Time          time.Time  `json:"time"`
	Current       int32      `json:"current"`
	Replicas      int32      `json:"replicas"`
	Serving       int32      `json:"serving"`
	Starting      int32      `json:"starting"`
	Unschedulable int32      `json:"unschedulable"`
	Rule          scale.Rule `json:"rule"`
	Why           string     `json:"why"`      // the sentence of the step that made it
	Sentence      string     `json:"sentence"` // those of all steps
	Steps         []Step     `json:"steps"`
	Inputs        []Input    `json:"inputs,omitempty"` // of an Event and of a WorkloadDetail
}

// Reason is why the replicas are that many, in one sentence. A controller of before has no Why.
func (d *Decision) Reason() string { return cmp.Or(d.Why, d.Sentence) }

// Input is the value of a signal in a decision.
type Input struct {
	Signal   string        `json:"signal"`
	Unit     string        `json:"unit,omitempty"`
	Value    *float64      `json:"value,omitempty"` // mean per serving replica, or the total; nil: unknown
	Target   float64       `json:"target"`
	Replicas int32         `json:"replicas"`           // with a fresh value
	Age      time.Duration `json:"age"`                // of the oldest fresh value, in ns
	Deciding bool          `json:"deciding,omitempty"` // it asks for the most replicas
}

// Step is one rule that was applied.
type Step struct {
	Rule     scale.Rule `json:"rule"`
	Before   int32      `json:"before"`
	After    int32      `json:"after"`
	Sentence string     `json:"sentence"`
}

// Event is a decision that changed a workload's replicas.
type Event struct {
	Namespace string   `json:"namespace"`
	Name      string   `json:"name"`
	Advice    bool     `json:"advice,omitempty"` // the replicas were not changed: spec.actuation is Advise
	Decision  Decision `json:"decision"`
}

// History is one workload's recent past.
type History struct {
	Points []Point `json:"points"`
}

// Point is a workload at one moment.
type Point struct {
	Time     time.Time  `json:"time"`
	Replicas int32      `json:"replicas"` // asked for
	Serving  int32      `json:"serving"`
	Current  int32      `json:"current"`  // spec.replicas before
	Starting int32      `json:"starting"` // scheduled, and not serving
	Signals  []*float64 `json:"signals"`  // in the order of Workload.Signals; nil: unknown
}

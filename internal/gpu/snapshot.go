// SPDX-License-Identifier: Apache-2.0

package gpu

import (
	"errors"
	"time"
)

// Device identifies a GPU or MIG instance. It does not change while the device
// exists.
type Device struct {
	Index    int    // the driver's enumeration index; the parent's, for a MIG instance
	Minor    int    // N of /dev/nvidiaN; -1: unknown
	UUID     string // GPU-…, or MIG-… for a MIG instance
	PCIBusID string // domain:bus:device.function as 00000000:1B:00.0
	Model    string // the marketing name, such as NVIDIA H200
	MIG      *MIG   // nil for a whole GPU
}

// MIG identifies the GPU and instance of a MIG device.
type MIG struct {
	ParentUUID      string
	GPUInstance     int    // NVML's GPU instance id
	ComputeInstance int    // NVML's compute instance id; -1 if it spans the GPU instance
	Profile         string // such as 1g.10gb
}

// XIDCount is the number of XID errors with one code on a device since the
// agent started, and the time of the last one.
type XIDCount struct {
	Code  uint64
	Count uint64 // 0: the error came when nobody counted
	Last  time.Time
}

// DeviceSnapshot is the state of one device at one tick.
type DeviceSnapshot struct {
	Device
	Values    Values
	Collected time.Time     // the start of the last successful read; zero: never
	Took      time.Duration // the duration of that read
	Err       error         // why the last read failed; nil after a success
	Failures  uint64        // failed reads since the agent started
	XIDs      []XIDCount    // sorted by code
	GPUXIDs   []XIDCount    // of a MIG instance: those of its GPU, likewise
	Owners    []Owner       // the containers that hold the device, sorted; empty: none, or unknown
	Verdicts  *Verdicts     // the library's verdicts on the GPU's health; nil: not read, or the library has none
	Links     Links         // at most about ten seconds old; empty for a MIG instance, or if unknown
	// NoProfiling is why there are no profiling fields; empty if there are
	// some, or if unknown.
	NoProfiling string
	Reasons     Reasons  // why the device lacks other fields
	Jobs        []string // the batch jobs on the device, from a job mapping; sorted

	// Processes are the processes that use the device, if they are collected.
	// ProcessesRead is the time of the list; zero if there is none or it is too
	// old. ProcessesErr is why the last read failed. Usage and Others are set
	// by AttributeProcesses, Usage by owner.
	Processes     Processes
	ProcessesRead time.Time
	ProcessesErr  error
	Usage         []Usage
	Others        OtherUsage
}

// Fresh reports whether the device's values are no older than maxAge at now.
func (d *DeviceSnapshot) Fresh(now time.Time, maxAge time.Duration) bool {
	return !d.Collected.IsZero() && now.Sub(d.Collected) <= maxAge
}

// Snapshot is the result of one collection tick. It is immutable after it is
// published.
type Snapshot struct {
	Time     time.Time     // when the tick began
	Interval time.Duration // between ticks
	Backend  string        // nvml, dcgm or sim
	Devices  []DeviceSnapshot
	Err      error // why the backend cannot be read at all (no library, no driver); nil if it can

	// Parts are the node's NvSwitches, NVLinks and CPUs; empty if none of their
	// fields is collected, or the node has none. PartsTime is when they were
	// last read, and PartsErr why the last read failed.
	Parts     []PartSnapshot
	PartsTime time.Time
	PartsErr  error

	Collectors []CollectorState // the state of each collector
	Inventory  *Inventory       // nil: nothing is known

	// OwnersTime is the time of the kubelet's last answer; zero if there was
	// none. OwnersErr is why the last request failed.
	OwnersTime time.Time
	OwnersErr  error
	// Unmatched are the allocations whose device is not in Devices.
	Unmatched []Allocation
	// UnmatchedJobFiles is the number of files of the job mapping that name none
	// of Devices; nil: there is no mapping.
	UnmatchedJobFiles *int

	// Pods are the node's pods from the API server; nil if they are not watched
	// or were never received. PodsErr is why they may be out of date.
	Pods    map[PodName]Pod
	PodsErr error
}

// Released reports whether the GPUs are released: whether they can be read is unknown.
func (s *Snapshot) Released() bool { return errors.Is(s.Err, ErrReleased) }

// Up reports whether the backend enumerates GPUs and, if there are any, the
// last read of at least one succeeded.
func (s *Snapshot) Up() bool {
	if s.Err != nil {
		return false
	}
	for i := range s.Devices {
		if s.Devices[i].Err == nil {
			return true
		}
	}
	return len(s.Devices) == 0
}

// CollectorState is the state of one collector.
type CollectorState struct {
	Name   string
	Last   time.Time     // the start of the last success; zero: never
	Took   time.Duration // the duration of the last success
	Errors uint64        // since the agent started
}

// PodName names a pod.
type PodName struct{ Namespace, Name string }

// Pod is the metadata of a pod that is shown.
type Pod struct {
	UID    string
	Labels []PodLabel // the wanted ones, sorted by name, no name twice
}

// PodLabel is the name, valid for a metric's label, and the value of a pod's
// label.
type PodLabel struct{ Name, Value string }

// MaxAge returns the age at which a device's values are no longer shown: three
// intervals, at least 5 s.
func MaxAge(interval time.Duration) time.Duration {
	return max(3*interval, 5*time.Second)
}

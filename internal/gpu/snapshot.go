// SPDX-License-Identifier: Apache-2.0

package gpu

import "time"

// Device says which device something is about. It does not change while the
// device exists.
type Device struct {
	Index    int    // the driver's enumeration index; the parent's, for a MIG instance
	Minor    int    // N of /dev/nvidiaN; -1: not known
	UUID     string // GPU-…, or MIG-… for a MIG instance
	PCIBusID string // domain:bus:device.function as 00000000:1B:00.0
	Model    string // the marketing name, such as NVIDIA H200
	MIG      *MIG   // nil for a whole GPU
}

// MIG says which instance of which GPU a MIG device is.
type MIG struct {
	ParentUUID      string
	GPUInstance     int    // NVML's GPU instance id
	ComputeInstance int    // NVML's compute instance id; -1 where it spans the GPU instance
	Profile         string // such as 1g.10gb
}

// XIDCount is how often one XID error code was seen on a device since the
// agent started, and when last.
type XIDCount struct {
	Code  uint64
	Count uint64
	Last  time.Time
}

// DeviceSnapshot is one device at one tick.
type DeviceSnapshot struct {
	Device
	Values    Values
	Collected time.Time     // when Values were last read whole; zero: never
	Took      time.Duration // how long that read took
	Err       error         // why the last read failed; nil after a good one
	Failures  uint64        // failed reads since the agent started
	XIDs      []XIDCount    // sorted by code
	Owners    []Owner       // who holds the device, sorted; empty: nobody, or not known
	Verdicts  *Verdicts     // the library's on the GPU's health; nil: it was not asked, or does not judge
	Links     Links         // as of the last ten seconds; empty of a MIG instance, and where it is not known
	// NoProfiling is why there are no profiling fields; empty where there are, or
	// that is not known.
	NoProfiling string
	Reasons     Reasons  // why it lacks other fields
	Jobs        []string // the batch jobs that run on it, as a job mapping says; sorted

	// Processes are those that use the device, where they are asked for.
	// ProcessesRead is when that was told, zero where it was not or is too old;
	// ProcessesErr is why it is not told now. Usage and Others are what they use,
	// as AttributeProcesses says, Usage by owner.
	Processes     Processes
	ProcessesRead time.Time
	ProcessesErr  error
	Usage         []Usage
	Others        OtherUsage
}

// Fresh says whether the device's values are young enough to be shown at now:
// no older than maxAge.
func (d *DeviceSnapshot) Fresh(now time.Time, maxAge time.Duration) bool {
	return !d.Collected.IsZero() && now.Sub(d.Collected) <= maxAge
}

// Snapshot is everything one collection tick knows. It is immutable once
// published.
type Snapshot struct {
	Time     time.Time     // when the tick began
	Interval time.Duration // between ticks
	Backend  string        // nvml, dcgm or sim
	Devices  []DeviceSnapshot
	Err      error // why the backend as a whole cannot be read (no library, no driver); nil if it can

	// Parts are what is known of what is no GPU, as of PartsTime; empty where no
	// field of parts is collected, or there are none. PartsErr is why they could
	// not be read the last time.
	Parts     []PartSnapshot
	PartsTime time.Time
	PartsErr  error

	Collectors []CollectorState // how collecting goes, by what it is of

	// OwnersTime is when the kubelet last answered; zero where it never did or
	// was never asked. OwnersErr is why it last did not.
	OwnersTime time.Time
	OwnersErr  error
	// Unmatched are allocations whose device id is none of Devices'.
	Unmatched []Allocation

	// Pods are the node's pods as the API server last said; nil where it was
	// not asked or never answered. PodsErr is why it does not say so now.
	Pods    map[PodName]Pod
	PodsErr error
}

// Up says whether the backend enumerates GPUs and, where it lists some, one of
// them at least could be read the last time.
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

// CollectorState says how one collector does.
type CollectorState struct {
	Name   string
	Last   time.Time     // when it last succeeded; zero: never
	Took   time.Duration // how long it then took
	Errors uint64        // since the agent started
}

// PodName names a pod.
type PodName struct{ Namespace, Name string }

// Pod is what of a pod's metadata is shown.
type Pod struct {
	UID    string
	Labels []PodLabel // the wanted ones, sorted by name, no name twice
}

// PodLabel is a name, as metrics may have it, and a value.
type PodLabel struct{ Name, Value string }

// MaxAge is the age at which a device's values leave an exposition: three
// intervals, and never less than 5 s.
func MaxAge(interval time.Duration) time.Duration {
	return max(3*interval, 5*time.Second)
}

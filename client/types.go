// SPDX-License-Identifier: Apache-2.0

package client

import (
	"encoding/json"
	"iter"
	"time"
)

// Node is the last collection of an agent. Values that are not known are absent: nil, or not in a map.
type Node struct {
	Name            string       `json:"node"`
	Time            time.Time    `json:"time"` // of the collection
	IntervalSeconds float64      `json:"intervalSeconds"`
	Backend         string       `json:"backend"`
	Error           string       `json:"error,omitempty"` // why no GPU can be read
	Kubelet         *Kubelet     `json:"kubelet,omitempty"`
	Devices         []Device     `json:"devices"`
	Parts           []Part       `json:"parts,omitempty"`
	Unmatched       []Allocation `json:"unmatched,omitempty"`
	WithoutPod      []string     `json:"withoutPod,omitempty"` // UUIDs of devices that no container holds
	Topology        *Topology    `json:"topology,omitempty"`
	Lacking         []Lack       `json:"lacking,omitempty"`
}

// Lack is lines of the agent's collectors file that have no value on the node.
type Lack struct {
	Fields []string `json:"fields"` // by their names in the file
	Reason string   `json:"reason"`
}

// Up yields the devices whose values are fresh.
func (n *Node) Up() iter.Seq[*Device] {
	return func(yield func(*Device) bool) {
		for i := range n.Devices {
			if n.Devices[i].Up && !yield(&n.Devices[i]) {
				return
			}
		}
	}
}

// Kubelet is the state of the agent's requests to the kubelet.
type Kubelet struct {
	Up          bool       `json:"up"`
	LastSuccess *time.Time `json:"lastSuccess,omitempty"`
	Error       string     `json:"error,omitempty"`
}

// Device is a GPU or a MIG instance.
type Device struct {
	Index          int               `json:"index"`
	Minor          *int              `json:"minor,omitempty"` // N of /dev/nvidiaN
	UUID           string            `json:"uuid"`
	PCIBusID       string            `json:"pciBusId"`
	Model          string            `json:"model"`
	MIG            *MIG              `json:"mig,omitempty"`
	Up             bool              `json:"up"`
	Collected      *time.Time        `json:"collected,omitempty"`
	AgeSeconds     *float64          `json:"ageSeconds,omitempty"`
	ReadSeconds    float64           `json:"readSeconds"`
	Failures       uint64            `json:"failures"`
	Error          string            `json:"error,omitempty"`
	Values         map[string]Value  `json:"values"` // by the names of dcgm-exporter 4.8
	Labels         map[string]string `json:"labels"`
	Owners         []Owner           `json:"owners"`
	XIDs           []XID             `json:"xids"`
	Jobs           []string          `json:"jobs,omitempty"`
	Processes      *[]Process        `json:"processes,omitempty"` // nil: they are not read
	ProcessesError string            `json:"processesError,omitempty"`
}

// Value returns a value by its name, such as DCGM_FI_DEV_GPU_UTIL.
func (d *Device) Value(name string) (float64, bool) {
	v, ok := d.Values[name]
	if !ok {
		return 0, false
	}
	x, err := v.Value.Float64()
	return x, err == nil
}

// Value is a value with its unit.
type Value struct {
	Value json.Number `json:"value"`
	Unit  string      `json:"unit,omitempty"`
}

// MIG is the place of a MIG instance.
type MIG struct {
	ParentUUID      string `json:"parentUuid"`
	GPUInstance     int    `json:"gpuInstance"`
	ComputeInstance *int   `json:"computeInstance,omitempty"`
	Profile         string `json:"profile"`
}

// Owner is a container that holds a device, or a share of it.
type Owner struct {
	Namespace string `json:"namespace"`
	Pod       string `json:"pod"`
	Container string `json:"container"`
	Replica   string `json:"replica,omitempty"`
	Claim     string `json:"claim,omitempty"` // NAMESPACE/NAME
}

// XID is an XID error since the agent started.
type XID struct {
	Code  uint64    `json:"code"`
	Count uint64    `json:"count"`
	Last  time.Time `json:"last"`
}

// Process is a process that uses a device.
type Process struct {
	PID         int      `json:"pid"`
	Name        string   `json:"name,omitempty"`
	Type        string   `json:"type"` // compute, graphics, mps, or several with a +
	Namespace   string   `json:"namespace,omitempty"`
	Pod         string   `json:"pod,omitempty"`
	Container   string   `json:"container,omitempty"`
	PodUID      string   `json:"podUid,omitempty"`
	ContainerID string   `json:"containerId,omitempty"`
	MemoryBytes *float64 `json:"memoryBytes,omitempty"`
	Utilization *float64 `json:"utilization,omitempty"` // of the device's time, 0 to 1
}

// Use is one use of a device by a process.
type Use struct {
	UUID  string `json:"uuid"`
	Index int    `json:"index"`
	Process
}

// Part is an NvSwitch, an NVLink, a CPU or a core.
type Part struct {
	Kind    string `json:"kind"`
	ID      int    `json:"id"`
	Parent  *int   `json:"parent,omitempty"`
	GPUUUID string `json:"gpuUuid,omitempty"` // the link's GPU

	Collected *time.Time        `json:"collected,omitempty"` // of the last successful read
	Values    map[string]Value  `json:"values"`
	Labels    map[string]string `json:"labels,omitempty"`
}

// Allocation is a device that a container holds, and that the agent does not read.
type Allocation struct {
	Resource string `json:"resource"`
	DeviceID string `json:"deviceId"`
	Owner
}

// Topology is the paths between GPUs, and from them to CPUs.
type Topology struct {
	GPUs  []Place `json:"gpus"`
	Pairs []Pair  `json:"pairs"`
}

// Place is what is near a GPU.
type Place struct {
	UUID      string `json:"uuid"`
	CPUs      string `json:"cpus,omitempty"` // as 0-55,112-167
	NUMANodes string `json:"numaNodes,omitempty"`
	NVLinks   *int   `json:"nvlinks,omitempty"`
}

// Pair is the connection of two GPUs.
type Pair struct {
	UUIDs   [2]string `json:"uuids"`
	Path    string    `json:"path,omitempty"` // INT, PIX, PXB, PHB, NODE or SYS, as nvidia-smi has it
	NVLinks *int      `json:"nvlinks,omitempty"`
}

// Health is the health of a GPU.
type Health struct {
	UUID    string   `json:"uuid"`
	Overall string   `json:"overall"` // pass, warn or fail
	Judge   string   `json:"judge"`   // dcgm or gpupilot
	Systems []System `json:"systems"`

	Collected *time.Time `json:"collected,omitempty"` // of the last successful read of the GPU
}

// System is the verdict on one system of a GPU.
type System struct {
	Name   string `json:"name"`
	Result string `json:"result"` // pass, warn, fail or unknown
	Code   string `json:"code,omitempty"`
}

// Discovery is what is on a node.
type Discovery struct {
	Devices  []Found `json:"devices"`
	Switches []int   `json:"switches"`
	CPUs     []int   `json:"cpus"`

	GPUs *Inventory `json:"gpus,omitempty"`
}

// Inventory is how many whole GPUs a node has by each source; nil: the source does not say.
type Inventory struct {
	Listed      *int    `json:"listed,omitempty"`      // by the GPU library
	Bound       *int    `json:"bound,omitempty"`       // on the PCI bus with NVIDIA's driver
	Allocatable *int    `json:"allocatable,omitempty"` // offered to pods by a device plugin
	Missing     int     `json:"missing"`               // that the library should list and does not
	PCI         []OnBus `json:"pci,omitempty"`
}

// OnBus is a GPU on a node's PCI bus. Driver is the kernel's, such as nvidia or vfio-pci;
// excluded: NVIDIA's driver was told not to use it; empty: none.
type OnBus struct {
	PCIBusID string `json:"pciBusId"`
	Driver   string `json:"driver,omitempty"`
	Unlisted bool   `json:"unlisted,omitempty"`
}

// Found is the identity of a device.
type Found struct {
	Index    int    `json:"index"`
	UUID     string `json:"uuid"`
	PCIBusID string `json:"pciBusId"`
	Model    string `json:"model"`
	MIG      *MIG   `json:"mig,omitempty"`
}

// Status is the state of an agent.
type Status struct {
	Node            string    `json:"node"`
	Version         string    `json:"version"`
	Backend         string    `json:"backend"`
	IntervalSeconds float64   `json:"intervalSeconds"`
	Time            time.Time `json:"time"`
	Error           string    `json:"error,omitempty"`
	Devices         int       `json:"devices"`
	Up              int       `json:"up"`
	Kubelet         *Kubelet  `json:"kubelet,omitempty"`
}

// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"encoding/json"
	"strconv"
	"time"

	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/gpu/names"
)

// Document is the response of /api/v1/gpus: the last snapshot. Times are RFC
// 3339 in UTC. Unknown values are absent.
type Document struct {
	Node            string       `json:"node"`
	Time            time.Time    `json:"time"` // of the tick
	IntervalSeconds float64      `json:"intervalSeconds"`
	Backend         string       `json:"backend"`
	Error           string       `json:"error,omitempty"` // why no GPU can be read
	Owners          *Kubelet     `json:"kubelet,omitempty"`
	Devices         []DeviceDoc  `json:"devices"`
	Parts           []PartDoc    `json:"parts,omitempty"`     // NvSwitches, NVLinks, CPUs and cores, if collected
	Unmatched       []Allocation `json:"unmatched,omitempty"` // allocated to containers, but not collected here

	WithoutPod []string     `json:"withoutPod,omitempty"` // UUIDs of devices that no container holds, with -k
	Topology   *TopologyDoc `json:"topology,omitempty"`
	Lacking    []LackDoc    `json:"lacking,omitempty"`
}

// LackDoc is lines of the collectors file that have no value on this node, by their names in
// the file.
type LackDoc struct {
	Fields []string `json:"fields"`
	Reason string   `json:"reason"`
}

// PartDoc is an NvSwitch, a NVLink, a CPU or a core.
type PartDoc struct {
	Kind   string `json:"kind"` // nvswitch, nvlink, cpu or cpucore
	ID     int    `json:"id"`   // a link's index, from 0
	Parent *int   `json:"parent,omitempty"`
	GPU    string `json:"gpuUuid,omitempty"` // the link's GPU

	Collected *time.Time        `json:"collected,omitempty"` // of the last successful read
	Values    map[string]Value  `json:"values"`
	Labels    map[string]string `json:"labels,omitempty"`
}

// TopologyDoc is the paths between the node's whole GPUs, and from them to its
// CPUs.
type TopologyDoc struct {
	GPUs  []GPUPlaceDoc `json:"gpus"`
	Pairs []GPUPairDoc  `json:"pairs"`
}

// GPUPlaceDoc is the CPUs and NUMA nodes near one GPU, and its NVLinks.
type GPUPlaceDoc struct {
	UUID      string `json:"uuid"`
	CPUs      string `json:"cpus,omitempty"`      // as 0-55,112-167
	NUMANodes string `json:"numaNodes,omitempty"` // likewise
	NVLinks   *int   `json:"nvlinks,omitempty"`   // active ones
}

// GPUPairDoc is the connection of two GPUs: the PCIe path under nvidia-smi's
// names (INT, PIX, PXB, PHB, NODE, SYS), and NVLinks.
type GPUPairDoc struct {
	UUIDs   [2]string     `json:"uuids"`
	Path    gpu.PathLevel `json:"path,omitempty"`
	NVLinks *int          `json:"nvlinks,omitempty"`
}

// Kubelet is the state of the requests to the kubelet.
type Kubelet struct {
	Up    bool       `json:"up"`
	Last  *time.Time `json:"lastSuccess,omitempty"`
	Error string     `json:"error,omitempty"`
}

// DeviceDoc is one device. Of values older than three intervals and 5 s, only
// those stay that say what has happened to it: errors and their counts.
type DeviceDoc struct {
	Index      int               `json:"index"`
	Minor      *int              `json:"minor,omitempty"` // N of /dev/nvidiaN, if known
	UUID       string            `json:"uuid"`
	PCIBusID   string            `json:"pciBusId"`
	Model      string            `json:"model"`
	MIG        *MIGDoc           `json:"mig,omitempty"`
	Up         bool              `json:"up"`                  // the last read succeeded, and its values are fresh
	Collected  *time.Time        `json:"collected,omitempty"` // the time of the values
	AgeSeconds *float64          `json:"ageSeconds,omitempty"`
	Seconds    float64           `json:"readSeconds"` // how long the last good read took
	Failures   uint64            `json:"failures"`    // failed reads since the agent started
	Error      string            `json:"error,omitempty"`
	Values     map[string]Value  `json:"values"` // by field, under the names of profile 4.8
	Labels     map[string]string `json:"labels"` // text fields, under the names of profile 4.8
	Owners     []OwnerDoc        `json:"owners"`
	XIDs       []XIDDoc          `json:"xids"`
	Jobs       []string          `json:"jobs,omitempty"` // of --hpc-job-mapping-dir

	// With --process-metrics: the processes that use the device, and why they
	// are unknown.
	Processes      *[]ProcessDoc `json:"processes,omitempty"`
	ProcessesError string        `json:"processesError,omitempty"`
}

// ProcessDoc is a process that uses a device. Its pod is absent if it runs in
// none, or if the pod's name is unknown.
type ProcessDoc struct {
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

// MIGDoc is the GPU and the instance of a MIG device.
type MIGDoc struct {
	ParentUUID      string `json:"parentUuid"`
	GPUInstance     int    `json:"gpuInstance"`
	ComputeInstance *int   `json:"computeInstance,omitempty"`
	Profile         string `json:"profile"`
}

// Value is a field's value with its unit (%, ratio, MHz, C, W, mJ, MiB, B/s,
// MB/s, ns, bits or none).
type Value struct {
	Value json.Number `json:"value"` // whole numbers are exact
	Unit  gpu.Unit    `json:"unit,omitempty"`
}

// OwnerDoc is a container that holds the device or, with a replica, a share of
// it.
type OwnerDoc struct {
	Namespace string `json:"namespace"`
	Pod       string `json:"pod"`
	Container string `json:"container"`
	Replica   string `json:"replica,omitempty"`
	Claim     string `json:"claim,omitempty"` // NAMESPACE/NAME of the resource claim through which it holds the device
}

func ownerDoc(o *gpu.Owner) OwnerDoc {
	doc := OwnerDoc{Namespace: o.Namespace, Pod: o.Pod, Container: o.Container, Replica: o.Replica}
	if c := o.Claim; c != nil {
		doc.Claim = c.Namespace + "/" + c.Name
	}
	return doc
}

// XIDDoc is an XID error seen since the agent started.
type XIDDoc struct {
	Code  uint64    `json:"code"`
	Count uint64    `json:"count"`
	Last  time.Time `json:"last"`
}

// Allocation is a device that the kubelet gave to a container.
type Allocation struct {
	Resource string `json:"resource"`
	DeviceID string `json:"deviceId"`
	OwnerDoc
}

func (a *Agent) document(s *gpu.Snapshot, now time.Time) Document {
	d := Document{
		Node: a.cfg.Node, Time: s.Time.UTC(), IntervalSeconds: s.Interval.Seconds(),
		Backend: s.Backend, Error: message(s.Err), Devices: []DeviceDoc{},
	}
	d.Owners = a.kubelet(s)
	for i := range s.Devices {
		d.Devices = append(d.Devices, deviceDoc(&s.Devices[i], s.Interval, now))
	}
	for i := range s.Parts {
		d.Parts = append(d.Parts, partDoc(&s.Parts[i], now.Sub(s.Parts[i].Collected) <= gpu.MaxAge(s.Interval)))
	}
	for _, u := range s.Unmatched {
		d.Unmatched = append(d.Unmatched, Allocation{u.Resource, u.DeviceID, ownerDoc(&u.Owner)})
	}
	for i := range s.Devices {
		if a.deps.Owners != nil && len(s.Devices[i].Owners) == 0 {
			d.WithoutPod = append(d.WithoutPod, s.Devices[i].UUID)
		}
	}
	d.Topology = topologyDoc(a.lastTopology.Load())
	if a.deps.Lacking != nil {
		for _, l := range a.deps.Lacking(s, now) {
			d.Lacking = append(d.Lacking, LackDoc{l.Fields, l.Reason})
		}
	}
	return d
}

// kubelet returns the state of the requests to the kubelet; nil: it is not asked.
func (a *Agent) kubelet(s *gpu.Snapshot) *Kubelet {
	if a.deps.Owners == nil {
		return nil
	}
	return &Kubelet{Up: s.OwnersErr == nil && !s.OwnersTime.IsZero(), Last: known(s.OwnersTime), Error: message(s.OwnersErr)}
}

// migDoc is the place of a MIG instance; nil: it is a whole GPU.
func migDoc(m *gpu.MIG) *MIGDoc {
	if m == nil {
		return nil
	}
	doc := &MIGDoc{ParentUUID: m.ParentUUID, GPUInstance: m.GPUInstance, Profile: m.Profile}
	if m.ComputeInstance >= 0 {
		doc.ComputeInstance = &m.ComputeInstance
	}
	return doc
}

// isUp reports whether the last reading of a device worked, and is fresh.
func isUp(d *gpu.DeviceSnapshot, interval time.Duration, now time.Time) bool {
	return d.Err == nil && d.Fresh(now, gpu.MaxAge(interval))
}

func deviceDoc(d *gpu.DeviceSnapshot, interval time.Duration, now time.Time) DeviceDoc {
	fresh := d.Fresh(now, gpu.MaxAge(interval))
	doc := DeviceDoc{
		Index: d.Index, UUID: d.UUID, PCIBusID: d.PCIBusID, Model: d.Model,
		Up: isUp(d, interval, now), Collected: known(d.Collected), Seconds: d.Took.Seconds(),
		Failures: d.Failures, Error: message(d.Err), Jobs: d.Jobs,
		Values: map[string]Value{}, Labels: map[string]string{}, Owners: []OwnerDoc{}, XIDs: []XIDDoc{}, MIG: migDoc(d.MIG),
	}
	if !d.Collected.IsZero() {
		age := now.Sub(d.Collected).Seconds()
		doc.AgeSeconds = &age
	}
	for i := range d.Owners {
		doc.Owners = append(doc.Owners, ownerDoc(&d.Owners[i]))
	}
	doc.Processes, doc.ProcessesError = processDocs(d), message(d.ProcessesErr)
	for _, x := range gpu.AppendXIDs(nil, d.XIDs, d.GPUXIDs) {
		doc.XIDs = append(doc.XIDs, XIDDoc{x.Code, x.Count, x.Last.UTC()})
	}
	if d.Minor >= 0 {
		doc.Minor = &d.Minor
	}
	addValues(doc.Values, doc.Labels, &d.Values, fresh)
	if last, ok := gpu.LastXID(d.XIDs, d.GPUXIDs); ok { // newer than the last read
		doc.Values[gpu.XIDErrors.String()] = Value{Value: jsonNumber(gpu.Whole(int64(last.Code)))}
	}
	return doc
}

func partDoc(p *gpu.PartSnapshot, fresh bool) PartDoc {
	doc := PartDoc{Kind: p.Kind.String(), ID: p.ID, Collected: known(p.Collected), Values: map[string]Value{}, Labels: map[string]string{}}
	switch {
	case p.GPU != nil:
		doc.GPU = p.GPU.UUID
	case p.Kind == gpu.NVLink || p.Kind == gpu.CPUCore:
		doc.Parent = &p.Parent
	}
	addValues(doc.Values, doc.Labels, &p.Values, fresh)
	return doc
}

// addValues adds the values and strings of a device or part; of old values, those that
// last.
func addValues(values map[string]Value, labels map[string]string, v *gpu.Values, fresh bool) {
	for i := range gpu.NumFields {
		f := gpu.At(gpu.Index(i))
		if s, ok := v.GetLabel(f.ID); ok {
			labels[f.Name] = s
		}
		if x, ok := v.NumberAt(gpu.Index(i)); ok && (fresh || f.ID.IsLasting()) {
			values[f.Name] = Value{jsonNumber(x), f.Unit}
		}
	}
	for id, x := range v.AllPassed() {
		if fresh || id.IsLasting() {
			values[names.NameOf(id)] = Value{Value: jsonNumber(x)}
		}
	}
}

func jsonNumber(n gpu.Number) json.Number {
	if n.Whole {
		return json.Number(strconv.FormatInt(n.Int, 10))
	}
	text, _ := json.Marshal(n.Float) // values are finite
	return json.Number(text)
}

// processDocs are the processes of a device; nil: they are not read.
func processDocs(d *gpu.DeviceSnapshot) *[]ProcessDoc {
	if d.ProcessesRead.IsZero() {
		return nil
	}
	list := make([]ProcessDoc, 0, len(d.Processes.List))
	for i := range d.Processes.List {
		p := &d.Processes.List[i]
		x := ProcessDoc{
			PID: p.PID, Name: p.Name, Type: p.Type.String(), Container: p.Container, PodUID: p.PodUID, ContainerID: p.ContainerID,
			MemoryBytes: number(p.Memory), Utilization: number(p.Utilization),
		}
		if o := p.Owner; o != nil {
			x.Namespace, x.Pod, x.Container = o.Namespace, o.Pod, o.Container
		}
		list = append(list, x)
	}
	return &list
}

func topologyDoc(t *gpu.Topology) *TopologyDoc {
	if t == nil {
		return nil
	}
	doc := &TopologyDoc{GPUs: []GPUPlaceDoc{}, Pairs: []GPUPairDoc{}}
	for _, g := range t.GPUs {
		doc.GPUs = append(doc.GPUs, GPUPlaceDoc{g.UUID, g.CPUs, g.NUMANodes, count(g.NVLinks)})
	}
	for _, p := range t.Pairs {
		doc.Pairs = append(doc.Pairs, GPUPairDoc{[2]string{p.A, p.B}, p.Path, count(p.NVLinks)})
	}
	return doc
}

func number(r gpu.Reading) *float64 {
	if !r.OK {
		return nil
	}
	return &r.Value
}

// count is a number that is negative where it is not known.
func count(n int) *int {
	if n < 0 {
		return nil
	}
	return &n
}

func known(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	t = t.UTC()
	return &t
}

func message(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

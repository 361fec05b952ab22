// SPDX-License-Identifier: Apache-2.0

package gpu

import (
	"cmp"
	"slices"
	"strings"
)

// Reading is a number that can be absent.
type Reading struct {
	Value float64
	OK    bool
}

// Read returns the Reading of a present number.
func Read(x float64) Reading { return Reading{x, true} }

// add makes r the sum of both, which is absent unless both are present.
func (r *Reading) add(o Reading) {
	r.Value += o.Value
	if r.OK = r.OK && o.OK; !r.OK {
		r.Value = 0
	}
}

// ProcessType is the kind of work of a process on a device.
type ProcessType uint8

// The types of processes. A process can have several.
const (
	Compute ProcessType = 1 << iota
	Graphics
	MPSClient // computes through an MPS server
)

// String returns the types as they are shown, such as compute+mps.
func (t ProcessType) String() string {
	var names []string
	for i, name := range [...]string{"compute", "graphics", "mps"} {
		if t&(1<<i) != 0 {
			names = append(names, name)
		}
	}
	return strings.Join(names, "+")
}

// Process is a process that uses a device.
type Process struct {
	PID         int // in the reader's PID namespace; 0 if not visible there
	Type        ProcessType
	Memory      Reading // the process's bytes of the device's memory
	Utilization Reading // its share of the device's time, 0 to 1
	Place
	Owner *Owner // the container only; nil: unknown
}

// Processes are the processes that use a device.
type Processes struct {
	List  []Process // by PID
	Times bool      // the device gives their utilisation
}

// ProcessReader is a Reader that also reads processes.
type ProcessReader interface {
	// Processes lists the processes that use the device with this UUID, without
	// their Place. An error means that the processes are unknown, not that
	// there are none. It may block as Reader's methods do, and does not delay a
	// Read.
	Processes(uuid string) (Processes, error)
}

// Place is where a process runs, from the node's /proc.
type Place struct {
	Kind        PlaceKind
	Name        string // the command's name; empty if not visible
	PodUID      string // set, as the next two, for a pod's process only
	ContainerID string // the runtime's id; may be empty
	Container   string // the name in the pod; may be empty
}

// PlaceKind is the kind of a Place.
type PlaceKind uint8

// The kinds of places.
const (
	Unseen PlaceKind = iota // the process is not in /proc, or has ended
	OnHost                  // outside pods
	InPod
	numPlaceKinds
)

// Usage is the use of a device by the processes of one container.
type Usage struct {
	Owner       Owner  // the container only; its name may be empty
	PodUID      string // empty if the container has no process
	Processes   int
	Memory      Reading // bytes
	Utilization Reading // 0 to 1
}

// OtherUsage is the use of a device by processes without a known pod, by their
// places. InPod is for processes whose pod's name is unknown.
type OtherUsage [numPlaceKinds]struct {
	Processes   int
	Memory      Reading
	Utilization Reading
}

// PodOf finds a pod's name by its UID.
type PodOf func(uid string) (PodName, bool)

// AttributeProcesses sets the owners of the device's processes and the use of
// the device by each container, in place.
//
// A process belongs to the pod of its UID, even if that pod does not hold the
// device. If the pod's name is unknown, the process belongs to the pod that
// alone holds the device, provided that the pod has a container with the
// process's container name. A container that holds the device and has no
// process on it uses nothing, unless there is a process whose owner is unknown.
func AttributeProcesses(d *DeviceSnapshot, podOf PodOf) {
	d.Usage, d.Others = nil, OtherUsage{}
	for i := range d.Others {
		d.Others[i].Memory, d.Others[i].Utilization = Read(0), Read(0)
	}
	withheld := heldByMPS(d.Processes.List)
	for i := range d.Processes.List {
		p := d.Processes.List[i]
		d.Processes.List[i].Owner = nil
		if withheld && !p.isMPSServer() {
			p.Utilization = Reading{}
		}
		if o, ok := d.ownerOf(&p, podOf); ok {
			d.Processes.List[i].Owner = &o
			d.use(o, &p)
			continue
		}
		other := &d.Others[p.Kind]
		other.Processes++
		other.Memory.add(p.Memory)
		other.Utilization.add(p.Utilization)
	}
	if d.Others[Unseen].Processes == 0 && d.Others[InPod].Processes == 0 {
		d.addIdle(withheld)
	}
	slices.SortFunc(d.Usage, func(a, b Usage) int { return compareOwners(a.Owner, b.Owner) })
	for i := range d.Usage {
		// Each process's share is rounded separately, so that their sum can
		// exceed 1.
		d.Usage[i].Utilization.Value = min(d.Usage[i].Utilization.Value, 1)
	}
}

// ownerOf finds the owner of a process.
func (d *DeviceSnapshot) ownerOf(p *Process, podOf PodOf) (Owner, bool) {
	if p.Kind != InPod {
		return Owner{}, false
	}
	name, known := podOf(p.PodUID)
	if known {
		o := Owner{Namespace: name.Namespace, Pod: name.Name, Container: p.Container}
		if o.Container == "" {
			o.Container = d.soleContainer(name)
		}
		return o, true
	}
	for i := range d.Owners {
		o := user(&d.Owners[i])
		if o.Container == p.Container && d.solePod() && !d.named(&o, podOf) {
			return o, true
		}
	}
	return Owner{}, false
}

// named reports whether a process is known by name to be of the owner's pod. A
// process whose pod's name is unknown is then of another pod.
func (d *DeviceSnapshot) named(o *Owner, podOf PodOf) bool {
	for i := range d.Processes.List {
		p := &d.Processes.List[i]
		if name, ok := podOf(p.PodUID); p.Kind == InPod && ok && name.Namespace == o.Namespace && name.Name == o.Pod {
			return true
		}
	}
	return false
}

// soleContainer returns the only container with which a pod holds the device;
// empty if there are several or none.
func (d *DeviceSnapshot) soleContainer(pod PodName) string {
	sole := ""
	for i := range d.Owners {
		switch o := &d.Owners[i]; {
		case o.Namespace != pod.Namespace || o.Pod != pod.Name || o.Container == sole:
		case sole != "":
			return ""
		default:
			sole = o.Container
		}
	}
	return sole
}

// solePod reports whether exactly one pod holds the device.
func (d *DeviceSnapshot) solePod() bool {
	for i := range d.Owners {
		if !samePod(&d.Owners[i], &d.Owners[0]) {
			return false
		}
	}
	return len(d.Owners) > 0
}

// user returns the container of an owner. It drops how the owner holds the
// device, which is unknown for processes.
func user(o *Owner) Owner { return Owner{Namespace: o.Namespace, Pod: o.Pod, Container: o.Container} }

func samePod(a, b *Owner) bool { return a.Namespace == b.Namespace && a.Pod == b.Pod }

// use adds a process to the usage of its owner.
func (d *DeviceSnapshot) use(o Owner, p *Process) {
	i := slices.IndexFunc(d.Usage, func(u Usage) bool { return u.Owner == o })
	if i < 0 {
		i = len(d.Usage)
		d.Usage = append(d.Usage, Usage{Owner: o, Memory: Read(0), Utilization: Read(0)})
	}
	u := &d.Usage[i]
	u.PodUID = cmp.Or(u.PodUID, p.PodUID)
	u.Processes++
	u.Memory.add(p.Memory)
	u.Utilization.add(p.Utilization)
}

// addIdle adds the containers that hold the device and have no process on it.
// It skips pods that have processes in an unknown container: any of their
// containers may be busy. The utilisation is absent if the device gives none.
func (d *DeviceSnapshot) addIdle(withheld bool) {
	busy := len(d.Usage)
	for i := range d.Owners {
		o := user(&d.Owners[i])
		if slices.ContainsFunc(d.Usage, func(u Usage) bool { return u.Owner == o }) ||
			slices.ContainsFunc(d.Usage[:busy], func(u Usage) bool { return samePod(&u.Owner, &o) && u.Owner.Container == "" }) {
			continue
		}
		idle := Usage{Owner: o, Memory: Read(0)}
		if d.Processes.Times && !withheld {
			idle.Utilization = Read(0)
		}
		d.Usage = append(d.Usage, idle)
	}
}

// mpsServer is the prefix of an MPS server's command, which the kernel cuts to
// 15 letters.
const mpsServer = "nvidia-cuda-mps"

func (p *Process) isMPSServer() bool {
	return p.Type&MPSClient == 0 && strings.HasPrefix(p.Name, mpsServer)
}

// heldByMPS reports whether an MPS server's utilisation includes its clients':
// it is busy and no client is. The work cannot be attributed then.
func heldByMPS(ps []Process) bool {
	server := false
	for i := range ps {
		busy := ps[i].Utilization.Value > 0
		if busy && !ps[i].isMPSServer() {
			return false
		}
		server = server || busy
	}
	return server
}

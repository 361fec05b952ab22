// SPDX-License-Identifier: Apache-2.0

package gpu

import (
	"cmp"
	"slices"
	"strings"
)

// Reading is a number that may not be there.
type Reading struct {
	Value float64
	OK    bool
}

// Read is the reading of a number that is there.
func Read(x float64) Reading { return Reading{x, true} }

// add makes r the sum of both, which is not there unless both are.
func (r *Reading) add(o Reading) {
	r.Value += o.Value
	if r.OK = r.OK && o.OK; !r.OK {
		r.Value = 0
	}
}

// ProcessType is what a process uses a device for.
type ProcessType uint8

// The types of processes; a process may be of several.
const (
	Compute ProcessType = 1 << iota
	Graphics
	MPSClient // computes through an MPS server
)

// String gives the types as they are shown, such as compute+mps.
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
	PID         int // in the reader's PID namespace; 0 where it is not visible there
	Type        ProcessType
	Memory      Reading // bytes of the device's memory that it holds
	Utilization Reading // its share of the device's time, 0 to 1
	Place
	Owner *Owner // the container alone; nil: nobody's that is known
}

// Processes are those that use a device.
type Processes struct {
	List  []Process // by PID
	Times bool      // the device tells their utilisation at all
}

// ProcessReader is a Reader that knows of processes as well.
type ProcessReader interface {
	// Processes lists the processes that use the device with this UUID; where
	// they run is left to the caller. An error means that nothing is known, not
	// that there are none. It may block as Reader's methods do, and holds up no
	// Read.
	Processes(uuid string) (Processes, error)
}

// Place is where a process runs, as the node's /proc tells.
type Place struct {
	Kind        PlaceKind
	Name        string // of its command; empty where it is not seen
	PodUID      string // the other three of a pod's process only
	ContainerID string // as the runtime has it; may be empty
	Container   string // as the pod has it; may be empty
}

// PlaceKind tells pods' processes from others.
type PlaceKind uint8

// The kinds of places.
const (
	Unseen PlaceKind = iota // there is no such process here (any more)
	OnHost                  // in no pod
	InPod
	numPlaceKinds
)

// Usage is what the processes of one container use of a device.
type Usage struct {
	Owner       Owner  // the container alone, which may be empty
	PodUID      string // empty where it has no process
	Processes   int
	Memory      Reading // bytes
	Utilization Reading // 0 to 1
}

// OtherUsage is what processes use of a device that are nobody's as far as is
// known, by their places: of InPod are those whose pod's name is not known.
type OtherUsage [numPlaceKinds]struct {
	Processes   int
	Memory      Reading
	Utilization Reading
}

// PodOf finds a pod's name by its UID.
type PodOf func(uid string) (PodName, bool)

// AttributeProcesses says whose the device's processes are and what each
// container uses of it, in place.
//
// A process belongs to the pod of its UID, whether or not that holds the
// device. Where the pod's name is not known, it belongs to the pod that alone
// holds the device, if that has a container of its name. A container that holds
// the device and has no process on it uses nothing of it, unless a process is
// there of which it is not known whose it is.
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
		// Each process's share is rounded up or down by itself.
		d.Usage[i].Utilization.Value = min(d.Usage[i].Utilization.Value, 1)
	}
}

// ownerOf finds whose a process is.
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

// named says whether a process is known by name to be of the owner's pod: whose
// name is not known is then another's.
func (d *DeviceSnapshot) named(o *Owner, podOf PodOf) bool {
	for i := range d.Processes.List {
		p := &d.Processes.List[i]
		if name, ok := podOf(p.PodUID); p.Kind == InPod && ok && name.Namespace == o.Namespace && name.Name == o.Pod {
			return true
		}
	}
	return false
}

// soleContainer is the one container with which a pod holds the device, empty
// if there are several or none.
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

// solePod says whether one pod holds the device.
func (d *DeviceSnapshot) solePod() bool {
	for i := range d.Owners {
		if !samePod(&d.Owners[i], &d.Owners[0]) {
			return false
		}
	}
	return len(d.Owners) > 0
}

// user is the container of an owner: processes do not tell how it holds the
// device.
func user(o *Owner) Owner { return Owner{Namespace: o.Namespace, Pod: o.Pod, Container: o.Container} }

func samePod(a, b *Owner) bool { return a.Namespace == b.Namespace && a.Pod == b.Pod }

// use adds a process to what its owner uses.
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
// Of a pod whose processes' container is not known it is not known which of its
// containers idles. The utilisation is not there where the device gives none.
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

// mpsServer begins the name of an MPS server's command, which the kernel cuts
// to 15 letters.
const mpsServer = "nvidia-cuda-mps"

func (p *Process) isMPSServer() bool {
	return p.Type&MPSClient == 0 && strings.HasPrefix(p.Name, mpsServer)
}

// heldByMPS says whether an MPS server has its clients' utilisation: it is busy
// and no client is. Whose work it does is not known then.
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

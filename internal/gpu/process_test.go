// SPDX-License-Identifier: Apache-2.0

package gpu

import (
	"fmt"
	"strings"
	"testing"
)

// Four UIDs and whose they are: d's pod is not known by name.
var uidNames = map[string]PodName{"a": {"ns", "a"}, "b": {"ns", "b"}, "c": {"other", "c"}}

func podOf(uid string) (PodName, bool) {
	n, ok := uidNames[uid]
	return n, ok
}

func inPod(uid, container string, mib, util float64) Process {
	return Process{
		PID: 1, Type: Compute, Memory: Read(mib), Utilization: Read(util),
		Place: Place{Kind: InPod, PodUID: uid, Container: container},
	}
}

func shown(r Reading) string {
	if !r.OK {
		return "?"
	}
	return fmt.Sprintf("%g", r.Value)
}

// uses writes usage as "pod/container processes memory utilisation; …", and of
// others those that there are.
func uses(d *DeviceSnapshot) string {
	var out []string
	for _, u := range d.Usage {
		out = append(out, fmt.Sprintf("%s/%s %d %s %s", u.Owner.Pod, u.Owner.Container, u.Processes, shown(u.Memory), shown(u.Utilization)))
	}
	for kind, name := range []string{"unseen", "host", "unknown"} {
		if o := d.Others[kind]; o.Processes > 0 {
			out = append(out, fmt.Sprintf("%s %d %s %s", name, o.Processes, shown(o.Memory), shown(o.Utilization)))
		}
	}
	return strings.Join(out, "; ")
}

func TestAttributeProcesses(t *testing.T) {
	owner := func(pod, container, replica string) Owner {
		return Owner{Namespace: "ns", Pod: pod, Container: container, Replica: replica}
	}
	shared := []Owner{owner("a", "m", "0"), owner("b", "m", "1")}
	host := Process{Memory: Read(7), Utilization: Read(.25), Place: Place{Kind: OnHost, Name: "Xorg"}}
	f := func(want string, owners []Owner, ps ...Process) {
		t.Helper()
		d := DeviceSnapshot{Owners: owners, Processes: Processes{List: ps, Times: true}}
		AttributeProcesses(&d, podOf)
		if got := uses(&d); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
	f("", nil)
	f("a/m 0 0 0; b/m 0 0 0", shared)
	f("a/m 2 30 0.75; b/m 1 5 0.125", shared, inPod("a", "m", 10, .5), inPod("b", "m", 5, .125), inPod("a", "m", 20, .25))
	f("a/m 1 10 0.5; b/m 0 0 0; host 1 7 0.25", shared, inPod("a", "m", 10, .5), host)
	// Shares that are rounded one by one may exceed all there is.
	f("a/m 2 0 1; b/m 0 0 0", shared, inPod("a", "m", 0, .755), inPod("a", "m", 0, .255))
	// Two containers of a pod, and one whose name is not known.
	two := []Owner{owner("a", "m", ""), owner("a", "n", "")}
	f("a/m 1 10 0.5; a/n 0 0 0", two, inPod("a", "m", 10, .5))
	f("a/ 1 10 0.5", two, inPod("a", "", 10, .5))
	f("a/m 1 10 0.5; b/m 0 0 0", shared, inPod("a", "", 10, .5))
	// A pod that uses the device without holding it.
	f("a/m 0 0 0; b/m 0 0 0; c/x 1 1 0.5", shared, inPod("c", "x", 1, .5))
	// A process of whom it is not known whose it is may be either sharer's:
	// neither is said to idle.
	f("a/m 1 10 0.5; unknown 1 3 0.25", shared, inPod("a", "m", 10, .5), inPod("d", "m", 3, .25))
	f("unseen 1 3 0.25", shared, Process{Memory: Read(3), Utilization: Read(.25)})
	// Where only one pod holds the device it is that one's, if its container is.
	sole := []Owner{owner("z", "m", "0"), owner("z", "m", "1")}
	f("z/m 1 3 0.25", sole, inPod("d", "m", 3, .25))
	f("unknown 1 3 0.25", sole, inPod("d", "exporter", 3, .25))
	f("unknown 1 3 0.25", nil, inPod("d", "m", 3, .25))
	uidNames["y"] = PodName{"ns", "z"}
	f("z/m 1 3 0.25; unknown 1 3 0.25", sole, inPod("y", "m", 3, .25), inPod("d", "m", 3, .25))
	delete(uidNames, "y")
	// A part of a sum that is missing makes the sum missing.
	odd := inPod("a", "m", 0, .5)
	odd.Memory = Reading{}
	f("a/m 2 ? 0.75; b/m 0 0 0", shared, inPod("a", "m", 10, .25), odd)
}

// A device that does not tell utilisations does not say 0 either.
func TestProcessesWithoutTimes(t *testing.T) {
	d := DeviceSnapshot{Owners: []Owner{{Pod: "a"}, {Pod: "b"}}}
	d.Processes.List = []Process{{Memory: Read(5), Place: Place{Kind: InPod, PodUID: "a"}}}
	AttributeProcesses(&d, func(string) (PodName, bool) { return PodName{Name: "a"}, true })
	if got := uses(&d); got != "a/ 1 5 ?; b/ 0 0 ?" {
		t.Error(got)
	}
}

func TestMPS(t *testing.T) {
	server := func(util float64) Process {
		return Process{Type: Compute, Memory: Read(30), Utilization: Read(util), Place: Place{Kind: OnHost, Name: "nvidia-cuda-mps"}}
	}
	client := func(uid string, util float64) Process {
		p := inPod(uid, "m", 10, util)
		p.Type = MPSClient
		return p
	}
	f := func(want string, ps ...Process) {
		t.Helper()
		d := DeviceSnapshot{Owners: []Owner{
			{Namespace: "ns", Pod: "a", Container: "m", Replica: "0"}, {Namespace: "ns", Pod: "b", Container: "m", Replica: "1"},
		}, Processes: Processes{ps, true}}
		AttributeProcesses(&d, podOf)
		if got := uses(&d); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
	f("a/m 1 10 0.5; b/m 1 10 0.25; host 1 30 0", server(0), client("a", .5), client("b", .25))
	f("a/m 1 10 0; b/m 1 10 0; host 1 30 0", server(0), client("a", 0), client("b", 0))
	// The server is said to do it all: whose work that is nobody knows.
	f("a/m 1 10 ?; b/m 0 0 ?; host 1 30 0.75", server(.75), client("a", 0))
	f("a/m 1 10 0.5; b/m 1 10 0; host 1 30 0.75", server(.75), client("a", .5), client("b", 0))
}

// What a tick pays for the processes of 8 GPUs with 4 sharers of 2 processes
// each.
func BenchmarkAttributeProcesses(b *testing.B) {
	names := map[string]PodName{}
	var d DeviceSnapshot
	for i := range 4 {
		uid := fmt.Sprint("uid-", i)
		names[uid] = PodName{"ns", fmt.Sprint("pod-", i)}
		d.Owners = append(d.Owners, Owner{Namespace: "ns", Pod: names[uid].Name, Container: "m", Replica: fmt.Sprint(i)})
		d.Processes.List = append(d.Processes.List, inPod(uid, "m", 10, .125), inPod(uid, "m", 20, .125))
	}
	d.Processes.Times = true
	b.ReportAllocs()
	for b.Loop() {
		for range 8 {
			AttributeProcesses(&d, func(uid string) (PodName, bool) { n, ok := names[uid]; return n, ok })
		}
	}
}

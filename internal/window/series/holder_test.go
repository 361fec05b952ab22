// SPDX-License-Identifier: Apache-2.0

package series

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

func onNode(node string, devices int) Holder {
	return Holder{Namespace: "ns", Pod: "p", Node: node, Devices: devices}
}

// Only exporters of the pod's own node count, even if others have more devices
// and newer values.
func TestPodOnItsNode(t *testing.T) {
	s := New(Config{})
	a, b := newTarget(t, s, "a"), newTarget(t, s, "b")
	a.own(sec(0), held("G0", "p"))
	a.put(sec(0), map[Key]float64{util("G0"): 20})
	b.own(sec(1), held("X0", "p"), held("X1", "p"))
	b.put(sec(1), map[Key]float64{util("X0"): 90, util("X1"): 90})
	f := func(node string, want float64, ok bool) {
		t.Helper()
		if got, gotOK := s.PodOn(onNode(node, 2), gpu.GPUUtil, sec(2), 5*time.Second); got.Value != want || gotOK != ok {
			t.Errorf("PodOn(%s) = %v, %v; want %v, %v", node, got.Value, gotOK, want, ok)
		}
	}
	f("n-a", 20, true)
	f("n-b", 90, true)
	f("n-c", 0, false)
	f("", 0, false)
	if n := testing.AllocsPerRun(100, func() { s.PodOn(onNode("n-a", 2), gpu.GPUUtil, sec(2), 5*time.Second) }); n > 0 {
		t.Errorf("PodOn allocates %v times", n)
	}
}

// A target that gives a pod more devices than it can hold has no say about it.
func TestPodHoldsNoMoreThanItCan(t *testing.T) {
	s := New(Config{})
	honest := bench{t, s.Target("honest", TargetLabels{Node: "n"})}
	forged := bench{t, s.Target("forged", TargetLabels{Node: "n"})}
	honest.own(sec(0), held("G0", "p"), held("G1", "q"))
	honest.put(sec(0), map[Key]float64{util("G0"): 20, util("G1"): 30})
	var list []DeviceOwners
	values := map[Key]float64{}
	for _, d := range []string{"X0", "X1", "X2", "X3"} {
		list = append(list, held(d, "p"))
		values[util(d)] = 100
	}
	forged.own(sec(0), list...)
	forged.put(sec(0), values)
	f := func(most int, want float64, ok bool) {
		t.Helper()
		if got, gotOK := s.PodOn(onNode("n", most), gpu.GPUUtil, sec(1), 5*time.Second); got.Value != want || gotOK != ok {
			t.Errorf("a pod of %d devices has %v, %v; want %v, %v", most, got.Value, gotOK, want, ok)
		}
	}
	f(-1, 100, true) // not known: the target with the most devices
	f(4, 100, true)
	f(3, 20, true)
	f(1, 20, true)
	s.Drop("honest")
	f(1, 0, false)
	f(0, 0, false)
}

// An agent says who holds the devices of its node. What a dcgm-exporter says
// beside it adds values, never owners.
func TestRanks(t *testing.T) {
	tensor := func(device string) Key { return Key{Device: device, Field: gpu.TensorActive} }
	s := New(Config{})
	agent := bench{t, s.Target("agent", TargetLabels{Node: "n"})}
	dcgm := bench{t, s.Target("dcgm", TargetLabels{Node: "n", Rank: 1})}
	dcgm.own(sec(0), held("G0", "p"), held("G1", "p"))
	dcgm.put(sec(0), map[Key]float64{util("G0"): 90, util("G1"): 100, tensor("G0"): 0.5, tensor("G1"): 0.7})
	f := func(what string, field gpu.FieldID, now float64, want float64, ok bool) {
		t.Helper()
		if got, gotOK := s.PodOn(onNode("n", 2), field, sec(now), 5*time.Second); got.Value != want || gotOK != ok {
			t.Errorf("%s: %v, %v; want %v, %v", what, got.Value, gotOK, want, ok)
		}
	}
	f("alone", gpu.GPUUtil, 0, 95, true)

	agent.put(sec(1), map[Key]float64{util("G0"): 20, util("G1"): 30})
	f("an agent that names no owners", gpu.GPUUtil, 1, 95, true)

	agent.own(sec(2), held("G0", "p"), held("G1", "q"))
	agent.put(sec(2), map[Key]float64{util("G0"): 20, util("G1"): 30})
	f("the agent's device", gpu.GPUUtil, 2, 20, true)
	f("a field that only DCGM has, of the agent's device", gpu.TensorActive, 2, 0.5, true)

	agent.own(sec(3), held("G0", "q"), held("G1", "q"))
	agent.put(sec(3), map[Key]float64{util("G0"): 20, util("G1"): 30})
	f("the agent names another owner", gpu.GPUUtil, 3, 0, false)
	f("the agent names another owner, a field that only DCGM has", gpu.TensorActive, 3, 0, false)

	dcgm.put(sec(9), map[Key]float64{util("G0"): 90, util("G1"): 100})
	f("the agent has been silent for 6 s", gpu.GPUUtil, 9, 95, true)
	agent.own(sec(10))
	agent.put(sec(10), map[Key]float64{util("G0"): 20})
	f("the agent names no owner any more", gpu.GPUUtil, 10, 95, true)
}

func TestClaims(t *testing.T) {
	s := New(Config{})
	a := bench{t, s.Target("a", TargetLabels{Node: "n"})}
	s.Target("pod", TargetLabels{Node: "n", Namespace: "ns", Pod: "p"})
	a.own(sec(0), held("G0", "p", "q"), held("G1", "p"), held("G2"))
	list := func() (out []string) {
		s.Claims(func(c *Claim) {
			for _, d := range c.Devices {
				for _, o := range d.Owners {
					out = append(out, c.Target+" "+c.Labels.Node+" "+d.Device+" "+o.Pod)
				}
			}
		})
		slices.Sort(out)
		return out
	}
	if diff := cmp.Diff([]string{"a n G0 p", "a n G0 q", "a n G1 p"}, list()); diff != "" {
		t.Error(diff)
	}
	s.Target("a", TargetLabels{Node: "elsewhere"})
	if got := list(); len(got) != 3 || got[0] != "a elsewhere G0 p" || len(s.nodes.targets["n"]) != 0 {
		t.Errorf("on another node: %v", got)
	}
	s.Drop("a")
	if got := list(); len(got) != 0 || len(s.nodes.targets) != 0 {
		t.Errorf("dropped: %v, %d nodes", got, len(s.nodes.targets))
	}
}

// A target that collects every 10 s has the say for three intervals.
func TestRanksOfSlowTargets(t *testing.T) {
	s := New(Config{})
	agent := bench{t, s.Target("agent", TargetLabels{Node: "n"})}
	dcgm := bench{t, s.Target("dcgm", TargetLabels{Node: "n", Rank: 1})}
	agent.SetInterval(10 * time.Second)
	agent.own(sec(0), held("G0", "p"))
	agent.put(sec(0), map[Key]float64{util("G0"): 20})
	f := func(at float64, want float64) {
		t.Helper()
		dcgm.own(sec(at), held("G1", "p"))
		dcgm.put(sec(at), map[Key]float64{util("G1"): 90})
		if got, ok := s.PodOn(onNode("n", 1), gpu.GPUUtil, sec(at), 5*time.Second); !ok || got.Value != want {
			t.Errorf("at %g s: %v, %v; want %v", at, got.Value, ok, want)
		}
	}
	f(29, 20)
	f(31, 90)
}

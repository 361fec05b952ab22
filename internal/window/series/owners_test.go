// SPDX-License-Identifier: Apache-2.0

package series

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

// claims is a list of n devices, each held by the given containers of pods whose
// names begin with prefix.
func claims(prefix string, n int, owners func(device int) []string) []DeviceOwners {
	list := make([]DeviceOwners, n)
	for i := range list {
		list[i].Device = fmt.Sprintf("GPU-%04d", i)
		for _, pod := range owners(i) {
			list[i].Owners = append(list[i].Owners, gpu.Owner{Namespace: "ns", Pod: prefix + pod, Container: "c"})
		}
	}
	return list
}

func onePod(int) []string { return []string{"pod"} }

// The work of an update grows as its list does, whatever the list is: it is
// counted, not timed. It was quadratic: 16,384 lines took 5.8 s.
func TestWorkOfOwnersIsLinear(t *testing.T) {
	shapes := map[string]func(device int) []string{
		"one pod holds all devices": onePod,
		"each device has its own":   func(d int) []string { return []string{fmt.Sprintf("%04d", d)} },
		"four pods share each":      func(d int) []string { return []string{"a", "b", "c", "d"} },
		"four pods of its own share": func(d int) (own []string) {
			for _, name := range []string{"a", "b", "c", "d"} {
				own = append(own, fmt.Sprintf("%04d%s", d, name))
			}
			return own
		},
	}
	for what, shape := range shapes {
		work := func(n int) (most int) {
			s := New(Config{})
			a := newTarget(t, s, "a")
			for i := range 20 { // all devices change hands, again and again
				before := a.holdings.steps
				a.SetOwners(sec(float64(i)), claims([]string{"x", "y"}[i%2], n, shape))
				// Pruning is paid by the tenures that end between two of them.
				most = max(most, a.holdings.steps-before)
			}
			return most
		}
		small, large := work(128), work(1024)
		if large > 8*small*3/2 || large > 1024*4*24 {
			t.Errorf("%s: %d steps for 128 devices, %d for 1,024", what, small, large)
		}
	}
}

func TestOwnersThatStayCostNoTenures(t *testing.T) {
	s := New(Config{})
	a := newTarget(t, s, "a")
	list := claims("", 1024, onePod)
	for i := range 10 {
		a.SetOwners(sec(float64(i)), list)
	}
	if n := len(a.holdings.pods.entries[podKey{"ns", "pod"}].spans); n != 1024 {
		t.Errorf("%d tenures, want 1024", n)
	}
}

// A page that alternates between two lists has no more tenures than one that does not.
func TestAlternatingOwnersAreBounded(t *testing.T) {
	s := New(Config{})
	a := newTarget(t, s, "a")
	var most int64
	for i := range 300 {
		a.SetOwners(sec(float64(i)), claims([]string{"x", "y"}[i%2], 512, onePod))
		if n := s.Stats().Memory; i < 4 {
			most = max(most, n)
		} else if n > most {
			t.Fatalf("%d bytes after %d updates, %d after four", n, i+1, most)
		}
		if n := len(a.holdings.pods.entries); n != 1 || s.Pods() != n {
			t.Fatalf("%d pods hold a device, %d are in the index, want 1", n, s.Pods())
		}
	}
}

func TestOwnerBounds(t *testing.T) {
	s := New(Config{})
	a := newTarget(t, s, "a")
	if a.SetOwners(sec(0), claims("", 16_384, func(d int) []string { return []string{fmt.Sprintf("%05d", d)} })) {
		t.Error("a list of 16,384 devices was taken whole")
	}
	if n := len(a.devices.byUUID.entries); n != MaxDevices || s.Pods() != MaxDevices {
		t.Errorf("%d devices and %d pods, want %d", n, s.Pods(), MaxDevices)
	}
	if n := s.Stats().Refused[RefusedDevice]; n != 16_384-MaxDevices {
		t.Errorf("%d devices counted as refused, want %d", n, 16_384-MaxDevices)
	}

	b := newTarget(t, s, "b")
	b.SetOwners(sec(0), claims("", 3, func(d int) []string {
		var out []string
		for i := range 2000 {
			out = append(out, fmt.Sprintf("%d-%04d", d, i))
		}
		return out
	}))
	total := 0
	for _, d := range b.devices.byUUID.entries {
		total += len(d.owners)
	}
	if total != MaxOwners || s.Stats().Refused[RefusedOwner] != 6000-MaxOwners {
		t.Errorf("%d owners, %d refused; want %d, %d", total, s.Stats().Refused[RefusedOwner], MaxOwners, 6000-MaxOwners)
	}
	got := s.Limited()
	if len(got) != 2 || got[0].Refused == 0 || got[1].Refused == 0 {
		t.Errorf("limited targets %+v, want both", got)
	}

	c := newTarget(t, s, "c")
	long := strings.Repeat("x", 1<<20)
	c.SetOwners(sec(0), []DeviceOwners{
		{Device: long, Owners: held("", "p").Owners},
		{Device: "G0", Owners: []gpu.Owner{
			{Namespace: long, Pod: "p"},
			{Namespace: "ns", Pod: long},
			{Namespace: "ns", Pod: "p", Container: long},
			{Namespace: "ns", Pod: "p", Replica: long},
			{Namespace: "ns", Pod: "good"},
			{Namespace: "", Pod: "p"},
			{Namespace: "ns"},
		}},
	})
	if d := c.devices.byUUID.entries["G0"]; len(c.devices.byUUID.entries) != 1 || d == nil || len(d.owners) != 1 || d.owners[0].Pod != "good" {
		t.Errorf("devices %v with names of 1 MiB", c.devices.byUUID.entries)
	}
	if _, ok := c.Ref(Key{Device: long, Field: gpu.GPUUtil}); ok {
		t.Error("a series of a device with a name of 1 MiB was taken")
	}
	if _, ok := c.Ref(Key{Device: "G0", Field: gpu.GPUUtil, Pod: "ns/" + long}); ok {
		t.Error("a series of a pod with a name of 1 MiB was taken")
	}
	checkLedger(t, s)
}

// While one target is being updated, others are read, updated, made and dropped.
func TestAnUpdateLocksItsOwnTargetOnly(t *testing.T) {
	s := New(Config{})
	a, b := newTarget(t, s, "a"), newTarget(t, s, "b")
	a.own(sec(0), held("G0", "p"))
	b.own(sec(0), held("G1", "q"))
	b.put(sec(0), map[Key]float64{util("G1"): 7})
	done := make(chan struct{})
	a.mu.Lock()
	defer a.mu.Unlock()
	go func() {
		defer close(done)
		if v, ok := s.Pod("ns", "q", gpu.GPUUtil, sec(0), time.Second); !ok || v.Value != 7 {
			t.Errorf("value of another pod: %v, %v", v, ok)
		}
		if v, ok := s.PodOn(Holder{Node: "n-b", Namespace: "ns", Pod: "p", Devices: -1}, gpu.GPUUtil, sec(0), time.Second); ok {
			t.Errorf("value of the pod on a node that does not have it: %v", v)
		}
		b.own(sec(1), held("G1", "r"))
		newTarget(t, s, "c").own(sec(0), held("G2", "r"))
		s.Drop("c")
		s.Pods()
	}()
	select {
	case <-done:
	case <-time.After(time.Minute):
		t.Fatal("others wait for a target's update")
	}
}

// A pod that 1,000 targets claim, each with 1,024 devices, costs a reader what
// its own node's target has.
func TestAPodThatAllTargetsClaim(t *testing.T) {
	s := New(Config{MaxBytes: 4 << 30})
	list := claims("", 1024, onePod)
	for i := range 100 {
		newTarget(t, s, fmt.Sprint(i)).SetOwners(sec(0), list)
	}
	var buf [4]tenure
	node := "n-7"
	if got := s.tenures(buf[:0], podKey{"ns", "pod"}, &node); len(got) != 1024 {
		t.Errorf("%d tenures are read, the node has 1024", len(got))
	}
	for i := range 100 {
		s.Drop(fmt.Sprint(i))
	}
	if st := s.Stats(); st.Memory != 0 || s.Pods() != 0 {
		t.Errorf("after all were dropped: %+v, %d pods", st, s.Pods())
	}
}

// BenchmarkSetOwners is an update in which every device changes hands.
func BenchmarkSetOwners(b *testing.B) {
	for _, n := range []int{8, 128, 1024, 16_384} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			s := New(Config{Span: time.Minute})
			a := newTarget(b, s, "a")
			shape := func(d int) []string { return []string{fmt.Sprintf("%04d", d)} }
			lists := [][]DeviceOwners{claims("x", n, shape), claims("y", n, shape)}
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				i++
				a.SetOwners(sec(float64(i)), lists[i%2])
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*n), "ns/line")
		})
	}
}

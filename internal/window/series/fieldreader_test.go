// SPDX-License-Identifier: Apache-2.0

package series

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

// The reading of a pod on one target follows the rules for several targets,
// whatever exporters claim, and handles that are older than the claims do not
// change it.
func TestFieldReaderFollowsTheRulesForSeveralTargets(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	s := New(Config{})
	nodes, pods := []string{"n-0", "n-1"}, []string{"p", "q", "r"}
	handles := map[string]*PodHandle{"p": {}, "q": {}, "r": {}}
	found := 0
	for step := range 3000 {
		at := sec(float64(step))
		name := fmt.Sprint("t-", r.IntN(4))
		switch r.IntN(8) {
		case 0:
			s.Drop(name)
		case 1:
			s.Forget("ns", pods[r.IntN(3)], at)
		default:
			b := bench{t, s.Target(name, TargetLabels{Node: nodes[r.IntN(2)], Rank: uint8(r.IntN(2))})}
			var list []DeviceOwners
			values := map[Key]float64{}
			for d := range r.IntN(4) {
				device := fmt.Sprint("G", d)
				list = append(list, held(device, pods[r.IntN(3)]))
				values[util(device)] = float64(r.IntN(100))
			}
			b.own(at, list...)
			if err := b.put(at, values); err != nil {
				t.Fatal(err)
			}
		}
		field, _ := gpu.Lookup(gpu.GPUUtil)
		reader := s.FieldReader(gpu.GPUUtil, at, 5*time.Second)
		for _, pod := range pods {
			h := Holder{Namespace: "ns", Pod: pod, Node: nodes[r.IntN(2)], Devices: r.IntN(4) - 1}
			want, wantOK := s.podOnMany(&h, field, at, 5*time.Second)
			got, ok := reader.PodOn(&h, handles[pod])
			if ok != wantOK || ok && got != want {
				t.Fatalf("step %d: PodOn(%+v) = %v, %v; want %v, %v", step, h, got, ok, want, wantOK)
			}
			if ok {
				found++
			}
		}
	}
	if found < 1000 {
		t.Errorf("only %d values", found)
	}
}

func TestFieldReaderOfNoField(t *testing.T) {
	r := New(Config{}).FieldReader(math.MaxUint16, sec(0), time.Second)
	if got, ok := r.PodOn(&Holder{Namespace: "ns", Pod: "p", Node: "n", Devices: -1}, &PodHandle{}); ok {
		t.Errorf("a value %v", got)
	}
}

// BenchmarkFieldReader reads a field of 5,000 pods with one GPU each, eight to a
// node, with handles as the metrics API has them, and by name.
func BenchmarkFieldReader(b *testing.B) {
	const pods = 5000
	s := New(Config{})
	holders, handles := make([]Holder, pods), make([]PodHandle, pods)
	for first := 0; first < pods; first += 8 {
		node := fmt.Sprintf("node-%d", first/8)
		n := bench{b, s.Target("agent/"+node, TargetLabels{Node: node})}
		var list []DeviceOwners
		values := map[Key]float64{}
		for i := first; i < first+8; i++ {
			name, device := fmt.Sprintf("web-6d4cf56db6-%05d", i), fmt.Sprintf("GPU-%08x", i)
			holders[i] = Holder{Namespace: "ns", Pod: name, Node: node, Devices: 1}
			list = append(list, held(device, name))
			values[util(device)] = float64(i % 101)
		}
		n.own(sec(0), list...)
		if err := n.put(sec(1), values); err != nil {
			b.Fatal(err)
		}
	}
	run := func(b *testing.B, handle func(i int) *PodHandle) {
		b.ReportAllocs()
		for b.Loop() {
			r := s.FieldReader(gpu.GPUUtil, sec(2), 5*time.Second)
			for i := range holders {
				if _, ok := r.PodOn(&holders[i], handle(i)); !ok {
					b.Fatalf("no value of %s", holders[i].Pod)
				}
			}
		}
	}
	b.Run("handles", func(b *testing.B) { run(b, func(i int) *PodHandle { return &handles[i] }) })
	b.Run("names", func(b *testing.B) { run(b, func(int) *PodHandle { return &PodHandle{} }) })
}

// SPDX-License-Identifier: Apache-2.0

package series

import (
	"testing"
	"time"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

// Shares are a pod's own, are swept like other series, and have a history.
func TestShareSeries(t *testing.T) {
	s := New(Config{Span: time.Minute, Interval: time.Second})
	target := s.Target("t", TargetLabels{Node: "n"})
	ref := func(k Key) Ref {
		t.Helper()
		r, ok := target.Ref(k)
		if !ok {
			t.Fatalf("%+v is not taken", k)
		}
		return r
	}
	whole := ref(Key{Device: "G", Field: gpu.GPUUtil})
	p, q := ref(Key{Device: "G", Field: gpu.GPUUtil, Pod: "ns/p"}), ref(Key{Device: "G", Field: gpu.GPUUtil, Pod: "ns/q"})
	if again := ref(Key{Device: "G", Field: gpu.GPUUtil, Pod: "ns/p"}); again != p || p == q || p == whole {
		t.Errorf("refs %v %v %v, again %v", whole, p, q, again)
	}
	for _, bad := range []Key{{Metric: "m", Pod: "ns/p"}, {Pod: "ns/p"}} {
		if _, ok := target.Ref(bad); ok {
			t.Errorf("%+v is taken", bad)
		}
	}
	start := time.Unix(1_700_000_000, 0)
	target.SetOwners(start, []DeviceOwners{{"G", []gpu.Owner{{Namespace: "ns", Pod: "p"}, {Namespace: "ns", Pod: "q"}}}})
	var b Batch
	for i := range 5 {
		b.Reset()
		b.Add(whole, 90)
		b.Add(p, float64(10*i))
		b.Add(q, 1)
		if unknown, err := target.Append(start.Add(time.Duration(i)*time.Second), &b); unknown > 0 || err != nil {
			t.Fatal(unknown, err)
		}
	}
	now := start.Add(4 * time.Second)
	if v, ok := s.Pod("ns", "p", gpu.GPUUtil, now, time.Second); !ok || v.Value != 40 {
		t.Errorf("p uses %v, %v", v, ok)
	}
	if v, ok := s.PodOn(Holder{Node: "n", Namespace: "ns", Pod: "q", Devices: -1}, gpu.GPUUtil, now, time.Second); !ok || v.Value != 1 {
		t.Errorf("q uses %v, %v", v, ok)
	}
	if got := podRange(s, "n", "p", gpu.GPUUtil, start, now); len(got) != 5 || got[1].Value != 10 {
		t.Errorf("p used %v", got)
	}
	// Alone again, a pod has the device's value.
	target.SetOwners(now, []DeviceOwners{{"G", []gpu.Owner{{Namespace: "ns", Pod: "p"}}}})
	if v, ok := s.Pod("ns", "p", gpu.GPUUtil, now, time.Second); !ok || v.Value != 90 {
		t.Errorf("p alone has %v, %v", v, ok)
	}
	before := s.Stats().Series
	for i := range 300 {
		b.Reset()
		b.Add(whole, 90)
		if _, err := target.Append(now.Add(time.Duration(i+1)*time.Second), &b); err != nil {
			t.Fatal(err)
		}
	}
	if after := s.Stats().Series; before != 3 || after != 1 {
		t.Errorf("%d series, and %d when nobody measures shares any more", before, after)
	}
}

func TestPodNames(t *testing.T) {
	for s, want := range map[string]bool{"ns/p": true, "ns/pp": false, "n/sp": false, "nsp/": false, "ns": false, "": false, "ns/": false} {
		if (podKey{"ns", "p"}).is(s) != want {
			t.Errorf("%q: %v", s, !want)
		}
	}
}

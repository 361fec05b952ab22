// SPDX-License-Identifier: Apache-2.0

package series

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

// idleSince returns the run of a device, in s from t0.
func (b bench) idleSince(device string) string {
	for _, d := range b.store.Devices("", nil, sec(0), 0) {
		if d.Device != device {
			continue
		}
		switch at, atLeast, ok := d.Idle.Since(); {
		case !ok:
			return "not"
		case atLeast:
			return fmt.Sprintf("at least %g", at.Sub(t0).Seconds())
		default:
			return fmt.Sprintf("%g", at.Sub(t0).Seconds())
		}
	}
	return "no device"
}

// Every device has a run of its own, which lasts longer than the window.
func TestIdleRuns(t *testing.T) {
	s := New(Config{Span: 20 * time.Second})
	a := newTarget(t, s, "a")
	f := func(device, want string) {
		t.Helper()
		if got := a.idleSince(device); got != want {
			t.Errorf("%s is idle since %s, want %s", device, got, want)
		}
	}
	busy := 0.0
	at := func(from, to int, devices ...string) {
		t.Helper()
		for i := from; i < to; i++ {
			values := map[Key]float64{power("G0"): 90}
			for _, d := range devices {
				values[util(d)] = 0
			}
			values[util("G1")] = busy
			a.put(sec(float64(i)), values)
		}
	}
	busy = 7
	at(0, 50, "G0", "G2/gi1")
	f("G0", "at least 0")
	f("G1", "not")
	busy = 0
	at(50, 90, "G0")
	f("G0", "at least 0")
	f("G1", "49")
	f("G2/gi1", "no device") // its series were swept

	// The instance comes back, and gets the place of another series.
	at(90, 100, "G0", "G2/gi1", "G3")
	f("G2/gi1", "at least 90")
	f("G3", "at least 90")
	f("G1", "49")

	// A clock that is set back makes all times unknown.
	at(10, 12, "G0")
	f("G0", "at least 10")
	f("G1", "at least 10")
}

// A target's own interval bounds the gaps, and a measured share of a pod is no value of the device.
func TestIdleRunsOfASlowExporter(t *testing.T) {
	s := New(Config{})
	a := newTarget(t, s, "a")
	a.SetInterval(10 * time.Second)
	for i := range 10 {
		a.put(sec(float64(30*i)), map[Key]float64{util("G0"): 0, {Device: "G0", Field: gpu.GPUUtil, Pod: "ns/p"}: 60})
	}
	if got := a.idleSince("G0"); got != "at least 0" {
		t.Error(got)
	}
	a.put(sec(301), map[Key]float64{util("G0"): 0})
	if got := a.idleSince("G0"); got != "at least 301" {
		t.Error(got)
	}
}

// A second of 10,000 targets with 8 GPUs and 20 fields each, with the idle runs of the GPUs. B/GPU is the memory of the
// devices themselves.
func BenchmarkFleetAppend(b *testing.B) {
	const targets, gpus, fields = 10_000, 8, 20
	s := New(Config{Span: 16 * time.Second, MaxBytes: 4 << 30})
	at := slices.IndexFunc(gpu.Fields(), func(f gpu.Field) bool { return f.ID == gpu.GPUUtil })
	fleet, batches := make([]bench, targets), make([]Batch, targets)
	for i := range fleet {
		fleet[i] = newTarget(b, s, fmt.Sprint(i))
		for d := range gpus {
			for _, f := range gpu.Fields()[at-fields/2 : at+fields/2] {
				r, ok := fleet[i].Ref(Key{Device: fmt.Sprintf("GPU-%d-%d", i, d), Field: f.ID})
				if !ok {
					b.Fatal("no room")
				}
				batches[i].Add(r, 0)
			}
		}
	}
	for n := 0; b.Loop(); n++ {
		for i := range fleet {
			if _, err := fleet[i].Append(sec(float64(n)), &batches[i]); err != nil {
				b.Fatal(err)
			}
		}
	}
	b.ReportMetric(float64(deviceBytes), "B/GPU")
}

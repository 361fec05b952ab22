// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package dcgm

import (
	"fmt"
	"testing"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

// BenchmarkRead reads one GPU of the fake, whose calls cost little: what is
// measured are go-dcgm's copies.
func BenchmarkRead(b *testing.B) {
	var forty gpu.FieldSet
	for i := 11; i < 51; i++ {
		forty.Add(gpu.Index(i))
	}
	for _, c := range []struct {
		name string
		want gpu.FieldSet
	}{
		{"util", gpu.SetOf(gpu.GPUUtil)},
		{"40 fields", forty},
		{"all", gpu.AllFields()},
	} {
		b.Run(c.name, func(b *testing.B) {
			newFake(b)
			r, devices := reader(b, Config{})
			var v gpu.Values
			if err := r.Read(devices[0].UUID, c.want, &v); err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			for b.Loop() {
				if err := r.Read(devices[0].UUID, c.want, &v); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(len(r.Known()[devices[0].UUID].plan.numbers.fields)), "fields")
		})
	}
}

// BenchmarkTick reads a node: 8 GPUs, or 56 instances.
func BenchmarkTick(b *testing.B) {
	for _, instances := range []int{0, 7} {
		b.Run(fmt.Sprintf("8 GPUs x %d", instances), func(b *testing.B) {
			f := newFake(b)
			f.Put("gpus", "gpus 8")
			if instances > 0 {
				f.Put("mig", fmt.Sprintf("gpu * mig 1g.18gb %d", instances))
			}
			r, devices := reader(b, Config{})
			var v gpu.Values
			b.ReportAllocs()
			for b.Loop() {
				for _, d := range devices {
					if instances > 0 && d.MIG == nil {
						continue
					}
					if err := r.Read(d.UUID, gpu.AllFields(), &v); err != nil {
						b.Fatal(err)
					}
				}
			}
		})
	}
}

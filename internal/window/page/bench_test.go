// SPDX-License-Identifier: Apache-2.0

package page

import (
	"syscall"
	"testing"
	"time"

	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/window/series"
	"github.com/gpupilot/gpupilot/test/pagetest"
)

func BenchmarkReadPage(b *testing.B) {
	f := func(name string, fields int, watch bool) {
		b.Run(name, func(b *testing.B) {
			store := series.New(series.Config{Span: time.Minute})
			g := newGPUs(store.Target("t", series.TargetLabels{}), gpu.FieldSet{})
			g.watch = watch
			p := newReader(g)
			body := pagetest.Node(1, fields)
			p.Read(body)
			b.SetBytes(int64(len(body)))
			b.ReportAllocs()
			before := cpu()
			for b.Loop() {
				p.Read(body)
			}
			reportCPU(b, before, len(body), p.Lines)
		})
	}
	f("8x4", 4, false)
	f("8x40", 40, false)
	f("8x40-watched", 40, true) // a dcgm-exporter's
}

func BenchmarkReadNewPage(b *testing.B) {
	store := series.New(series.Config{Span: time.Minute})
	g := newGPUs(store.Target("t", series.TargetLabels{}), gpu.FieldSet{})
	p := newReader(g)
	body := pagetest.Node(1, 40)
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	before := cpu()
	for b.Loop() {
		p.forget()
		p.Read(body)
	}
	reportCPU(b, before, len(body), p.Lines)
}

// reportCPU reports what pages cost in CPU time, which other load on the machine
// changes less than the time that passes.
func reportCPU(b *testing.B, before time.Duration, bytes, lines int) {
	spent := float64((cpu() - before).Nanoseconds()) / float64(b.N)
	b.ReportMetric(float64(bytes)/spent, "GB/cpu-s")
	b.ReportMetric(spent/float64(lines), "cpu-ns/line")
}

func cpu() time.Duration {
	var u syscall.Rusage
	syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

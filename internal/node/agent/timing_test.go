// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"log/slog"
	"net/http"
	"testing"
	"time"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

// BenchmarkTick is a tick without the library's time: asking eight workers,
// taking their readings in, attributing and publishing.
func BenchmarkTick(b *testing.B) {
	r := newReader(gpus(8)...)
	a := New(Config{Interval: time.Hour}, Deps{
		Reader: r, Log: slog.New(slog.DiscardHandler), Metrics: http.NotFoundHandler(),
		Publish: func(*gpu.Snapshot, Stats, time.Time) {},
	})
	l := newLoop(a)
	l.enumerate(time.Now())
	l.await(b.Context(), time.Now(), func() bool { return l.enumerating })
	b.ReportAllocs()
	for b.Loop() {
		l.tick(b.Context())
	}
	if s := a.Snapshot(); len(s.Devices) != 8 || s.Devices[7].Collected != s.Time {
		b.Errorf("a tick lacks readings: %v of %v", s.Devices[7].Collected, s.Time)
	}
}

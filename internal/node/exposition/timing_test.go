// SPDX-License-Identifier: Apache-2.0

package exposition

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/gpu/names"
)

// fleet is a node as the benchmarks have it: gpus, each cut into parts (0: not
// at all) with 40 fields and a pod per device, or sharers of it.
func fleet(now time.Time, gpus, parts, sharers int) (*gpu.Snapshot, Config) {
	var c Collectors
	for _, f := range gpu.Fields() {
		if f.Kind != gpu.Label && len(c.Metrics) < 40 {
			typ := Gauge
			if f.Kind == gpu.Counter {
				typ = Counter
			}
			c.Metrics = append(c.Metrics, Collector{Name: f.Name, Ref: gpu.Ref{Field: f.ID, Scale: 1}, Type: typ, Help: f.Help})
		}
	}
	c.Labels = DefaultCollectors(names.Profile48).Labels
	s := snapshot(now)
	for i := range gpus * max(parts, 1) {
		values := map[gpu.FieldID]float64{}
		for j, m := range c.Metrics {
			v := float64(i*100+j) + 0.25
			if f, _ := gpu.Lookup(m.Ref.Field); f.Unit == gpu.Percent || f.Unit == gpu.Celsius {
				v = float64((i+j)%100) + 0.25
			} else if f.Unit == gpu.Ratio {
				v = float64((i+j)%10)/10 + 0.025
			}
			values[m.Ref.Field] = v
		}
		d := wholeGPU(i, now, values)
		if parts > 0 {
			d.MIG = &gpu.MIG{ParentUUID: fmt.Sprintf("GPU-%08d", i/parts), GPUInstance: i%parts + 7, ComputeInstance: 0, Profile: "1g.18gb"}
		}
		for k := range sharers {
			d.Owners = append(d.Owners, gpu.Owner{Namespace: "inference", Pod: fmt.Sprintf("llm-7d9c8b6f5-%05d-%d", i, k), Container: "server", Replica: fmt.Sprint(k)})
		}
		s.Devices = append(s.Devices, d)
	}
	return s, Config{Profile: names.Profile48, Collectors: c, Hostname: "gpu-node-0001", Kubernetes: true}
}

// The budgets of a tick and of a scrape.
func TestAllocations(t *testing.T) {
	now := soon()
	s, cfg := fleet(now, 8, 0, 1)
	e := New(cfg)
	for range 3 {
		renderNow(e, s, now)
	}
	if n := testing.AllocsPerRun(100, func() { renderNow(e, s, now) }); n != 0 {
		t.Errorf("rendering a page allocates %v times", n)
	}
	virtual, vcfg := fleet(now, 8, 0, 4)
	vcfg.VirtualGPUs, vcfg.PodUID = true, true
	ve := New(vcfg)
	for range 3 {
		renderNow(ve, virtual, now)
	}
	if n := testing.AllocsPerRun(100, func() { renderNow(ve, virtual, now) }); n != 0 {
		t.Errorf("rendering a page with a copy for each sharer allocates %v times", n)
	}
	scrape := func(target string, header ...string) float64 {
		req := httptest.NewRequest(http.MethodGet, target, nil)
		for i := 0; i < len(header); i += 2 {
			req.Header.Set(header[i], header[i+1])
		}
		w := &sink{h: http.Header{}}
		e.ServeHTTP(w, req)
		return testing.AllocsPerRun(100, func() { e.ServeHTTP(w, req) })
	}
	for _, c := range []struct {
		what   string
		allocs float64
		budget float64
	}{
		{"plain", scrape("/metrics"), 4},
		{"gzip", scrape("/metrics", "Accept-Encoding", "gzip"), 4},
		{"OpenMetrics", scrape("/metrics", "Accept", "application/openmetrics-text; version=1.0.0; q=0.8"), 4},
		{"two fields", scrape(firstAndLast(cfg)), 14},
	} {
		if c.allocs > c.budget {
			t.Errorf("a scrape (%s) allocates %v times, more than %v", c.what, c.allocs, c.budget)
		}
	}
}

// renderNow has a collection rendered, whoever has asked for pages.
func renderNow(e *Exporter, s *gpu.Snapshot, now time.Time) {
	e.Update(s, Stats{}, now)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.show()
}

// sink is a ResponseWriter that forgets.
type sink struct {
	h http.Header
	n int
}

func (s *sink) Header() http.Header         { return s.h }
func (s *sink) WriteHeader(int)             {}
func (s *sink) Write(b []byte) (int, error) { s.n += len(b); return len(b), nil }

func BenchmarkRender(b *testing.B) {
	for _, c := range []struct {
		name                 string
		gpus, parts, sharers int
	}{{"8gpus", 8, 0, 1}, {"8x7mig", 8, 7, 1}, {"8x4sharers", 8, 0, 4}, {"8x4virtual", 8, 0, 4}} {
		b.Run(c.name, func(b *testing.B) {
			now := time.Now()
			s, cfg := fleet(now, c.gpus, c.parts, c.sharers)
			cfg.VirtualGPUs = c.name == "8x4virtual"
			e := New(cfg)
			b.ReportAllocs()
			for b.Loop() {
				renderNow(e, s, now)
			}
			b.SetBytes(int64(len(e.pages.current.body)))
		})
	}
}

func BenchmarkGzip(b *testing.B) {
	now := time.Now()
	s, cfg := fleet(now, 8, 0, 1)
	e := New(cfg)
	e.Update(s, Stats{}, now)
	b.ReportAllocs()
	for b.Loop() {
		p := e.pages.acquire()
		p.isPacked[text] = false
		e.whole(p, text, true)
		e.pages.release(p)
	}
}

// firstAndLast asks for two of the fields.
func firstAndLast(cfg Config) string {
	m := cfg.Collectors.Metrics
	return "/metrics?name[]=" + m[0].Name + "&name[]=" + m[len(m)-1].Name
}

// BenchmarkScrape asks for everything, for two of forty fields, and for two
// where there are no others: fields that nobody asks for should cost nothing.
func BenchmarkScrape(b *testing.B) {
	for _, c := range []struct {
		name      string
		all, only bool
	}{{name: "whole", all: true}, {name: "two of forty"}, {name: "two of two", only: true}} {
		b.Run(c.name, func(b *testing.B) {
			now := time.Now()
			s, cfg := fleet(now, 8, 0, 1)
			s.Interval = time.Hour
			target := firstAndLast(cfg)
			if c.all {
				target = "/metrics"
			}
			if c.only {
				m := cfg.Collectors.Metrics
				cfg.Collectors.Metrics = []Collector{m[0], m[len(m)-1]}
			}
			e := New(cfg)
			e.Update(s, Stats{}, now)
			req := httptest.NewRequest(http.MethodGet, target, nil)
			w := &sink{h: http.Header{}}
			b.ReportAllocs()
			for b.Loop() {
				w.n = 0
				e.ServeHTTP(w, req)
			}
			b.ReportMetric(float64(w.n), "bytes")
		})
	}
}

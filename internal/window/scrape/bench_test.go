// SPDX-License-Identifier: Apache-2.0

package scrape

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"runtime"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/window/series"
)

// nodePage is what an agent with 8 GPUs answers, with the first n of the
// fields that take numbers, each series with its pod.
func nodePage(node, n int) []byte {
	fields := []string{"DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_FB_USED", "DCGM_FI_DEV_POWER_USAGE", "DCGM_FI_PROF_SM_ACTIVE"}
	for _, f := range gpu.Fields() {
		if f.Kind != gpu.Label && len(fields) < n && !strings.Contains(strings.Join(fields, " "), f.Name) {
			fields = append(fields, f.Name)
		}
	}
	var b strings.Builder
	fmt.Fprintf(&b, "# HELP gpupilot_collection_timestamp_seconds When.\n# TYPE gpupilot_collection_timestamp_seconds gauge\n")
	fmt.Fprintf(&b, "gpupilot_collection_timestamp_seconds %.6f\n", float64(time.Now().UnixMicro())/1e6)
	fmt.Fprintf(&b, "gpupilot_collection_interval_seconds 1\ngpupilot_collection_duration_seconds 0.005\n")
	for g := range 8 {
		fmt.Fprintf(&b, "gpupilot_gpu_allocation_info{uuid=%q,namespace=\"ns\",pod=\"pod-%d-%d\",container=\"c\",replica=\"\"} 1\n", uuid(node, g), node, g)
	}
	for _, f := range fields[:n] {
		fmt.Fprintf(&b, "# HELP %s Some words on what this is (in units).\n# TYPE %s gauge\n", f, f)
		for g := range 8 {
			fmt.Fprintf(&b, `%s{gpu="%d",UUID=%q,pci_bus_id="00000000:%02X:00.0",device="nvidia%d",modelName="NVIDIA H200",hostname="node-%d",DCGM_FI_DRIVER_VERSION="580.105.08",container="c",namespace="ns",pod="pod-%d-%d"} %d.%06d`+"\n",
				f, g, uuid(node, g), g, g, node, node, g, g*10, g*1234)
		}
	}
	return []byte(b.String())
}

func uuid(node, g int) string { return fmt.Sprintf("GPU-%08x-d4bd-c2f7-dfaf-%012x", node, g) }

func BenchmarkReadPage(b *testing.B) {
	f := func(name string, fields int, watch bool) {
		b.Run(name, func(b *testing.B) {
			store := series.New(series.Config{Span: time.Minute})
			g := newGPUs(store.Target("t", series.TargetLabels{}), gpu.FieldSet{})
			g.watch = watch
			p := newPage(g)
			body := nodePage(1, fields)
			p.read(body)
			b.SetBytes(int64(len(body)))
			b.ReportAllocs()
			before := cpu()
			for b.Loop() {
				p.read(body)
			}
			reportCPU(b, before, len(body), p.lines)
		})
	}
	f("8x4", 4, false)
	f("8x40", 40, false)
	f("8x40-watched", 40, true) // a dcgm-exporter's
}

func BenchmarkReadNewPage(b *testing.B) {
	store := series.New(series.Config{Span: time.Minute})
	g := newGPUs(store.Target("t", series.TargetLabels{}), gpu.FieldSet{})
	p := newPage(g)
	body := nodePage(1, 40)
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	before := cpu()
	for b.Loop() {
		p.forget()
		p.read(body)
	}
	reportCPU(b, before, len(body), p.lines)
}

// reportCPU reports what pages cost in CPU time, which other load on the machine
// changes less than the time that passes.
func reportCPU(b *testing.B, before time.Duration, bytes, lines int) {
	spent := float64((cpu() - before).Nanoseconds()) / float64(b.N)
	b.ReportMetric(float64(bytes)/spent, "GB/cpu-s")
	b.ReportMetric(spent/float64(lines), "cpu-ns/line")
}

// BenchmarkFleet scrapes 1,000 agents in this process for five seconds, each a
// second. One server answers for all, with a loopback address of its own for
// each, so that each has its connection. The CPU is that of both sides.
func BenchmarkFleet(b *testing.B) {
	const nodes = 1000
	var hits atomic.Uint64
	pages := make([][]byte, nodes)
	for i := range pages {
		pages[i] = nodePage(i, 4)
	}
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var n int
		fmt.Sscanf(r.URL.Path, "/%d", &n)
		hits.Add(1)
		// The page's stamp moves on with the time, in place of equal length.
		page := pages[n]
		w.Header().Set("Content-Type", "text/plain; version=0.0.4")
		i := strings.Index(string(page[:300]), "gauge\ngpupilot_collection_timestamp_seconds ")
		w.Write(page[:i+6])
		fmt.Fprintf(w, "gpupilot_collection_timestamp_seconds %d.000000\n", time.Now().Unix())
		w.Write(page[i+6+len("gpupilot_collection_timestamp_seconds 1800000000.000000\n"):])
	})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	server := &http.Server{Handler: handler}
	go server.Serve(l)
	defer server.Close()
	port := l.Addr().(*net.TCPAddr).Port
	client := NewClient()
	client.Transport.(*http.Transport).DialContext = func(ctx context.Context, network, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, network, fmt.Sprintf("127.0.0.1:%d", port))
	}
	for range b.N {
		store := series.New(series.Config{})
		s := New(Config{}, Deps{Client: client, Store: store, Log: slog.New(slog.DiscardHandler)})
		var targets []Target
		for i := range nodes {
			targets = append(targets, Target{Name: fmt.Sprint(i), URL: parse(fmt.Sprintf("http://10.1.%d.%d:9400/%d/metrics", i/250, i%250+1, i)), Kind: DCGM})
		}
		s.Sync(targets)
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		before := cpu()
		s.Run(ctx)
		cancel()
		st := s.Stats()
		b.ReportMetric((cpu()-before).Seconds()/float64(st.Scrapes)*1e6, "cpu-µs/scrape")
		b.ReportMetric(float64(st.Samples)/5, "samples/s")
		b.ReportMetric(float64(st.Scrapes)/5, "scrapes/s")
		b.ReportMetric(float64(st.Scrapes-uint64(store.Stats().Samples/32)), "lost")
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		b.ReportMetric(float64(m.HeapInuse+m.StackInuse)/nodes/1024, "KiB/target")
	}
}

func cpu() time.Duration {
	var u syscall.Rusage
	syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

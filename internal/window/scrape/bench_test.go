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

	"github.com/gpupilot/gpupilot/internal/window/series"
	"github.com/gpupilot/gpupilot/test/pagetest"
)

// BenchmarkFleet scrapes 1,000 agents in this process for five seconds, each a
// second. One server answers for all, with a loopback address of its own for
// each, so that each has its connection. The CPU is that of both sides.
func BenchmarkFleet(b *testing.B) {
	const nodes = 1000
	var hits atomic.Uint64
	pages := make([][]byte, nodes)
	for i := range pages {
		pages[i] = pagetest.Node(i, 4)
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

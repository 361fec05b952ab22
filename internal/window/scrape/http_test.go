// SPDX-License-Identifier: Apache-2.0

package scrape

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpupilot/gpupilot/internal/window/page"
	"github.com/gpupilot/gpupilot/internal/window/series"
)

// parse is a URL as a literal.
func parse(s string) url.URL {
	u, err := url.Parse(s)
	if err != nil {
		panic(err)
	}
	return *u
}

// once scrapes a real server once and returns the target's state. With a dialer
// it goes over a connection of ours, else through net/http.
func once(t *testing.T, cfg Config, dial Dialer, h http.HandlerFunc) (State, Stats, *httptest.Server) {
	t.Helper()
	srv := httptest.NewServer(h)
	t.Cleanup(srv.Close)
	cfg.Timeout = cmp.Or(cfg.Timeout, time.Minute) // on a busy machine 16 MiB take their time
	s := New(cfg, Deps{Client: NewClient(), Dial: dial, Store: series.New(series.Config{}), Log: slog.New(slog.DiscardHandler)})
	want := Target{Name: "node-7", URL: parse(srv.URL + "/metrics"), Kind: DCGM}
	r := &runner{s: s, phase: newPhase(&s.cfg, want.Name), state: State{Name: want.Name, URL: want.URL.String()}}
	r.want.Store(&want)
	r.scrape(context.Background())
	r.conn.shut()
	return r.state, s.Stats(), srv
}

// dialers are both ways to ask a target.
func dialers() map[string]Dialer {
	return map[string]Dialer{"net/http": nil, "connection": (&net.Dialer{}).DialContext}
}

func TestHostileServers(t *testing.T) {
	for name, dial := range dialers() {
		t.Run(name, func(t *testing.T) { testHostileServers(t, dial) })
	}
}

func testHostileServers(t *testing.T, dial Dialer) {
	f := func(reason string, cfg Config, want string, h http.HandlerFunc) {
		t.Helper()
		st, stats, srv := once(t, cfg, dial, h)
		want = fmt.Sprintf("scrape node-7 (%s/metrics): %s", srv.URL, want)
		if st.Err == nil || !strings.HasPrefix(st.Err.Error(), want) {
			t.Errorf("error %v\n want %s", st.Err, want)
		}
		if stats.Failures[reason] != 1 || stats.Samples != 0 {
			t.Errorf("stats %+v, want one failure %q", stats, reason)
		}
	}
	chunk := []byte(strings.Repeat("up{x=\""+strings.Repeat("y", 2000)+"\"} 1\n", 1<<5))
	var sent atomic.Int64
	f("too_large", Config{}, "response is longer than the limit of 16777216 bytes", func(w http.ResponseWriter, _ *http.Request) {
		for range 100 << 20 / len(chunk) {
			n, err := w.Write(chunk)
			if sent.Add(int64(n)); err != nil {
				return
			}
		}
	})
	f("too_large", Config{}, "exposition has more than 131072 lines", func(w http.ResponseWriter, _ *http.Request) {
		io.WriteString(w, strings.Repeat("#\n", 1<<18))
	})
	f("too_large", Config{MaxBody: 1000}, "response of 5000 bytes is longer than the limit of 1000", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "5000")
		w.Write(make([]byte, 5000))
	})
	f("status", Config{}, "answered 500 Internal Server Error", func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "up 1", 500)
	})
	f("status", Config{}, "answered 302 Found", func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "http://169.254.169.254/", http.StatusFound)
	})
	f("garbage", Config{}, `not a metrics page, 1 of 1 lines are bad: line 1: no metric name`, func(w http.ResponseWriter, _ *http.Request) {
		io.WriteString(w, "<!doctype html>")
	})
	f("unreachable", Config{}, "the response was cut short", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "5000")
		io.WriteString(w, "up 1\n")
	})
	f("timeout", Config{Timeout: 50 * time.Millisecond}, "no answer within 50ms", func(_ http.ResponseWriter, r *http.Request) {
		<-r.Context().Done()
	})
	f("timeout", Config{Timeout: 50 * time.Millisecond}, "no answer within 50ms", func(w http.ResponseWriter, r *http.Request) {
		io.WriteString(w, "up 1\n")
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	})
	if n := sent.Load(); n > 40<<20 {
		t.Errorf("the server got rid of %d MiB", n>>20)
	}
}

func TestOneConnectionPerTarget(t *testing.T) {
	for name, dial := range dialers() {
		t.Run(name, func(t *testing.T) { testOneConnection(t, dial) })
	}
}

func testOneConnection(t *testing.T, dial Dialer) {
	var conns, hits atomic.Int64
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if hits.Add(1)%5 == 0 {
			http.Error(w, "busy", http.StatusServiceUnavailable)
			return
		}
		io.WriteString(w, "DCGM_FI_DEV_GPU_UTIL{UUID=\"G0\"} 5\n")
	}))
	srv.Config.ConnState = func(_ net.Conn, s http.ConnState) {
		if s == http.StateNew {
			conns.Add(1)
		}
	}
	srv.Start()
	defer srv.Close()
	// A scrape that times out costs its connection.
	s := New(Config{Interval: 10 * time.Millisecond, MaxBackoff: 10 * time.Millisecond, Timeout: time.Minute},
		Deps{Client: NewClient(), Dial: dial, Store: series.New(series.Config{}), Log: slog.New(slog.DiscardHandler)})
	s.Sync([]Target{{Name: "a", URL: parse(srv.URL + "/"), Kind: DCGM}})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	go func() {
		defer cancel()
		for hits.Load() < 50 && ctx.Err() == nil {
			time.Sleep(time.Millisecond) // polls a real server
		}
	}()
	s.Run(ctx)
	if hits.Load() < 50 || conns.Load() != 1 {
		t.Errorf("%d scrapes over %d connections", hits.Load(), conns.Load())
	}
}

// A pod's page of n MiB is read each n-th time, whether it can be stored or not.
func TestLongPagesOfPodsAreReadLessOften(t *testing.T) {
	f := func(what string, kind Kind, mib int, line string, atLeast, below time.Duration) {
		t.Helper()
		body := strings.Repeat(line+"\n", mib<<20/(len(line)+1)+1)
		answer := doer(func(*http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: http.StatusOK, Status: "200 OK", ContentLength: -1, Body: io.NopCloser(strings.NewReader(body))}, nil
		})
		synctest.Test(t, func(t *testing.T) {
			s := New(Config{}, Deps{Client: answer, Store: series.New(series.Config{}), Log: slog.New(slog.DiscardHandler)})
			r := &runner{s: s, phase: newPhase(&s.cfg, "t")}
			r.want.Store(&Target{Name: "t", URL: parse("http://10.0.0.1:8000/metrics"), Kind: kind, Metrics: []page.Metric{{Key: "q", Name: "q"}}})
			next := r.scrape(t.Context())
			if wait := time.Until(next); wait < atLeast || wait > below {
				t.Errorf("%s: read again after %v, want %v to %v", what, wait, atLeast, below)
			}
		})
	}
	long := "# " + strings.Repeat("x", 1000)
	f("a short one", Pod, 0, "q 1", 0, 1001*time.Millisecond)
	f("8 MiB", Pod, 8, long, 7*time.Second, 9*time.Second)
	f("too long", Pod, 20, long, 15*time.Second, 18*time.Second)
	f("no metrics", Pod, 3, strings.Repeat("garbage ", 100), 2*time.Second, 4*time.Second)
	f("an exporter", DCGM, 8, long, 0, 2*time.Second)
}

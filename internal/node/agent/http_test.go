// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

func fetch(t *testing.T, h http.Handler, path string) (int, string) {
	t.Helper()
	rec := httptest.NewRecorder()
	h.ServeHTTP(rec, httptest.NewRequest(http.MethodGet, path, nil))
	return rec.Code, rec.Body.String()
}

func TestHealthIsTheTickLoops(t *testing.T) {
	r := newReader(gpus(1)...)
	r.fails["GPU-0"] = gpu.ErrLost
	bubble(t, Config{}, r, nil, func(n *node) {
		h := n.Handler()
		n.pass(time.Minute)
		for _, path := range []string{"/healthz", "/readyz", "/health"} {
			if code, body := fetch(t, h, path); code != http.StatusOK {
				t.Errorf("%s with a lost GPU: %d %s", path, code, body)
			}
		}
	})

	// Where GPUs are required, one at least can be read.
	r = newReader(gpus(2)...)
	bubble(t, Config{RequireGPUs: true}, r, nil, func(n *node) {
		h := n.Handler()
		for _, step := range []struct {
			lost []string
			code int
		}{
			{nil, http.StatusOK},
			{[]string{"GPU-0"}, http.StatusOK},
			{[]string{"GPU-0", "GPU-1"}, http.StatusServiceUnavailable},
			{[]string{"GPU-1"}, http.StatusOK},
		} {
			r.set(func() {
				clear(r.fails)
				for _, uuid := range step.lost {
					r.fails[uuid] = gpu.ErrLost
				}
			})
			n.pass(time.Minute)
			if code, body := fetch(t, h, "/health"); code != step.code || n.out.last().Up() != (code == http.StatusOK) {
				t.Errorf("lost %v: %d %s, want %d", step.lost, code, body, step.code)
			}
			if code, body := fetch(t, h, "/healthz"); code != http.StatusOK {
				t.Errorf("lost %v: a restart would not help: %d %s", step.lost, code, body)
			}
		}
	})

	a := New(Config{Interval: time.Second}, Deps{Metrics: http.NotFoundHandler()})
	start := time.Unix(1000, 0)
	f := func(now time.Duration, started time.Time, want string) {
		t.Helper()
		if got := message(a.alive(start.Add(now), started)); got != want {
			t.Errorf("after %v: %q, want %q", now, got, want)
		}
	}
	f(0, time.Time{}, "no collection yet")
	f(5*time.Second, start, "")
	f(6*time.Second, start, "the last collection was 6s ago, more than 5s")
	a.lastTick.Store(start.UnixNano())
	f(5*time.Second, time.Time{}, "")
	f(5001*time.Millisecond, time.Time{}, "the last collection was 5.001s ago, more than 5s")
	if code, body := fetch(t, a.Handler(), "/readyz"); code != http.StatusServiceUnavailable || !strings.Contains(body, "ago, more than 5s") {
		t.Errorf("a loop that is stuck: %d %s", code, body)
	}
}

// Browsers are to believe what answers say they are, as of dcgm-exporter's.
func TestNoAnswerIsSniffed(t *testing.T) {
	h := New(Config{Interval: time.Second, Pprof: true}, Deps{Metrics: http.NotFoundHandler()}).Handler()
	for _, path := range []string{"/", "/metrics", "/health", "/healthz", "/readyz", "/api/v1/gpus", "/debug/pprof/", "/nothing"} {
		rec := httptest.NewRecorder()
		h.ServeHTTP(rec, httptest.NewRequest(http.MethodGet, path, nil))
		if got := rec.Header().Get("X-Content-Type-Options"); got != "nosniff" {
			t.Errorf("%s: X-Content-Type-Options is %q", path, got)
		}
	}
}

func TestGPUsAsJSON(t *testing.T) {
	k := &kubelet{allocs: []gpu.Allocation{holds("GPU-0::1", "a"), holds("GPU-9", "z")}}
	r := newReader(gpus(2)...)
	bubble(t, Config{Node: "n1"}, r, k.Owners, func(n *node) {
		h := n.Handler()
		hang := make(chan struct{})
		r.set(func() { r.hangs["GPU-1"] = hang })
		n.pass(30 * time.Second)
		code, body := fetch(t, h, "/api/v1/gpus")
		var d Document
		if err := json.Unmarshal([]byte(body), &d); err != nil || code != http.StatusOK {
			t.Fatalf("%d %v:\n%s", code, err, body)
		}
		if d.Node != "n1" || d.Backend != "fake" || d.IntervalSeconds != 1 || d.Owners == nil || !d.Owners.Up || len(d.Devices) != 2 {
			t.Errorf("%s", body)
		}
		first, second := d.Devices[0], d.Devices[1]
		if diff := cmp.Diff([]OwnerDoc{{"n", "a", "c", "1", ""}}, first.Owners); diff != "" {
			t.Error(diff)
		}
		v := first.Values["DCGM_FI_DEV_GPU_UTIL"]
		if x, err := v.Value.Float64(); err != nil || v.Unit != gpu.Percent || x < 30 || !first.Up || *first.AgeSeconds > 1 {
			t.Errorf("%+v", first)
		}
		if second.Up || len(second.Values) != 0 || second.Error == "" || *second.AgeSeconds < 25 {
			t.Errorf("a hung device: %+v", second)
		}
		if len(d.Unmatched) != 1 || d.Unmatched[0].DeviceID != "GPU-9" || d.Unmatched[0].Pod != "z" {
			t.Errorf("unmatched: %+v", d.Unmatched)
		}
		if len(first.XIDs) != 1 || first.XIDs[0].Code != 79 {
			t.Errorf("XIDs: %+v", first.XIDs)
		}
	})
	a := New(Config{Interval: time.Second, Node: "<n>"}, Deps{Metrics: http.NotFoundHandler()})
	if code, _ := fetch(t, a.Handler(), "/api/v1/gpus"); code != http.StatusServiceUnavailable {
		t.Errorf("before the first collection: %d", code)
	}
	if code, body := fetch(t, a.Handler(), "/"); code != http.StatusOK || !strings.Contains(body, "&lt;n&gt;") {
		t.Errorf("index: %d %s", code, body)
	}
	if code, _ := fetch(t, a.Handler(), "/nope"); code != http.StatusNotFound {
		t.Errorf("/nope: %d", code)
	}
}

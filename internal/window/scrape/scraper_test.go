// SPDX-License-Identifier: Apache-2.0

package scrape

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/window/series"
)

// fakeAgent answers as an agent does that ticks every interval at phase, and
// publishes took later. It is a Doer.
type fakeAgent struct {
	mu       sync.Mutex
	interval time.Duration
	phase    time.Duration
	took     func(tick int) time.Duration
	clock    time.Duration // how far its clock is ahead
	err      error
	status   int
	stuck    time.Time // it has not collected since; zero: it has

	asked []time.Time
	urls  []string
}

func (a *fakeAgent) Do(req *http.Request) (*http.Response, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := time.Now()
	a.asked = append(a.asked, now)
	a.urls = append(a.urls, req.URL.String())
	if a.err != nil {
		return nil, a.err
	}
	if !a.stuck.IsZero() {
		now = a.stuck
	}
	n := int((now.Sub(t0) - a.phase) / a.interval)
	if now.Sub(a.tick(n)) < a.took(n) {
		n--
	}
	body := fmt.Sprintf(`gpupilot_collection_timestamp_seconds %.6f
gpupilot_collection_interval_seconds %v
gpupilot_collection_duration_seconds %v
DCGM_FI_DEV_GPU_UTIL{UUID="G0"} %d
gpupilot_gpu_allocation_info{uuid="G0",namespace="ns",pod="p",container="c",replica=""} 1
`, float64(a.tick(n).Add(a.clock).UnixMicro())/1e6, a.interval.Seconds(), a.took(n).Seconds(), (n%100+100)%100)
	status := a.status
	if status == 0 {
		status = 200
	}
	return &http.Response{
		StatusCode: status, Status: fmt.Sprint(status, " ", http.StatusText(status)),
		ContentLength: int64(len(body)), Body: io.NopCloser(strings.NewReader(body)),
	}, nil
}

func (a *fakeAgent) tick(n int) time.Time {
	return t0.Add(a.phase + time.Duration(n)*a.interval)
}

func (a *fakeAgent) requests() []time.Time {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.asked)
}

func (a *fakeAgent) paths() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.urls)
}

func always(d time.Duration) func(int) time.Duration {
	return func(int) time.Duration { return d }
}

// inBubble runs a scraper on one agent target for some time of a synctest
// bubble, which it lets begin at t0.
func inBubble(t *testing.T, a *fakeAgent, d time.Duration, check func(*Scraper, *series.Store)) {
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(time.Until(t0)) // the bubble's own time, at once
		store := series.New(series.Config{})
		s := New(Config{}, Deps{Client: a, Store: store, Log: slog.New(slog.DiscardHandler)})
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan struct{})
		go func() { s.Run(ctx); close(done) }()
		s.Sync([]Target{agentTarget})
		pass(d)
		check(s, store)
		cancel()
		<-done
	})
}

var agentTarget = Target{Name: "node-1", URL: parse("http://10.0.0.1:9400/metrics"), Kind: Agent, Fields: gpu.SetOf(gpu.GPUUtil)}

// podSamples returns the utilisation of a pod's devices since from, while it held them.
func podSamples(store *series.Store, pod string, from, now time.Time) []series.Sample {
	r := store.FieldReader(gpu.GPUUtil, now, 1000*time.Hour)
	var w series.Window
	r.WindowOn(&w, &series.Holder{Namespace: "ns", Pod: pod, Devices: -1}, from)
	return w.Combine(nil, gpu.Mean, nil)
}

// pass lets time of the bubble go by, until all that was due is done.
func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func TestScrapesFollowTheAgentsTicks(t *testing.T) {
	f := func(what string, a *fakeAgent, samples int, maxLag time.Duration, maxAsked int) {
		t.Helper()
		inBubble(t, a, 60*time.Second, func(s *Scraper, store *series.Store) {
			st := s.States()[0]
			got := podSamples(store, "p", t0.Add(5*time.Second), t0.Add(time.Minute))
			if len(got) < samples || len(got) > samples+1 {
				t.Errorf("%s: %d samples of 55 s, want %d", what, len(got), samples)
			}
			if st.Err != nil || st.Lag > maxLag || st.Interval != a.interval {
				t.Errorf("%s: lag %v, want at most %v; state %+v", what, st.Lag, maxLag, st)
			}
			if len(a.requests()) > maxAsked {
				t.Errorf("%s: asked %d times in 60 s, want at most %d", what, len(a.requests()), maxAsked)
			}
		})
	}
	const ms = time.Millisecond
	f("plain", &fakeAgent{interval: time.Second, phase: 337 * ms, took: always(5 * ms)}, 55, 26*ms, 61)
	f("a slow library", &fakeAgent{interval: time.Second, phase: 900 * ms, took: always(400 * ms)}, 54, 421*ms, 61)
	f("drifting", &fakeAgent{interval: 1000300 * time.Microsecond, phase: 10 * ms, took: always(5 * ms)}, 54, 26*ms, 61)
	f("a fast agent", &fakeAgent{interval: 100 * ms, phase: 50 * ms, took: always(5 * ms)}, 55, 26*ms, 61)
	f("a slow agent", &fakeAgent{interval: 10 * time.Second, phase: 3 * time.Second, took: always(5 * ms)}, 5, 10*time.Second, 8)
	jitter := func(n int) time.Duration { return time.Duration(5+n*37%100) * ms }
	f("a library of varying speed", &fakeAgent{interval: time.Second, phase: 100 * ms, took: jitter}, 55, 150*ms, 80)
}

func TestAgentsClockIsOff(t *testing.T) {
	for _, clock := range []time.Duration{time.Hour, -time.Hour, 20 * time.Second} {
		a := &fakeAgent{interval: time.Second, took: always(time.Millisecond), clock: clock}
		inBubble(t, a, 30*time.Second, func(s *Scraper, store *series.Store) {
			if v, ok := store.Pod("ns", "p", gpu.GPUUtil, time.Now(), 2500*time.Millisecond); !ok {
				t.Errorf("clock %v ahead: no fresh value, %v", clock, v)
			}
			if skew := s.States()[0].Skew; (skew - clock).Abs() > 1100*time.Millisecond {
				t.Errorf("clock %v ahead: skew %v", clock, skew)
			}
			if n := len(a.requests()); n > 40 {
				t.Errorf("clock %v ahead: asked %d times", clock, n)
			}
		})
	}
}

// The tick loop of an agent hangs while its HTTP server goes on: its samples
// age, whatever it shows.
func TestAgentIsStuck(t *testing.T) {
	a := &fakeAgent{interval: time.Second, took: always(time.Millisecond), stuck: t0.Add(4 * time.Second)}
	inBubble(t, a, 30*time.Second, func(s *Scraper, store *series.Store) {
		if v, ok := store.Pod("ns", "p", gpu.GPUUtil, time.Now(), 5*time.Second); ok {
			t.Errorf("a value of %v ago: %v", time.Since(v.At), v)
		}
		st := s.States()[0]
		if st.Err == nil || !strings.Contains(st.Err.Error(), "scrape node-1 (http://10.0.0.1:9400/metrics): collection time has not changed since 2027-") {
			t.Errorf("state %v", st.Err)
		}
		if n := len(a.requests()); n > 40 {
			t.Errorf("asked %d times in 30 s", n)
		}
	})
}

func TestFailuresBackOffAndHeal(t *testing.T) {
	a := &fakeAgent{interval: time.Second, took: always(time.Millisecond), err: errors.New("connection refused")}
	inBubble(t, a, time.Minute, func(s *Scraper, store *series.Store) {
		if n := len(a.requests()); n < 12 || n > 20 {
			t.Errorf("asked a dead agent %d times in a minute", n)
		}
		asked := a.requests()
		for i := 1; i < len(asked); i++ {
			if gap := asked[i].Sub(asked[i-1]); gap > 6*time.Second {
				t.Errorf("waited %v", gap)
			}
		}
		if st := s.Stats(); st.Failures["unreachable"] != uint64(len(a.requests())) {
			t.Errorf("stats %+v", st)
		}
		a.mu.Lock()
		a.err = nil
		a.mu.Unlock()
		pass(7 * time.Second)
		if st := s.States()[0]; st.Err != nil || st.Failures != 0 || st.Samples != 1 {
			t.Errorf("after it came back: %+v", st)
		}
	})
}

func TestOnlyFieldsInUseAreAskedFor(t *testing.T) {
	a := &fakeAgent{interval: time.Second, took: always(time.Millisecond)}
	inBubble(t, a, 10*time.Second, func(s *Scraper, store *series.Store) {
		if a.paths()[0] != agentTarget.URL.String() {
			t.Errorf("first %s", a.paths()[0])
		}
		want := agentTarget.URL.String() + "?name%5B%5D=DCGM_FI_DEV_GPU_UTIL&name%5B%5D=gpupilot_collection_duration_seconds"
		if got := a.paths()[5]; got != want {
			t.Errorf("then %s\nwant %s", got, want)
		}
		more := agentTarget
		more.Fields = gpu.SetOf(gpu.GPUUtil, gpu.PowerUsage)
		n := len(a.paths())
		s.Sync([]Target{more})
		pass(2 * time.Second)
		if got := a.paths()[n]; got != agentTarget.URL.String() {
			t.Errorf("after a field was added %s", got)
		}
	})
}

func TestSync(t *testing.T) {
	a := &fakeAgent{interval: time.Second, took: always(time.Millisecond)}
	inBubble(t, a, 10*time.Second, func(s *Scraper, store *series.Store) {
		count := func() int {
			return len(podSamples(store, "p", t0, time.Now()))
		}
		if count() < 9 {
			t.Errorf("%d samples after 10 s", count())
		}
		moved := agentTarget
		moved.URL = parse("http://10.0.0.2:9400/metrics")
		other := agentTarget
		other.Name, other.Labels.Node = "node-2", "n2"
		s.Sync([]Target{moved, other})
		pass(10 * time.Second)
		if count() < 18 {
			t.Errorf("%d samples: a new address lost the window", count())
		}
		if got := a.paths()[len(a.paths())-1]; !strings.HasPrefix(got, "http://10.0.0.") || s.Stats().Targets != 2 {
			t.Errorf("%s, %+v", got, s.Stats())
		}
		moved.UID = "another pod"
		s.Sync([]Target{moved})
		pass(3 * time.Second)
		if n := count(); n < 1 || n > 4 {
			t.Errorf("%d samples, with those of the former pod of the name", n)
		}
		s.Sync(nil)
		s.Sync([]Target{moved})
		pass(3 * time.Second)
		if got := store.Devices("", nil, time.Now(), 0); store.Stats().Targets != 1 || len(got) != 1 || got[0].Target != "node-1" {
			t.Errorf("devices %v", got)
		}
		s.Sync(nil)
		pass(time.Second)
		n := len(a.requests())
		pass(5 * time.Second)
		if st := store.Stats(); len(a.requests()) != n || st.Targets != 0 || st.Bytes != 0 || st.Series != 0 {
			t.Errorf("after all went: asked %d times more, %+v", len(a.requests())-n, st)
		}
	})
}

// Each new list of targets may change one of them. If that one kept a pointer into the
// list, a fleet of n nodes that churns kept n lists of n targets.
func TestARunnerKeepsNoList(t *testing.T) {
	a := &fakeAgent{interval: time.Second, took: always(time.Millisecond)}
	inBubble(t, a, time.Second, func(s *Scraper, _ *series.Store) {
		check := func(what string) {
			t.Helper()
			pass(time.Second)
			s.mu.Lock()
			defer s.mu.Unlock()
			for i := range s.wanted {
				if r := s.runners[s.wanted[i].Name]; r == nil || r.want.Load() == &s.wanted[i] {
					t.Errorf("%s: %s is not scraped, or keeps the list", what, s.wanted[i].Name)
				}
			}
		}
		other := agentTarget
		other.Name, other.Labels.Node = "node-2", "n2"
		s.Sync([]Target{agentTarget, other})
		check("a new one")
		other.Labels.Job = "changed"
		s.Sync([]Target{agentTarget, other})
		check("other labels")
		other.URL = parse("http://10.0.0.2:9400/metrics")
		s.Sync([]Target{agentTarget, other})
		check("another address")
	})
}

func TestDeliver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &fakeAgent{interval: time.Second, took: always(time.Millisecond)}
		store := series.New(series.Config{})
		n := 0
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		s := New(Config{}, Deps{Client: a, Store: store, Deliver: func(target string, at time.Time) {
			n++
			if v, ok := store.Pod("ns", "p", gpu.GPUUtil, at, 0); target != "node-1" || !ok || !v.At.Equal(at) {
				t.Errorf("delivered %s %v, but the store has %v, %v", target, at, v, ok)
			}
		}, Log: slog.New(slog.NewTextHandler(io.Discard, nil))})
		s.Sync([]Target{agentTarget})
		s.Run(ctx)
		if n < 8 || uint64(n) != s.Stats().Samples {
			t.Errorf("%d deliveries, %+v", n, s.Stats())
		}
	})
}

// A state change is one line in the log, not one for each scrape.
func TestLogsStateChangesOnly(t *testing.T) {
	var log bytes.Buffer
	a := &fakeAgent{interval: time.Second, took: always(time.Millisecond), status: 503}
	synctest.Test(t, func(t *testing.T) {
		s := New(Config{}, Deps{
			Client: a, Store: series.New(series.Config{}),
			Log: slog.New(slog.NewTextHandler(&log, nil)),
		})
		s.Sync([]Target{agentTarget})
		go func() {
			time.Sleep(30 * time.Second)
			a.mu.Lock()
			a.status = 200
			a.mu.Unlock()
		}()
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		s.Run(ctx)
	})
	lines := strings.Split(strings.TrimSpace(log.String()), "\n")
	if len(lines) != 2 || !strings.Contains(lines[0], `msg="scrape failed" target=node-1`) ||
		!strings.Contains(lines[0], `reason=status err="answered 503 Service Unavailable"`) || !strings.Contains(lines[1], "scrape recovered") {
		t.Errorf("log:\n%s", log.String())
	}
}

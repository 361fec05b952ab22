// SPDX-License-Identifier: Apache-2.0

package memory

import (
	"bytes"
	"encoding/json"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/scale"
	"github.com/gpupilot/gpupilot/internal/scale/latency"
	"github.com/gpupilot/gpupilot/internal/scale/trend"
)

var t0 = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func at(seconds int) time.Time { return t0.Add(time.Duration(seconds) * time.Second) }

// Of any window, what is kept of the wants has the extremes.
func TestCompactWants(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	for range 200 {
		var wants []scale.Want
		for i := range 1 + random.IntN(100) {
			n := random.Int32N(6)
			wants = append(wants, scale.Want{At: at(i), Low: n, High: n + random.Int32N(3)})
		}
		kept := compactWants(wants)
		if len(kept) > maxKeptEntries {
			t.Fatalf("%d are kept", len(kept))
		}
		for from := range wants {
			low, high := extremesFrom(wants, at(from))
			keptLow, keptHigh := extremesFrom(kept, at(from))
			if low != keptLow || high != keptHigh {
				t.Fatalf("since %d: %d to %d, want %d to %d", from, keptLow, keptHigh, low, high)
			}
		}
	}
	// Where there are too many, they hold for longer, not for less.
	var rising []scale.Want
	for i := range int32(200) {
		rising = append(rising, scale.Want{At: at(int(i)), Low: 200 - i, High: 200 - i})
	}
	kept := compactWants(rising)
	if len(kept) > maxKeptEntries {
		t.Errorf("%d are kept", len(kept))
	}
	for from := range rising {
		_, high := extremesFrom(rising, at(from))
		if _, got := extremesFrom(kept, at(from)); got < high {
			t.Errorf("since %d: %d, want at least %d", from, got, high)
		}
	}
}

func extremesFrom(wants []scale.Want, from time.Time) (low, high int32) {
	low = 1 << 30
	for _, w := range wants {
		if !w.At.Before(from) {
			low, high = min(low, w.Low), max(high, w.High)
		}
	}
	return low, high
}

func TestMemory(t *testing.T) {
	s := scale.State{Since: at(0), LastData: at(99), Replicas: 4, Serving: 4, Wants: []scale.Want{{At: at(90), Low: 3, High: 3}}}
	m := Of(&s, at(100))
	if diff := cmp.Diff(s, Decode(m, at(100))); diff != "" {
		t.Errorf("at once: %s", diff)
	}
	if got := Decode(m, at(130)); got.Since.IsZero() || !got.LastData.Equal(at(129)) {
		t.Errorf("while nobody watched signals went silent: %+v", got)
	}
	// Two writes of a status that nothing changes are 60 s apart at most.
	if got := Decode(m, at(160)); got.Since.IsZero() || got.Wants == nil {
		t.Errorf("a memory of 60 s is too old: %+v", got)
	}
	for name, now := range map[string]time.Time{"of 61 s": at(161), "too old": at(1000), "from the future": at(50)} {
		if got := Decode(m, now); !got.Since.IsZero() || got.Wants != nil || got.Replicas != 4 {
			t.Errorf("%s: %+v", name, got)
		}
	}
	if diff := cmp.Diff(scale.State{}, Decode(nil, at(0))); diff != "" {
		t.Error(diff)
	}
	m.State.Raw = []byte(`{"since": 7}`)
	if diff := cmp.Diff(scale.State{}, Decode(m, at(100))); diff != "" {
		t.Errorf("what cannot be read: %s", diff)
	}
	if Of(&scale.State{}, at(0)) != nil {
		t.Error("a memory of nothing")
	}
	full := scale.State{Since: at(0)}
	for i := range 256 {
		full.Wants = append(full.Wants, scale.Want{At: at(i).Add(123456789), Low: int32(1000 - i), High: int32(100_000 - i)})
		full.Changes = append(full.Changes, scale.Change{At: at(i).Add(123456789), Delta: -100_000})
	}
	for i := range 16 {
		full.Signals = append(full.Signals, scale.SignalState{
			Name:         strings.Repeat("sum(rate(x[1m]))", 5) + strconv.Itoa(i),
			Level:        trend.Level{Value: 1. / 3, Variance: 1. / 7, At: at(i)},
			TokenLatency: latency.Curve{N: 1. / 5, Weight: 1. / 3, X: 1. / 7, Y: 1. / 9, XX: 1. / 11, XY: 1. / 13, YY: 1. / 15},
			Arrivals:     scale.ArrivalModel{At: at(i).Add(123456789), Rate: 1. / 3, ReplicaSum: 1. / 7, ArrivedSum: 1. / 9, InFlightSum: 1. / 11},
		})
	}
	m = Of(&full, at(300))
	if m == nil || len(m.State.Raw) > maxEncoded {
		t.Fatalf("the largest state does not fit: %+v", m)
	}
	if s := Decode(m, at(300)); len(s.Wants) == 0 || s.Since.IsZero() {
		t.Errorf("what the window needs is gone: %+v", s)
	}
}

// What released versions stored is read: the window goes on, and what was learned is kept.
func TestMemoryOfReleases(t *testing.T) {
	files, err := filepath.Glob("testdata/compat/v*/memory.json")
	if err != nil || len(files) == 0 {
		t.Fatalf("%d recordings, %v", len(files), err)
	}
	for _, file := range files {
		raw, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		written := time.Date(2026, 11, 22, 15, 41, 58, 66e7, time.UTC)
		s := Decode(&v1alpha1.Memory{Time: metav1.NewMicroTime(written), State: runtime.RawExtension{Raw: raw}}, written.Add(time.Second))
		if !s.DecidedAt.Equal(written) || s.Since.IsZero() || len(s.Wants) != 3 || s.Replicas != 7 || s.Serving != 5 {
			t.Errorf("%s: the state is %+v", file, s)
		}
		if len(s.Signals) != 1 || s.Signals[0].Name != "Utilization" || s.Signals[0].Level.Value == 0 || s.Signals[0].SaturatedSince.IsZero() {
			t.Errorf("%s: the signals are %+v", file, s.Signals)
		}
	}
}

// The memory of an earlier version keeps what it learned.
func TestMemoryOfAnEarlierVersion(t *testing.T) {
	raw := recorded(t)
	written := time.Date(2026, 1, 1, 0, 14, 59, 123e6, time.UTC)
	s := Decode(&v1alpha1.Memory{Time: metav1.NewMicroTime(written), State: runtime.RawExtension{Raw: raw}}, written.Add(time.Second))
	if len(s.Signals) != 2 || len(s.Wants) != 1 || s.Since.IsZero() || s.Serving != 4 {
		t.Fatalf("recalled %+v", s)
	}
	requests, cache := s.Signals[0], s.Signals[1]
	if requests.Name != "vllm requests" || cache.Name != "vllm KV cache" || cache.Level.Value == 0 || len(cache.Trend.Past) != 8 {
		t.Errorf("the signals are %+v", s.Signals)
	}
	want := scale.ArrivalModel{
		Since: written.Add(-899 * time.Second), At: written, Rate: 8.621994961674298, Target: 14.49890136718766,
		ReplicaSum: 1915.8180219518665, ArrivedSum: 5000.866887848422, InFlightSum: 25004.334439242157, Seconds: 568.8563333315118,
	}
	if diff := cmp.Diff(want, requests.Arrivals); diff != "" {
		t.Error(diff)
	}
	if requests.TokenLatency.N != 3073.497566045165 || requests.FirstTokenLatency.N != 6475.743763990635 {
		t.Errorf("the curves are %+v and %+v", requests.TokenLatency, requests.FirstTokenLatency)
	}
	// The target that was learned still is.
	d, after := scale.Decide(vllmPolicy(), scale.Observation{}, s, written.Add(time.Second))
	if got := d.Inputs[0].Target; got < 14 || got > 15 {
		t.Errorf("the learned target is %g, want 14.5", got)
	}
	again := Of(&after, after.DecidedAt)
	if again == nil || len(again.State.Raw) > len(raw) || len(Decode(again, after.DecidedAt).Signals) != 2 {
		t.Errorf("today's form of it: %+v", again)
	}
}

// kubectl describe prints each field on a line. What a user or a bug wrote there takes no
// memory.
func TestMemoryIsOneField(t *testing.T) {
	m := Of(&scale.State{Since: at(0), Wants: []scale.Want{{At: at(1), Low: 2, High: 3}}, Replicas: 4}, at(2))
	var fields map[string]string
	if err := json.Unmarshal(m.State.Raw, &fields); err != nil || len(fields) != 1 {
		t.Errorf("%v: %s", err, m.State.Raw)
	}
	bomb, err := pack(bytes.Repeat([]byte(" "), 10<<20))
	if err != nil || len(bomb) > 1<<15 {
		t.Fatalf("%d bytes, %v", len(bomb), err)
	}
	huge, err := pack(append(bytes.Repeat([]byte(" "), maxDecoded), "{}"...))
	if err != nil || len(huge) > maxDecoded {
		t.Fatalf("%d bytes, %v", len(huge), err)
	}
	for _, raw := range [][]byte{bomb, huge, []byte(`{"gzip": "AAAA"}`), []byte(`{"gzip": 5}`), []byte(`{"gzip": ""}`), nil} {
		if s := Decode(&v1alpha1.Memory{State: runtime.RawExtension{Raw: raw}}, at(2)); !s.Since.IsZero() || s.Wants != nil {
			t.Errorf("%.40s: %+v", raw, s)
		}
	}
}

// recorded is a status.memory that an earlier version wrote for the preset vllm.
func recorded(t testing.TB) []byte {
	t.Helper()
	raw, err := os.ReadFile("testdata/memory-before-signals.json")
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

func vllmPolicy() scale.Policy {
	return scale.Policy{
		Min: 1, Max: 20, Startup: time.Minute, Up: scale.Rules{Tolerance: 0.1}, Down: scale.Rules{Window: scale.Auto, Tolerance: 0.1},
		Signals: []scale.Signal{
			{Name: "vllm requests", Target: 8, Law: scale.Batching, Limit: 0.02, FirstLimit: 2, Aggregate: gpu.Sum},
			{Name: "vllm KV cache", Unit: "%", Target: 80, Ceiling: 100},
		},
	}
}

// With any state in a status, the restored state has a bounded size, and decisions stay
// within the policy's bounds.
func FuzzRecall(f *testing.F) {
	f.Add([]byte(`{"since":"2025-12-31T00:00:00Z","replicas":5,"wants":[{"at":"2026-01-01T00:00:10Z","low":-5,"high":2147483647}]}`))
	f.Add([]byte(`{"trends":[{"signal":"Utilization","step":-1,"judged":-1,"naive":1e308,"holt":-1e308,"level":1e308,"past":[{},{},{},{},{},{},{},{},{},{}]}]}`))
	f.Add([]byte(`{"levels":[{"signal":"Utilization","value":1e308,"variance":-1}],"curves":[{"signal":"Utilization","n":1e308}],"flows":[{"signal":"Utilization","came":1e308,"replicas":-1}]}`))
	f.Add([]byte(`{"probed":-2147483648,"serving":2147483647,"lastData":"9999-12-31T23:59:59Z","decidedAt":"0001-01-01T00:00:00Z"}`))
	f.Add([]byte(`[]`))
	f.Add([]byte(`{"signals":[{"name":"Utilization","level":{"value":1e308,"variance":-1},"trend":{"step":-1,"judged":-1,"past":[{},{},{},{},{},{},{},{},{},{}]}}]}`))
	f.Add([]byte(`{"signals":[{"name":"vllm requests","arrivals":{"arrivedSum":1e308,"replicaSum":-1},"tokenLatency":{"n":1e308,"weight":1e308,"x":-1e308},"overloadedAt":"9999-12-31T23:59:59Z"}]}`))
	old := recorded(f)
	f.Add(old)
	for i := 0; i < len(old); i += 101 {
		f.Add(bytes.Replace(old, old[i:min(i+6, len(old))], []byte("-9e307"), 1))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		now := at(1000)
		s := Decode(&v1alpha1.Memory{Time: metav1.NewMicroTime(now), State: runtime.RawExtension{Raw: raw}}, now)
		p := vllmPolicy()
		p.Max, p.Signals = 9, append(p.Signals, scale.Signal{Name: "Utilization", Target: 60, Ceiling: 100})
		for i := range 20 {
			now = now.Add(time.Second)
			read := scale.Reading{Value: float64(5 * i), At: now, OK: true}
			pace := scale.Pace{Batch: read.Value, TokenSeconds: 0.02, FirstTokenSeconds: 1, FirstTokensPerSecond: 2, At: now, OK: true}
			o := scale.Observation{Replicas: 3, Pods: []scale.Replica{{
				Phase: scale.Serving, Readings: []scale.Reading{read, read, read}, Arrivals: []scale.Reading{read}, Paces: []scale.Pace{pace},
			}}}
			var d scale.Decision
			if d, s = scale.Decide(p, o, s, now); d.Replicas < p.Min || d.Replicas > p.Max {
				t.Fatalf("%d replicas: %s", d.Replicas, d.Sentence())
			}
			if m := Of(&s, now); m != nil && len(m.State.Raw) > maxEncoded {
				t.Fatalf("the memory has %d bytes", len(m.State.Raw))
			}
		}
	})
}

// BenchmarkOf is what the stored state adds to each pass that looks whether a status is due.
func BenchmarkOf(b *testing.B) {
	s := &scale.State{Since: at(0), LastData: at(99), Replicas: 4, Wants: []scale.Want{{At: at(90), Low: 3, High: 3}}}
	b.ReportAllocs()
	for b.Loop() {
		if Of(s, at(100)) == nil {
			b.Fatal("nothing is stored")
		}
	}
}

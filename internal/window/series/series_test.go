// SPDX-License-Identifier: Apache-2.0

package series

import (
	"math"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

var t0 = time.Unix(1_800_000_000, 0)

func sec(n float64) time.Time { return t0.Add(time.Duration(n * float64(time.Second))) }

// bench is a target with a few lines' worth of convenience.
type bench struct {
	t testing.TB
	*Target
}

func newTarget(t testing.TB, s *Store, name string) bench {
	return bench{t, s.Target(name, TargetLabels{Node: "n-" + name, Instance: name, Job: "gpupilot"})}
}

func (b bench) put(at time.Time, values map[Key]float64) error {
	b.t.Helper()
	var batch Batch
	for k, v := range values {
		r, ok := b.Ref(k)
		if !ok {
			b.t.Fatalf("Ref(%v) refused", k)
		}
		batch.Add(r, v)
	}
	unknown, err := b.Append(at, &batch)
	if unknown != 0 {
		b.t.Fatalf("Append: %d unknown refs", unknown)
	}
	return err
}

func (b bench) own(at time.Time, list ...DeviceOwners) { b.SetOwners(at, list) }

// podRange returns what a pod's devices have had since from, combined, while it held them.
func podRange(s *Store, node, pod string, f gpu.FieldID, from, now time.Time) []Sample {
	r := s.FieldReader(f, now, 1000*time.Hour)
	var w Window
	r.WindowOn(&w, &Holder{Namespace: "ns", Pod: pod, Node: node, Devices: -1}, from)
	return w.Combine(nil, r.field.PodAgg, nil)
}

func held(device string, pods ...string) DeviceOwners {
	o := DeviceOwners{Device: device}
	for _, p := range pods {
		o.Owners = append(o.Owners, gpu.Owner{Namespace: "ns", Pod: p, Container: "c"})
	}
	return o
}

func util(device string) Key  { return Key{Device: device, Field: gpu.GPUUtil} }
func power(device string) Key { return Key{Device: device, Field: gpu.PowerUsage} }

func TestPodCombinesItsDevices(t *testing.T) {
	s := New(Config{})
	a := newTarget(t, s, "a")
	a.own(sec(0), held("G0", "p"), held("G1", "p"), held("G2", "q"))
	a.put(sec(0), map[Key]float64{
		util("G0"): 20, util("G1"): 40, util("G2"): 99,
		power("G0"): 300.125, power("G1"): 200,
		{Device: "G0", Field: gpu.GPUTemp}: 50, {Device: "G1", Field: gpu.GPUTemp}: 61,
		{Device: "G0", Field: gpu.XIDErrors}: 13, {Device: "G2", Field: gpu.XIDErrors}: 79,
	})
	f := func(pod string, id gpu.FieldID, at float64, want float64, ok bool) {
		t.Helper()
		got, gotOK := s.Pod("ns", pod, id, sec(at), 5*time.Second)
		if gotOK != ok || ok && (got.Value != want || !got.At.Equal(t0)) {
			t.Errorf("Pod(%s, %v) = %v, %v; want %v, %v", pod, id, got, gotOK, want, ok)
		}
	}
	f("p", gpu.GPUUtil, 1, 30, true)
	f("p", gpu.PowerUsage, 1, 500.125, true)
	f("p", gpu.GPUTemp, 1, 61, true)
	f("q", gpu.GPUUtil, 1, 99, true)
	f("q", gpu.XIDErrors, 1, 79, true)
	f("p", gpu.XIDErrors, 1, 0, false) // no meaningful combination of two
	f("q", gpu.PowerUsage, 1, 0, false)
	f("nobody", gpu.GPUUtil, 1, 0, false)
	f("p", gpu.GPUUtil, 5, 30, true)
	f("p", gpu.GPUUtil, 5.001, 0, false) // too old

	// G1 is silent from 1 s on. The last value serves until it is too old; then
	// the mean goes on without it, and the sum is absent.
	for i := 1; i <= 6; i++ {
		a.put(sec(float64(i)), map[Key]float64{util("G0"): 20, power("G0"): 300})
	}
	if got, ok := s.Pod("ns", "p", gpu.GPUUtil, sec(6), 5*time.Second); !ok || got.Value != 20 {
		t.Errorf("mean without the silent device = %v, %v", got, ok)
	}
	if got, ok := s.Pod("ns", "p", gpu.PowerUsage, sec(6), 5*time.Second); ok {
		t.Errorf("sum without the silent device = %v, want none", got)
	}
	if got, ok := s.Pod("ns", "p", gpu.PowerUsage, sec(5), 5*time.Second); !ok || got.Value != 500 || !got.At.Equal(t0) {
		t.Errorf("sum with the last value = %v, %v, want 500 as of its oldest part", got, ok)
	}
}

func TestHistoryStaysWithThePodThatHadIt(t *testing.T) {
	s := New(Config{})
	a := newTarget(t, s, "a")
	f := func(pod string, want ...float64) {
		t.Helper()
		var got []float64
		for _, x := range podRange(s, "n-a", pod, gpu.GPUUtil, sec(-1), sec(100)) {
			got = append(got, x.Value)
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", pod, got, want)
		}
	}
	a.own(sec(0), held("G0", "old"))
	for i := range 10 {
		if i == 5 {
			f("old", 0, 1, 2, 3, 4)
			a.own(sec(5), held("G0", "new"))
			if _, ok := s.Pod("ns", "new", gpu.GPUUtil, sec(5), 5*time.Second); ok {
				t.Error("the new pod has a value from before it had the device")
			}
		}
		a.put(sec(float64(i)), map[Key]float64{util("G0"): float64(i)})
	}
	f("old")
	f("new", 5, 6, 7, 8, 9)
	if _, ok := s.Pod("ns", "old", gpu.GPUUtil, sec(9), time.Minute); ok {
		t.Error("the old pod still has a value")
	}
	s.Forget("ns", "new", sec(7))
	f("new", 7, 8, 9) // its node still shows it: only the past is gone
}

func TestSharersEachGetTheDevice(t *testing.T) {
	s := New(Config{})
	a := newTarget(t, s, "a")
	a.own(sec(0), held("G0", "p", "q"))
	a.put(sec(0), map[Key]float64{util("G0"): 70})
	a.own(sec(1), held("G0", "p", "q", "r"))
	a.put(sec(1), map[Key]float64{util("G0"): 80})
	for pod, want := range map[string]int{"p": 2, "q": 2, "r": 1} {
		if got, ok := s.Pod("ns", pod, gpu.GPUUtil, sec(1), time.Second); !ok || got.Value != 80 {
			t.Errorf("%s: %v, %v", pod, got, ok)
		}
		if got := podRange(s, "n-a", pod, gpu.GPUUtil, sec(0), sec(1)); len(got) != want {
			t.Errorf("%s has %d samples, want %d", pod, len(got), want)
		}
	}
}

func TestTwoExportersOfOneNodeCountOnce(t *testing.T) {
	s := New(Config{})
	a, d := newTarget(t, s, "agent"), newTarget(t, s, "dcgm")
	for _, x := range []bench{a, d} {
		x.own(sec(0), held("G0", "p"), held("G1", "p"))
	}
	a.put(sec(3), map[Key]float64{power("G0"): 100, power("G1"): 100})
	d.put(sec(2), map[Key]float64{power("G0"): 90, power("G1"): 90, {Device: "G0", Field: gpu.SMActive}: 0.5, {Device: "G1", Field: gpu.SMActive}: 0.25})
	f := func(id gpu.FieldID, want float64) {
		t.Helper()
		if got, ok := s.Pod("ns", "p", id, sec(3), 5*time.Second); !ok || got.Value != want {
			t.Errorf("%v = %v, %v; want %v", id, got, ok, want)
		}
	}
	f(gpu.PowerUsage, 200) // the newer of the two, not the sum of both
	f(gpu.SMActive, 0.375) // only one of them has it
	s.Drop("agent")
	f(gpu.PowerUsage, 180)
}

func TestCounterBecomesARate(t *testing.T) {
	s := New(Config{Rate: 10 * time.Second})
	a := newTarget(t, s, "a")
	k := Key{Device: "G0", Field: gpu.TotalEnergy}
	a.own(sec(0), held("G0", "p"))
	f := func(now float64, want float64, ok bool) {
		t.Helper()
		got, gotOK := s.Pod("ns", "p", gpu.TotalEnergy, sec(now), 3*time.Second)
		if gotOK != ok || math.Abs(got.Value-want) > 1e-6 {
			t.Errorf("at %v: %v, %v; want %v, %v", now, got.Value, gotOK, want, ok)
		}
	}
	base := float64(1 << 40) // a float32 would not see the increase
	a.put(sec(0), map[Key]float64{k: base})
	f(0, 0, false) // one sample is no rate
	a.put(sec(1), map[Key]float64{k: base + 500})
	f(1, 500, true)
	a.put(sec(2), map[Key]float64{k: 100}) // the driver was loaded anew
	f(2, 300, true)
	f(6, 0, false) // stale
	want := []Sample{{sec(1), 500}, {sec(2), 100}}
	if diff := cmp.Diff(want, podRange(s, "n-a", "p", gpu.TotalEnergy, sec(0), sec(9))); diff != "" {
		t.Error(diff)
	}
	a.own(sec(3), held("G0", "q"))
	a.put(sec(3), map[Key]float64{k: 1000})
	if got, ok := s.Pod("ns", "q", gpu.TotalEnergy, sec(3), 3*time.Second); ok {
		t.Errorf("the next pod has a rate of its predecessor's samples: %v", got)
	}
}

func TestPodMetrics(t *testing.T) {
	s := New(Config{})
	p := bench{t, s.Target("ns/p:8000", TargetLabels{Namespace: "ns", Pod: "p"})}
	k := Key{Metric: "vllm:num_requests_waiting"}
	p.put(sec(0), map[Key]float64{k: 3, {Metric: "tokens_total"}: 1e12})
	p.put(sec(1), map[Key]float64{k: 5, {Metric: "tokens_total"}: 1e12 + 1})
	if got, ok := s.PodMetric("ns", "p", k.Metric, sec(2), 5*time.Second); !ok || got != (Sample{sec(1), 5}) {
		t.Errorf("PodMetric = %v, %v", got, ok)
	}
	if got, ok := s.PodMetric("ns", "p", k.Metric, sec(7), 5*time.Second); ok {
		t.Errorf("stale PodMetric = %v", got)
	}
	if got, ok := s.PodMetricStep("ns", "p", k.Metric, sec(2), 5*time.Second); !ok || got != (Step{Sample{sec(0), 3}, Sample{sec(1), 5}}) {
		t.Errorf("PodMetricStep = %v, %v", got, ok)
	}
	if got, ok := s.PodMetricStep("ns", "p", k.Metric, sec(7), 5*time.Second); ok {
		t.Errorf("stale PodMetricStep = %v", got)
	}
	p.put(sec(2), map[Key]float64{{Metric: "tokens_total"}: 1e12 + 5})
	if got, ok := s.PodMetricStep("ns", "p", k.Metric, sec(2), 5*time.Second); !ok || got.To.At != sec(1) {
		t.Errorf("PodMetricStep over a page without the metric = %v, %v", got, ok)
	}
	if got, ok := s.PodMetricStep("ns", "p", "tokens_total", sec(2), 5*time.Second); !ok || got.To.Value-got.From.Value != 4 {
		t.Errorf("PodMetricStep of a counter = %v, %v", got, ok)
	}
	want := []Sample{{sec(0), 1e12}, {sec(1), 1e12 + 1}}
	if got := s.PodMetricRange("ns", "p", "tokens_total", sec(0), sec(1)); !slices.Equal(got, want) {
		t.Errorf("PodMetricRange = %v, want %v", got, want)
	}
	s.Drop("ns/p:8000")
	if _, ok := s.PodMetric("ns", "p", k.Metric, sec(1), time.Hour); ok || s.Pods() != 0 {
		t.Error("the dropped target's pod is still known")
	}
}

func TestStampsThatDoNotAdvance(t *testing.T) {
	s := New(Config{})
	a := newTarget(t, s, "a")
	a.own(sec(100), held("G0", "p"))
	a.put(sec(100), map[Key]float64{util("G0"): 1})
	for _, at := range []float64{100, 99, 95.5} {
		if err := a.put(sec(at), map[Key]float64{util("G0"): 2}); err != ErrRepeated {
			t.Errorf("stamp %v after 100: %v, want ErrRepeated", at, err)
		}
	}
	if err := a.put(sec(40), map[Key]float64{util("G0"): 7}); err != nil {
		t.Errorf("clock set back a minute: %v", err)
	}
	if got, ok := s.Pod("ns", "p", gpu.GPUUtil, sec(40), time.Second); !ok || got.Value != 7 {
		t.Errorf("after the clock was set back: %v, %v", got, ok)
	}
	if st := s.Stats(); st.Repeated != 3 || st.Rewound != 1 {
		t.Errorf("stats %+v", st)
	}
	s.Drop("a")
	if _, err := a.Append(sec(200), &Batch{}); err != ErrDropped {
		t.Errorf("Append after Drop: %v", err)
	}
	a.own(sec(200), held("G0", "p"))
	if st := s.Stats(); st.Bytes != 0 || st.Series != 0 || s.Pods() != 0 {
		t.Errorf("after Drop: %+v, %d pods", st, s.Pods())
	}
}

func TestBounds(t *testing.T) {
	s := New(Config{Span: 20 * time.Second})
	a := newTarget(t, s, "a")
	for i := range 100 {
		a.put(sec(float64(i)), map[Key]float64{util("G0"): float64(i)})
	}
	a.own(sec(0), held("G0", "p"))
	got := podRange(s, "n-a", "p", gpu.GPUUtil, sec(0), sec(100))
	if len(got) != 21 || got[0].Value != 79 || got[20].Value != 99 {
		t.Errorf("window of 20 s holds %d samples: %v", len(got), got)
	}
	old, _ := a.Ref(util("G1"))
	a.Append(sec(100), &Batch{Points: []Point{{old, 1}}})
	for i := 101; i < 130; i++ {
		a.put(sec(float64(i)), map[Key]float64{util("G0"): 1})
	}
	if unknown, err := a.Append(sec(130), &Batch{Points: []Point{{old, 1}}}); unknown != 1 || err != nil {
		t.Errorf("the dead series' Ref: %d unknown, %v; want 1, nil", unknown, err)
	}
	if st := s.Stats(); st.Series != 1 || st.Unknown != 1 || st.Limited != 0 {
		t.Errorf("stats %+v", st)
	}
}

func TestDevices(t *testing.T) {
	s := New(Config{})
	a := newTarget(t, s, "a")
	a.put(sec(0), map[Key]float64{util("G1"): 5, util("G0"): 9, power("G0"): 70})
	a.own(sec(1), held("G1", "p"))
	got := s.Devices("", []gpu.FieldID{gpu.GPUUtil, gpu.SMActive}, sec(2), time.Minute)
	l := TargetLabels{Node: "n-a", Instance: "a", Job: "gpupilot"}
	want := []DeviceView{
		{Target: "a", Labels: l, Device: "G0", Index: -1, Values: []FieldSample{{gpu.GPUUtil, Sample{sec(0), 9}}}},
		{
			Target: "a", Labels: l, Device: "G1", Index: -1, Values: []FieldSample{{gpu.GPUUtil, Sample{sec(0), 5}}},
			Owners: held("", "p").Owners, Since: sec(1),
		},
	}
	for i := range want {
		want[i].Idle.Add(sec(0).UnixNano(), 0, want[i].Values[0].Value)
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(gpu.IdleRun{})); diff != "" {
		t.Error(diff)
	}
}

// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/scale"
	"github.com/gpupilot/gpupilot/internal/scale/policy"
	"github.com/gpupilot/gpupilot/internal/scale/replica"
	"github.com/gpupilot/gpupilot/internal/window/series"
	"github.com/gpupilot/gpupilot/test/podtest"
)

var t0 = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func at(seconds int) time.Time { return t0.Add(time.Duration(seconds) * time.Second) }

// fixed are values by pod.
type fixed map[string]series.Sample

func (f fixed) Field(pod *corev1.Pod, field gpu.FieldID, _ time.Time, _ time.Duration) (series.Reading, bool) {
	s, ok := f[pod.Name+"/"+field.String()]
	return series.Reading{Sample: s}, ok
}

func (f fixed) PodMetric(_, pod, metric string, _ time.Time, _ time.Duration) (series.Sample, bool) {
	s, ok := f[pod+"/"+metric]
	return s, ok
}

func (f fixed) PodMetricRate(_, pod, metric string, _ time.Time, _ time.Duration) (series.Sample, bool) {
	s, ok := f["rate "+pod+"/"+metric]
	return s, ok
}

func (f fixed) PodMetricStep(_, pod, metric string, _ time.Time, _ time.Duration) (series.Step, bool) {
	from, ok := f["before "+pod+"/"+metric]
	to, too := f[pod+"/"+metric]
	return series.Step{From: from, To: to}, ok && too
}

// readerOf reads values as of at(10). A pod holds as many GPUs as its name's last digit says.
func readerOf(shown fixed) Reader {
	return Reader{shown, at(10), time.Minute, func(pod *corev1.Pod) int { return int(pod.Name[len(pod.Name)-1] - '0') }}
}

// A reading of several terms is there when all of them are, each under the
// first of its names that the pod shows.
func TestTermsOfAReading(t *testing.T) {
	src := policy.Source{Kind: policy.Pods, Terms: []policy.Term{
		{{Name: "running", By: "rank"}, {Name: "busy_us", Rate: true, Factor: 1e-6}},
		{{Name: "waiting"}},
	}}
	f := func(name string, shown fixed, want scale.Reading) {
		t.Helper()
		if diff := cmp.Diff(want, readerOf(shown).readSignal(podtest.Pod("a", "x", at(0)), nil, &src)); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
	f("both", fixed{"x/sum(max by (rank) (running))": {At: at(9), Value: 3}, "x/waiting": {At: at(8), Value: 2}}, scale.Reading{Value: 5, At: at(8), OK: true})
	f("by its other name", fixed{"rate x/busy_us": {At: at(9), Value: 2.5e6}, "x/waiting": {At: at(9)}}, scale.Reading{Value: 2.5, At: at(9), OK: true})
	f("one is missing", fixed{"x/waiting": {At: at(9), Value: 2}}, scale.Reading{})
	f("none", fixed{}, scale.Reading{})
}

// A server that sleeps is no capacity, and none on its way. One that does not say so serves.
func TestSleepingServers(t *testing.T) {
	sources := []policy.Source{{Kind: policy.GPU}, {Kind: policy.Pods, Awake: policy.Term{{Name: "sleep", Label: "state", Value: "awake"}}}}
	ready, starts := podtest.Pod("a", "x", at(0)), podtest.Pod("a", "x", at(0))
	ready.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Time{Time: at(1)}}}
	f := func(pod *corev1.Pod, shown fixed, want scale.Phase, since time.Time) {
		t.Helper()
		got := readerOf(shown).Observe(1, &replica.Units{Pods: []*corev1.Pod{pod}}, sources).Pods[0]
		if got.Phase != want || !got.Since.Equal(since) {
			t.Errorf("%v: phase %v since %v, want %v since %v", shown, got.Phase, got.Since, want, since)
		}
	}
	const key = `x/sleep{state="awake"}`
	phase, since := replica.PhaseOf(ready)
	if phase != scale.Serving {
		t.Fatal(phase)
	}
	f(ready, fixed{}, scale.Serving, since)
	f(ready, fixed{key: {At: at(9), Value: 1}}, scale.Serving, since)
	f(ready, fixed{key: {At: at(9), Value: 2}}, scale.Serving, since) // two engines
	f(ready, fixed{key: {At: at(9), Value: 0}}, scale.Starting, time.Time{})
	phase, since = replica.PhaseOf(starts)
	f(starts, fixed{key: {At: at(9), Value: 0}}, phase, since)
}

// The pace of a batch follows from the two counters of one histogram: 12 seconds of
// waiting per second are 12 sequences, and at 600 tokens/s a token takes 20 ms.
func TestPaceOfABatch(t *testing.T) {
	src := policy.Pace{
		TokenSeconds: policy.Term{{Name: "itl_sum", Rate: true}, {Name: "tpot_sum", Rate: true}},
		Tokens:       policy.Term{{Name: "itl_count", Rate: true}, {Name: "tpot_count", Rate: true}},
	}
	f := func(name string, shown fixed, want scale.Pace) {
		t.Helper()
		if diff := cmp.Diff(want, readerOf(shown).readPace(podtest.Pod("a", "x", at(0)), &policy.Source{Pace: &src})); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
	want := scale.Pace{Batch: 12, TokenSeconds: 0.02, At: at(9), OK: true}
	f("both", fixed{"rate x/itl_sum": {At: at(9), Value: 12}, "rate x/itl_count": {At: at(9), Value: 600}}, want)
	src.FirstTokenSeconds, src.FirstTokens = policy.Term{{Name: "ttft_sum", Rate: true}}, policy.Term{{Name: "ttft_count", Rate: true}}
	first := want
	first.FirstTokenSeconds, first.FirstTokensPerSecond = 0.3, 4
	f("and the first tokens", fixed{
		"rate x/itl_sum": {At: at(9), Value: 12}, "rate x/itl_count": {At: at(9), Value: 600},
		"rate x/ttft_sum": {At: at(9), Value: 1.2}, "rate x/ttft_count": {At: at(9), Value: 4},
	}, first)
	f("no request got its first", fixed{
		"rate x/itl_sum": {At: at(9), Value: 12}, "rate x/itl_count": {At: at(9), Value: 600},
		"rate x/ttft_sum": {At: at(9)}, "rate x/ttft_count": {At: at(9)},
	}, want)
	f("by their older names", fixed{"rate x/tpot_sum": {At: at(9), Value: 12}, "rate x/tpot_count": {At: at(9), Value: 600}}, want)
	f("idle", fixed{"rate x/itl_sum": {At: at(9)}, "rate x/itl_count": {At: at(9)}}, scale.Pace{})
	f("one is missing", fixed{"rate x/itl_sum": {At: at(9), Value: 12}}, scale.Pace{})

	sources := []policy.Source{{Kind: policy.Pods}, {Kind: policy.Pods, Pace: &src}}
	o := readerOf(fixed{
		"rate x/itl_sum": {At: at(9), Value: 12}, "rate x/itl_count": {At: at(9), Value: 600},
	}).Observe(1, &replica.Units{Pods: []*corev1.Pod{podtest.Pod("a", "x", at(0), podtest.Ready(at(1)))}}, sources)
	if diff := cmp.Diff([]scale.Pace{{}, want}, o.Pods[0].Paces); diff != "" {
		t.Error("observed:", diff)
	}
}

// Of the requests that came between two readings some were answered, and the
// others are there now and were not before.
func TestArrivals(t *testing.T) {
	src := policy.Source{Kind: policy.Pods, Completed: policy.Term{{Name: "done"}}, Terms: []policy.Term{{{Name: "running"}}, {{Name: "waiting"}}}}
	page := func(second int, done, running, waiting float64) [3]series.Sample {
		return [3]series.Sample{{At: at(second), Value: done}, {At: at(second), Value: running}, {At: at(second), Value: waiting}}
	}
	f := func(name string, before, now [3]series.Sample, want scale.Reading) {
		t.Helper()
		shown := fixed{}
		for i, metric := range []string{"done", "running", "waiting"} {
			if !before[i].At.IsZero() {
				shown["before x/"+metric], shown["x/"+metric] = before[i], now[i]
			}
		}
		o := readerOf(shown).Observe(1, &replica.Units{Pods: []*corev1.Pod{podtest.Pod("a", "x", at(0), podtest.Ready(at(1)))}}, []policy.Source{src})
		if diff := cmp.Diff([]scale.Reading{want}, o.Pods[0].Arrivals); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
	told := func(rate float64) scale.Reading { return scale.Reading{Value: rate, At: at(9), OK: true} }
	f("answered and piled up", page(7, 100, 8, 0), page(9, 110, 9, 5), told(8))
	f("worked off", page(7, 100, 8, 9), page(9, 116, 8, 1), told(4))
	f("given up", page(7, 100, 8, 9), page(9, 102, 8, 0), told(0))
	f("a server that began anew", page(7, 100, 8, 0), page(9, 3, 1, 0), scale.Reading{})
	f("a page without one of them", [3]series.Sample{{At: at(7)}, {At: at(7)}}, page(9, 1, 1, 1), scale.Reading{})
	late := page(9, 110, 9, 5)
	late[1].At = at(8)
	f("of different pages", page(7, 100, 8, 0), late, scale.Reading{})

	src.Arrived, src.Completed = src.Completed, nil // a server that counts those that come
	f("counted as they come", page(7, 100, 8, 0), page(9, 110, 9, 5), told(5))
}

func TestObserve(t *testing.T) {
	done := podtest.Pod("a", "done", at(0))
	done.Status.Phase = corev1.PodSucceeded
	evicted := podtest.Pod("a", "evicted", at(0), podtest.Ready(at(1)))
	evicted.Status.Phase = corev1.PodFailed
	pods := []*corev1.Pod{podtest.Pod("a", "x", at(0), podtest.Ready(at(5))), podtest.Pod("a", "y", at(3)), done, evicted}
	sources := []policy.Source{{Kind: policy.GPU, Field: gpu.GPUUtil}, {Kind: policy.Pods, Terms: []policy.Term{{{Name: "queue"}}}}}
	got := readerOf(fixed{
		"x/DCGM_FI_DEV_GPU_UTIL": {At: at(9), Value: 50}, "x/queue": {At: at(10), Value: 3}, "y/queue": {At: at(8), Value: 0},
	}).Observe(4, &replica.Units{Pods: pods}, sources)
	want := scale.Observation{Replicas: 4, Pods: []scale.Replica{
		{Name: "x", Phase: scale.Serving, Since: at(5), Readings: []scale.Reading{{Value: 50, At: at(9), OK: true}, {Value: 3, At: at(10), OK: true}}},
		{Name: "y", Phase: scale.Starting, Since: at(3), Readings: []scale.Reading{{}, {At: at(8), OK: true}}},
	}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if n := NewestReading(&got); !n.Equal(at(10)) {
		t.Errorf("the newest reading is of %v, want %v", n, at(10))
	}
}

// The GPUs of a group count as those of a pod: one without a value is missing, unless it
// holds none.
func TestReadingsOfAGroup(t *testing.T) {
	f := func(what string, field gpu.FieldID, want float64, shown fixed, names ...string) {
		t.Helper()
		var members []*corev1.Pod
		for _, name := range names {
			members = append(members, podtest.Pod("a", name, at(0)))
		}
		got := readerOf(shown).readSignal(members[0], members, &policy.Source{Kind: policy.GPU, Field: field})
		if got.OK != (want >= 0) || got.OK && got.Value != want {
			t.Errorf("%s: %+v, want %v", what, got, want)
		}
		if got.OK && !got.At.Equal(at(7)) {
			t.Errorf("%s: of %v, want the oldest", what, got.At)
		}
	}
	util := fixed{"x2/DCGM_FI_DEV_GPU_UTIL": {At: at(9), Value: 50}, "y6/DCGM_FI_DEV_GPU_UTIL": {At: at(7), Value: 90}}
	f("a mean by the number of GPUs", gpu.GPUUtil, 80, util, "x2", "y6")
	f("a member without GPUs", gpu.GPUUtil, 80, util, "z0", "x2", "y6")
	f("a member without a value", gpu.GPUUtil, -1, util, "x2", "y6", "z1")
	f("no GPUs", gpu.GPUUtil, -1, util, "x0", "y0")
	f("a maximum", gpu.GPUTemp, 80, fixed{"x2/DCGM_FI_DEV_GPU_TEMP": {At: at(7), Value: 80}, "y6/DCGM_FI_DEV_GPU_TEMP": {At: at(9), Value: 60}}, "x2", "y6")
	f("a sum", gpu.PowerUsage, 900, fixed{"x2/DCGM_FI_DEV_POWER_USAGE": {At: at(7), Value: 400}, "y6/DCGM_FI_DEV_POWER_USAGE": {At: at(9), Value: 500}}, "x2", "y6")
}

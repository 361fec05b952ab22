// SPDX-License-Identifier: Apache-2.0

package peers

import "testing"

// group is a number of equal pods.
type group struct {
	n       int
	percent float64
	phase   string // "ready", "loading" (not ready, has a sample), "unsampled" (ready, no sample) or "pending"
}

func pods(groups ...group) (out []Pod) {
	for _, g := range groups {
		for range g.n {
			sampled := g.phase == "ready" || g.phase == "loading"
			out = append(out, Pod{
				Pending: g.phase == "pending", Ready: g.phase == "ready" || g.phase == "unsampled",
				HasSample: sampled, Milli: int64(g.percent * 1000),
			})
		}
	}
	return out
}

// mean returns the mean over the pods with a sample.
func mean(all []Pod) (milli int64, ok bool) {
	n := int64(0)
	for _, p := range all {
		if p.HasSample {
			milli += p.Milli
			n++
		}
	}
	return milli / max(1, n), n > 0
}

// situation is a set of pods and a target, with the replicas that the calculator of
// Kubernetes returns for each kind of metric.
type situation struct {
	name            string
	pods            []Pod
	milliTarget     int64
	object, average int
}

// situations show how an HPA counts starting pods.
var situations = []situation{
	{"1 ready at 100", pods(group{1, 100, "ready"}), 60000, 2, 2},
	{"1 ready at 100, 1 pending", pods(group{1, 100, "ready"}, group{1, 0, "pending"}), 60000, 2, 2},
	{"1 ready at 100, 1 loading at 0", pods(group{1, 100, "ready"}, group{1, 0, "loading"}), 60000, 1, 2},
	{"4 ready at 100, 4 loading at 0", pods(group{4, 100, "ready"}, group{4, 0, "loading"}), 60000, 4, 7},
	{"4 ready at 100, 4 loading at 100", pods(group{4, 100, "ready"}, group{4, 100, "loading"}), 60000, 7, 14},
	{"none ready, 3 loading at 100", pods(group{3, 100, "loading"}), 60000, 0, 5},
	{"4 ready at 100, target 92", pods(group{4, 100, "ready"}), 92000, 4, 4},
}

func (x *situation) reading() Reading {
	value, ok := mean(x.pods)
	return Reading{Spec: len(x.pods), Status: len(x.pods), Pods: x.pods, Milli: value, HasValue: ok}
}

func TestHPACountsStartingPods(t *testing.T) {
	for _, x := range situations {
		r := x.reading()
		for kind, want := range map[Kind]int{ObjectValue: x.object, PodsAverage: x.average} {
			h := &HPA{Kind: kind, MilliTarget: x.milliTarget, Up: DefaultUp(), Down: DefaultDown()}
			if got, ok := h.proposeReplicas(&r); !ok || got != want {
				t.Errorf("%s, kind %d: %d %v, want %d", x.name, kind, got, ok, want)
			}
		}
	}
}

// The tolerance of an External AverageValue is relative to status.replicas.
func TestHPAExternalTolerance(t *testing.T) {
	f := func(sum int64, status int, tolerance float64, want int) {
		t.Helper()
		h := &HPA{Kind: ExternalAverage, MilliTarget: 1000, Up: Rules{Tolerance: tolerance}, Down: Rules{Tolerance: tolerance}}
		if got, _ := h.proposeReplicas(&Reading{Status: status, Milli: sum * 1000, HasValue: true}); got != want {
			t.Errorf("%d wanted of %d with tolerance %g: %d, want %d", sum, status, tolerance, got, want)
		}
	}
	f(11, 10, 0.1, 10)
	f(22, 20, 0.1, 20)
	f(28, 30, 0.1, 30)
	f(11, 10, 0, 11)
	f(28, 30, 0, 28)
	f(12, 10, 0.1, 12)
}

// Ready pods without a sample count as 0 when scaling up, and as the target when scaling down.
func TestHPAPodsWithoutSamples(t *testing.T) {
	f := func(value float64, sampled, unsampled, want int) {
		t.Helper()
		h := &HPA{MilliTarget: 10000, Up: DefaultUp(), Down: DefaultDown()}
		all := pods(group{sampled, value, "ready"}, group{unsampled, 0, "unsampled"})
		if got, _ := h.proposeReplicas(&Reading{Spec: len(all), Pods: all}); got != want {
			t.Errorf("%d at %g, %d without a sample: %d, want %d", sampled, value, unsampled, got, want)
		}
	}
	f(20, 2, 0, 4)
	f(20, 2, 2, 4)  // 40 over 4 pods: on target
	f(40, 2, 2, 8)  // 80 over 4 pods
	f(15, 2, 2, 4)  // 30 over 4 pods is below the target: the direction changed, so nothing changes
	f(1, 2, 2, 3)   // 2 + 2 × 10 over 4 pods
	f(9.5, 2, 2, 4) // within the tolerance
}

// An average is rounded down to thousandths. The remainder does not add a replica.
func TestHPARoundsAverages(t *testing.T) {
	h := &HPA{MilliTarget: 10000, Up: DefaultUp(), Down: DefaultDown()}
	all := []Pod{{HasSample: true, Milli: 13000}, {HasSample: true, Milli: 13000}, {HasSample: true, Milli: 14001}}
	if got, _ := h.proposeReplicas(&Reading{Spec: 3, Pods: all}); got != 4 {
		t.Errorf("40.001 over 3 pods for a target of 10: %d, want 4", got)
	}
}

// externalMetric returns a reading with an external metric that needs n replicas.
func externalMetric(n, spec int) *Reading {
	return &Reading{Spec: spec, Status: spec, Milli: int64(n) * 1000, HasValue: true}
}

func TestHPABehavior(t *testing.T) {
	h := &HPA{Kind: ExternalAverage, MilliTarget: 1000, Min: 1, Max: 100, Up: DefaultUp(), Down: DefaultDown()}
	h.Down.Window = 60
	step := func(now, current, desired, want int) {
		t.Helper()
		if got := h.Sync(now, externalMetric(desired, current)); got != want {
			t.Errorf("at %d s from %d to %d: %d, want %d", now, current, desired, got, want)
		}
	}
	// Up by the larger of 4 pods and 100 % in 15 s; down to the highest recommendation of the window.
	step(0, 1, 50, 5)
	step(14, 5, 50, 5) // the period started with 1 replica
	step(15, 5, 50, 10)
	step(30, 10, 200, 20)
	step(45, 20, 2, 20) // 50 was recommended within 60 s
	step(89, 20, 2, 20) // 200 was recommended at 30 s
	step(90, 20, 2, 2)
}

// The replicas at the first sync prevent a scale-down for a window.
func TestHPAFirstSync(t *testing.T) {
	h := &HPA{Kind: ExternalAverage, MilliTarget: 1000, Min: 1, Max: 100, Up: DefaultUp(), Down: DefaultDown()}
	for _, now := range []int{0, 299} {
		if got := h.Sync(now, externalMetric(2, 8)); got != 8 {
			t.Errorf("at %d s: %d, want 8", now, got)
		}
	}
	if got := h.Sync(300, externalMetric(2, 8)); got != 2 {
		t.Errorf("after the window: %d, want 2", got)
	}
}

// Replicas outside the bounds are corrected at once. Zero replicas stay.
func TestHPABounds(t *testing.T) {
	for current, want := range map[int]int{0: 0, 1: 3, 20: 10} {
		h := &HPA{Kind: ExternalAverage, MilliTarget: 1000, Min: 3, Max: 10, Up: DefaultUp(), Down: DefaultDown()}
		if got := h.Sync(0, externalMetric(5, current)); got != want {
			t.Errorf("%d replicas: %d, want %d", current, got, want)
		}
	}
}

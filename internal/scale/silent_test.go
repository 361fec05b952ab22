// SPDX-License-Identifier: Apache-2.0

package scale

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

// Replicas without a value hide no load: whatever the load of each replica is, and
// whichever of them have no value, the decision is not below what all values would give.
func TestReplicasWithoutValueHideNoLoad(t *testing.T) {
	rng := rand.New(rand.NewPCG(2, 1))
	for range 20_000 {
		p := utilPolicy()
		p.Signals[0].Aggregate = []gpu.Aggregation{gpu.Mean, gpu.Sum, gpu.Max}[rng.IntN(3)]
		p.Signals[0].Law = []Law{Linear, Batching}[rng.IntN(2)]
		p.Down.Window = 0
		all := make([]float64, 1+rng.IntN(12))
		for i := range all {
			all[i] = rng.Float64() * []float64{5, 60, 100}[rng.IntN(3)]
		}
		full, _ := Decide(p, seen(t0, all...), State{}, t0)
		some := append([]float64(nil), all...)
		for range 1 + rng.IntN(len(some)) {
			some[rng.IntN(len(some))] = math.NaN()
		}
		got, _ := Decide(p, seen(t0, some...), State{}, t0)
		if want := min(full.Replicas, int32(len(all))); got.Replicas < want {
			t.Fatalf("%v: %d replicas, %d with all of %v\n%s", some, got.Replicas, full.Replicas, all, got.Sentence())
		}
	}
}

// A replica that never has a value keeps the others, and the decision names it. At its
// target, as the HPA counts it, it would let them go: three replicas of a new version, which
// exposes the metric by another name, carry three times their target, and three of the old
// one are idle.
func TestTheReplicaWithoutValueIsNamed(t *testing.T) {
	var s State
	var d Decision
	for i := range 3600 {
		now := t0.Add(time.Duration(i) * time.Second)
		o := seen(now, 1, 1, 1, 1, 1, 1)
		for k := range o.Pods {
			o.Pods[k].Name = fmt.Sprint("chat-", (k+i)%6) // pods come in any order
			o.Pods[k].Readings[0].OK = (k+i)%6 < 3
		}
		d, s = Decide(utilPolicy(), o, s, now)
		if d.Replicas != 6 {
			t.Fatalf("after %d s %d replicas: %s", i, d.Replicas, d.Sentence())
		}
	}
	if !strings.Contains(d.Sentence(), "keep at least 6: only 3 of 6 serving replicas have a fresh value of Utilization (chat-3 has none)") {
		t.Errorf("%q does not name chat-3", d.Sentence())
	}
}

// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"encoding/json"
	"math/rand/v2"
	"strconv"
	"testing"
	"time"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/scale"
)

// A controller that restarts from the state in the status makes the same decisions as
// one that runs on.
func TestRestartDecidesTheSame(t *testing.T) {
	a := autoscaler("web")
	window := int32(60)
	a.Spec.Behavior.ScaleDown.StabilizationWindowSeconds = &window
	a.Spec.Behavior.ScaleDown.Policies = []v1alpha1.ScalingPolicy{{Type: "Pods", Value: 2, PeriodSeconds: 30}}
	a.Spec.Actuation = v1alpha1.ActuationAdvise
	r := newRig(t, deployment("web", 8), a)
	for i := range 8 {
		r.pods.Pods = append(r.pods.Pods, pod("web", "web-"+strconv.Itoa(i), r.now.Add(-time.Hour), ready(r.now.Add(-time.Hour))))
	}
	w := r.add(a)
	random := rand.New(rand.NewPCG(1, 2))
	held, down := 0, 0
	for i := range 150 {
		now := r.now.Add(time.Duration(i) * time.Second)
		load := 55.0
		if i > 30 {
			load = 20 + 20*random.Float64()
		}
		r.utilization(now, load, r.pods.Pods...)
		before := w.status.next
		w.pass(now)
		if before == nil {
			continue
		}
		// As the API server gives it back.
		b, err := json.Marshal(statusOf(before, &v1alpha1.GPUAutoscalerStatus{}))
		if err != nil {
			t.Fatal(err)
		}
		again := a.DeepCopy()
		if err := json.Unmarshal(b, &again.Status); err != nil {
			t.Fatal(err)
		}
		anew := newWorkload(t.Context(), r.shared, r.route, again)
		anew.pass(now)
		want, got := w.status.next.Decision, anew.status.next.Decision
		if got.Replicas != want.Replicas || got.Rule != want.Rule {
			t.Fatalf("after %d s: %d (%s), want %d (%s)", i, got.Replicas, got.Sentence(), want.Replicas, want.Sentence())
		}
		switch {
		case want.Rule == scale.RuleStabilization:
			held++
		case want.Replicas < want.Current:
			down++
		}
	}
	if held == 0 || down == 0 {
		t.Errorf("%d decisions held by the window, %d downward: the test is of neither", held, down)
	}
}

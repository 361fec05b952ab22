// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"errors"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/autoscaler/target"
	"github.com/gpupilot/gpupilot/internal/scale"
)

// watched is a workload whose target is a LeaderWorkerSet, which is read through
// its scale, with four replicas and a window of a minute on the way down.
type watched struct {
	*rig
	*workload
	away bool // the API server does not answer reads of the scale
}

func newWatched(t *testing.T) *watched {
	t.Helper()
	a := autoscaler("web")
	a.Spec.ScaleTargetRef = v1alpha1.CrossVersionObjectReference{APIVersion: "leaderworkerset.x-k8s.io/v1", Kind: "LeaderWorkerSet", Name: "web"}
	a.Spec.Actuation = v1alpha1.ActuationAdvise
	window, down := int32(60), a.Spec.Behavior.ScaleDown
	down.StabilizationWindowSeconds = &window
	r := newRig(t, a)
	for i := range 4 {
		r.pods.Pods = append(r.pods.Pods, pod("web", "web-"+strconv.Itoa(i), r.now.Add(-time.Hour), ready(r.now.Add(-time.Hour))))
	}
	x := &watched{rig: r}
	r.deps.Scaler = target.NewScaler(interceptor.NewClient(r.client.(client.WithWatch), interceptor.Funcs{
		SubResourceGet: func(_ context.Context, _ client.Client, _ string, _, body client.Object, _ ...client.SubResourceGetOption) error {
			if x.away {
				return errors.New("connection refused")
			}
			body.(*unstructured.Unstructured).Object = map[string]any{
				"apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": map[string]any{"name": "web", "resourceVersion": "1"},
				"spec": map[string]any{"replicas": int64(4)}, "status": map[string]any{"selector": "app=web"},
			}
			return nil
		},
	}))
	x.workload = r.add(a)
	return x
}

// let lets a time go by in ticks of a second, at a utilisation.
func (x *watched) let(d time.Duration, utilization float64) *pass {
	for range int(d / time.Second) {
		time.Sleep(time.Second)
		x.utilization(time.Now(), utilization, x.rig.pods.Pods...)
		x.pass(time.Now())
	}
	return x.status.next
}

// What was learned and watched outlives a read of the target that fails.
func TestStateSurvivesFailedReads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newWatched(t)
		if d := x.let(50*time.Second, 30).Decision; d == nil || d.Rule != scale.RuleStabilization || d.Replicas != 4 {
			t.Fatalf("before the window is covered: %+v", d)
		}
		before := x.engine.state
		x.away = true
		r := x.let(20*time.Second, 30)
		if r.obstacle.reason != reasonUnreadable || r.Decision != nil {
			t.Fatalf("the target can be read: %+v", r.obstacle)
		}
		if diff := cmp.Diff(before, x.engine.state, cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("a failed read changed what the engine knows:\n%s", diff)
		}
		m := statusOf(r, &v1alpha1.GPUAutoscalerStatus{}).Memory
		if m == nil || !m.Time.Time.Equal(before.DecidedAt.Truncate(time.Microsecond)) {
			t.Errorf("the status remembers %+v, want what was known at %v", m, before.DecidedAt)
		}
		x.away = false
		if d := x.let(time.Second, 30).Decision; d == nil || d.Replicas != 2 {
			t.Errorf("the window of 60 s is covered after 50 s, a short gap of 20 s, and 1 s: %+v", d)
		}
	})
}

// After a gap without observations the window starts again, the learned values are
// kept, and the gap does not count as missing data.
func TestAGapRestartsTheWindow(t *testing.T) {
	f := func(what string, begin, end func(*watched)) {
		t.Helper()
		synctest.Test(t, func(t *testing.T) {
			x := newWatched(t)
			x.aspects = x.fleet.Of(&v1alpha1.GPUAutoscaler{Status: v1alpha1.GPUAutoscalerStatus{Startup: &v1alpha1.LearnedStartup{P50Seconds: 20, P95Seconds: 30, Samples: 5}}})
			x.let(100*time.Second, 60)
			x.engine.state.Signals[0].Arrivals = scale.ArrivalModel{At: time.Now(), ArrivedSum: 100, ReplicaSum: 10}
			begin(x)
			if r := x.let(2*time.Minute, 30); r.Decision != nil {
				t.Errorf("%s: decided: %+v", what, r.Decision)
			}
			if m := statusOf(x.status.next, &v1alpha1.GPUAutoscalerStatus{}).Memory; m == nil {
				t.Errorf("%s: the status remembers nothing", what)
			}
			end(x)
			d := x.let(time.Second, 30).Decision
			if d == nil || d.Replicas != 4 || d.Rule != scale.RuleStabilization {
				t.Errorf("%s: after it, without a window: %+v", what, d)
				return
			}
			if len(x.engine.state.Signals) != 1 || x.engine.state.Signals[0].Arrivals.ArrivedSum != 100 || statusOf(x.status.next, &v1alpha1.GPUAutoscalerStatus{}).Startup == nil {
				t.Errorf("%s: what was learned is gone: %+v", what, x.engine.state)
			}
			if d = x.let(58*time.Second, 30).Decision; d.Replicas != 4 {
				t.Errorf("%s: %d replicas before the window is covered", what, d.Replicas)
			}
			if d = x.let(3*time.Second, 30).Decision; d.Replicas != 2 {
				t.Errorf("%s: %d replicas after the window: %s", what, d.Replicas, d.Sentence())
			}
		})
	}
	f("failed reads", func(x *watched) { x.away = true }, func(x *watched) { x.away = false })
	spec := func(max int32) func(*watched) {
		return func(x *watched) {
			a := x.object.Load().DeepCopy()
			a.Generation++
			a.Spec.MaxReplicas = max
			x.object.Store(a)
		}
	}
	f("an invalid spec", spec(0), spec(10))
}

// Owned by another, even for a moment, the replicas and the window are another's.
func TestOwnershipOfAnotherEndsTheWindow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newWatched(t)
		a := x.object.Load().DeepCopy()
		a.Spec.Actuation = v1alpha1.ActuationScale
		a.Generation++
		x.object.Store(a)
		x.let(70*time.Second, 60)
		h := target.Rival{Kind: "HorizontalPodAutoscaler", Namespace: "ns", Name: "h"}
		x.rivals.Set(h, x.seen.target, false)
		if r := x.let(time.Second, 60); r.obstacle.reason != reasonOwned {
			t.Fatalf("not owned: %+v", r.obstacle)
		}
		x.rivals.Set(h, x.seen.target, true)
		if d := x.let(time.Second, 30).Decision; d.Rule != scale.RuleStabilization || d.Replicas != 4 {
			t.Errorf("afterwards: %s", d.Sentence())
		}
	})
}

// A pause of the whole process is a gap, too.
func TestAPauseOfTheProcessIsAGap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newWatched(t)
		x.let(100*time.Second, 60)
		time.Sleep(10 * time.Minute)
		if d := x.let(time.Second, 30).Decision; d.Replicas != 4 || d.Rule != scale.RuleStabilization {
			t.Errorf("after ten minutes that nobody watched: %s", d.Sentence())
		}
	})
}

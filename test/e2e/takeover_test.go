// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/test/simnode"
	"github.com/gpupilot/gpupilot/test/stack"
)

const accepted = `gpupilot_scale_requests_total{result="accepted"}`

// Of two replicas one writes. It is killed in the middle of a rise: the other goes on, and repeats nothing.
func TestStandbyTakesOver(t *testing.T) {
	const name, load = "handover", 3.4
	began := time.Now().Truncate(time.Second)
	rig.Offer(name, 0.3)
	rig.Deploy(t, name, 1, 3*time.Second)
	seen := rig.Record(t, name)
	rig.Autoscale(t, name, nil)
	promise := rig.Autoscale(t, name, func(a *v1alpha1.GPUAutoscaler) {
		a.Name, a.Spec.Actuation = name+"-promise", v1alpha1.ActuationAdvise
		a.Spec.Signals = []v1alpha1.Signal{{Preset: v1alpha1.PresetVLLM, SLO: &v1alpha1.SLO{
			Objective: "95%", Over: "1d", TimeToFirstToken: &metav1.Duration{Duration: time.Second},
		}}}
	})
	rig.Measured(t, name, 1)
	standby, lease := startStandby(t)
	before := keeps(t, promise.Name, 10, began, time.Now())

	rig.Offer(name, load)
	rig.WantReplicas(t, name, "more than 1", func(n int32) bool { return n > 1 })
	n := stack.Meter(t, standby.URL, accepted)
	waited := len(lease.terms()) == 1 // the machine has not kept the leader from its renewals
	if n != 0 && waited {
		t.Errorf("the standby has scaled %v times beside the leader", n)
	}
	rig.KillController()
	restart := restartController(t)
	replicas, err := rig.Replicas(t.Context(), namespace, name)
	if err != nil {
		t.Fatal(err)
	}
	stack.Leads(t, standby.URL, true)
	after := keeps(t, promise.Name, before.Requests+1, began, before.Since.Time)
	rig.Serves(t, name, load)
	rises(t, seen.Values(), load)
	n = stack.Meter(t, standby.URL, accepted)
	stack.Eventually(t, func() error { // what is recorded comes by a watch of its own
		values := seen.Values()
		if changes := len(values) - 1 - slices.Index(values, replicas); int(n) > changes && waited {
			return fmt.Errorf("the standby scaled %v times, replicas went %v from %d on: a decision was repeated", n, values, replicas)
		}
		return nil
	})

	handBack(t, restart, standby)
	keeps(t, promise.Name, after.Requests+200, began, before.Since.Time)
}

// keeps waits until the status of a GPUAutoscaler has counted so many requests, of which simnode.LateShare missed. It has
// counted since a time: each replica scrapes the pods at a time of its own, and the earlier count stands, so that the time
// is the latest one. The earliest is that of the workload.
func keeps(t *testing.T, name string, requests int64, earliest, latest time.Time) (o v1alpha1.ObjectiveStatus) {
	t.Helper()
	stack.Eventually(t, func() error {
		a := &v1alpha1.GPUAutoscaler{}
		if err := rig.Client.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: name}, a); err != nil {
			return err
		}
		if len(a.Status.Objectives) != 1 {
			return fmt.Errorf("%s has %d objectives", name, len(a.Status.Objectives))
		}
		if o = a.Status.Objectives[0]; o.Requests < requests {
			return fmt.Errorf("%s has counted %d requests, want %d", name, o.Requests, requests)
		}
		return nil
	})
	missed := float64(o.Missed) / float64(o.Requests)
	within := simnode.LateShare + 1/float64(o.Requests) // the first misses are at the 50th request of each server
	if math.Abs(missed-simnode.LateShare) > within || o.Requests > 200 && o.Missed == 0 || o.MissedAtMost != 0 || o.Attained == "" || o.BudgetLeft == "" || len(o.BurnRates) == 0 {
		t.Errorf("%s: %+v", name, o)
	}
	if since := o.Since.Time; since.After(latest) || since.Before(earliest) {
		t.Errorf("%s counts since %v, want %v to %v: the record began again", name, since, earliest, latest)
	}
	t.Log(o.Message)
	return o
}

// restartController returns a function that starts the controller again. The end of the test calls it too.
func restartController(t *testing.T) func() error {
	restart := sync.OnceValue(func() error { return rig.StartController(context.WithoutCancel(t.Context())) })
	t.Cleanup(func() { _ = restart() })
	return restart
}

// handBack starts the first replica as a standby. It leads again when the other ends.
func handBack(t *testing.T, restart func() error, standby *stack.Standby) {
	t.Helper()
	if err := restart(); err != nil {
		t.Fatal(err)
	}
	stack.Leads(t, rig.ControllerURL, false)
	standby.Stop()
	stack.Leads(t, rig.ControllerURL, true)
}

// startStandby starts a second replica, and watches the lease, which the first one has. A machine that keeps the first one
// from its renewals gives the lease to the standby: then it begins again.
func startStandby(t *testing.T) (*stack.Standby, *leaseRecorder) {
	t.Helper()
	for {
		stack.Leads(t, rig.ControllerURL, true)
		lease := watchLease(t)
		standby, err := rig.StartStandby(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if stack.Meter(t, standby.URL, "gpupilot_leader") == 0 && len(lease.terms()) == 1 {
			t.Cleanup(standby.Stop)
			return standby, lease
		}
		standby.Stop()
	}
}

// A leader that is terminated releases its lease: the standby takes it before it runs out. It acts on a load that rises
// then. make bench measures how long that takes.
func TestDecisionsContinueAfterTermination(t *testing.T) {
	first, next := testDecisionsContinue(t, "terminated", rig.StopController)
	if !first.released {
		t.Errorf("the lease was not released: %+v, then %+v", first, next)
	}
}

// The lease of a leader that is killed runs out first.
func TestDecisionsContinueAfterKill(t *testing.T) {
	first, next := testDecisionsContinue(t, "killed", rig.KillController)
	// The lease has times of the wall clock, which is corrected now and then; an elector counts by the monotonic one.
	if end := first.renewed.Add(first.lasts); first.released || next.acquired.Before(end.Add(-time.Second)) {
		t.Errorf("the lease was taken at %v, before its end at %v: %+v", next.acquired, end, first)
	}
}

// testDecisionsContinue ends the leader, raises the load, and returns the terms of the leader and of the standby.
func testDecisionsContinue(t *testing.T, name string, end func()) (first, next term) {
	const before, load = 0.4, 1.6
	rig.Offer(name, before)
	rig.Deploy(t, name, 1, time.Second)
	rig.Spread(t, name, 1)
	rig.Autoscale(t, name, nil)
	rig.Measured(t, name, 1)
	restart, seen := restartController(t), rig.Record(t, name)
	standby, lease := startStandby(t)
	end()
	rig.Offer(name, load)
	rig.Serves(t, name, load)
	rises(t, seen.Values(), load)
	if n := stack.Meter(t, standby.URL, accepted); n < 1 {
		t.Errorf("the standby wrote nothing, and replicas went %v", seen.Values())
	}
	terms := lease.terms()
	if len(terms) < 2 {
		t.Fatalf("nobody took the lease: %+v", terms)
	}
	handBack(t, restart, standby)
	return terms[0], terms[1]
}

var leaseKey = client.ObjectKey{Namespace: stack.Namespace, Name: "gpupilot-controller"}

// term is the time in which one replica holds the lease, by the times in the lease.
type term struct {
	holder            string
	acquired, renewed time.Time
	lasts             time.Duration // from a renewal
	released          bool
}

// leaseRecorder notes the terms from the one at its start on.
type leaseRecorder struct {
	mu  sync.Mutex
	all []term
}

func watchLease(t *testing.T) *leaseRecorder {
	t.Helper()
	w, err := rig.Client.Watch(t.Context(), &coordinationv1.LeaseList{}, client.InNamespace(leaseKey.Namespace), client.MatchingFields{"metadata.name": leaseKey.Name})
	if err != nil {
		t.Fatal(err)
	}
	r := &leaseRecorder{}
	var done sync.WaitGroup
	done.Go(func() {
		for e := range w.ResultChan() {
			if lease, ok := e.Object.(*coordinationv1.Lease); ok && e.Type != watch.Deleted {
				r.add(&lease.Spec)
			}
		}
	})
	t.Cleanup(func() { w.Stop(); done.Wait() })
	stack.Eventually(t, func() error {
		if len(r.terms()) == 0 {
			return errors.New("nobody holds the lease")
		}
		return nil
	})
	return r
}

func (r *leaseRecorder) add(s *coordinationv1.LeaseSpec) {
	r.mu.Lock()
	defer r.mu.Unlock()
	last := len(r.all) - 1
	switch {
	case s.HolderIdentity == nil || *s.HolderIdentity == "":
		if last >= 0 {
			r.all[last].released = true
		}
	case last >= 0 && r.all[last].holder == *s.HolderIdentity:
		r.all[last].renewed = s.RenewTime.Time
	default:
		r.all = append(r.all, term{
			holder: *s.HolderIdentity, acquired: s.AcquireTime.Time, renewed: s.RenewTime.Time,
			lasts: time.Duration(*s.LeaseDurationSeconds) * time.Second,
		})
	}
}

func (r *leaseRecorder) terms() []term {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.all)
}

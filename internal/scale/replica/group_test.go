// SPDX-License-Identifier: Apache-2.0

package replica

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/scale"
	"github.com/gpupilot/gpupilot/test/podtest"
)

// member returns pod n of a group of a LeaderWorkerSet; 0 is the leader.
func member(leader string, n, size, created int, change ...func(*corev1.Pod)) *corev1.Pod {
	name, owner := leader, "set"
	if n > 0 {
		name, owner = fmt.Sprintf("%s-%d", leader, n), leader
	}
	p := podtest.Pod("a", name, at(created))
	p.Labels[SetLabel], p.Labels[indexLabel] = "set", fmt.Sprint(n)
	p.Annotations = map[string]string{SizeAnnotation: fmt.Sprint(size)}
	p.OwnerReferences = []metav1.OwnerReference{{Kind: statefulSet, Name: owner, Controller: new(true)}}
	for _, f := range change {
		f(p)
	}
	return p
}

func scheduled(sec int) func(*corev1.Pod) {
	return podtest.Condition(corev1.PodScheduled, corev1.ConditionTrue, "", at(sec))
}

func unready(sec int) func(*corev1.Pod) {
	return podtest.Condition(corev1.PodReady, corev1.ConditionFalse, "", at(sec))
}

func unschedulable(sec int) func(*corev1.Pod) {
	return podtest.Condition(corev1.PodScheduled, corev1.ConditionFalse, corev1.PodReasonUnschedulable, at(sec))
}

func deleted(sec int) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: at(sec)} }
}

// listed are the pods of a namespace.
type listed []*corev1.Pod

func (l listed) Select(_ string, s labels.Selector) (out []*corev1.Pod) {
	for _, pod := range l {
		if s.Matches(labels.Set(pod.Labels)) {
			out = append(out, pod)
		}
	}
	return out
}

// leaders is the selector of the scale subresource of a LeaderWorkerSet.
var leaders = labels.SelectorFromSet(labels.Set{SetLabel: "set", indexLabel: "0"})

func unitOf(pods ...*corev1.Pod) Units { return UnitsOf(listed(pods), "ns", leaders) }

func TestAGroupServesAsAWhole(t *testing.T) {
	f := func(what string, phase scale.Phase, since int, leader *corev1.Pod, others ...*corev1.Pod) {
		t.Helper()
		u := unitOf(append([]*corev1.Pod{leader}, others...)...)
		gotPhase, gotSince := PhaseOf(u.Pods[0])
		if gotPhase != phase || !gotSince.Equal(at(since)) {
			t.Errorf("%s: %v since %v, want %v since %v", what, gotPhase, gotSince, phase, at(since))
		}
	}
	leader := member("set-0", 0, 3, 0, scheduled(1), podtest.Ready(at(50)))
	one := member("set-0", 1, 3, 0, scheduled(1), podtest.Ready(at(60)))
	two := member("set-0", 2, 3, 0, scheduled(2), podtest.Ready(at(55)))
	f("all serve", scale.Serving, 60, leader, one, two)
	f("a worker starts", scale.Starting, 3, leader, one, member("set-0", 2, 3, 0, scheduled(2), unready(3)))
	f("the leader starts", scale.Starting, 3, member("set-0", 0, 3, 0, scheduled(1), unready(3)), one, two)
	f("a worker has no node", scale.Unschedulable, 4, leader, one, member("set-0", 2, 3, 0, unschedulable(4)))
	f("a worker is missing", scale.Starting, 60, leader, one)
	f("a worker ends", scale.Starting, 500, leader, one, member("set-0", 2, 3, 0, podtest.Ready(at(55)), deleted(500)))
	f("a worker has failed", scale.Starting, 60, leader, one, member("set-0", 2, 3, 0, podtest.Ready(at(55)), func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }))
	f("a worker is back", scale.Starting, 505, leader, one, member("set-0", 2, 3, 500, scheduled(501), unready(505)))
	f("the leader ends", scale.Terminating, 700, member("set-0", 0, 3, 0, podtest.Ready(at(50)), deleted(700)), one, two)
	f("a group of one", scale.Serving, 50, member("set-0", 0, 1, 0, podtest.Ready(at(50))))
	f("no size", scale.Serving, 50, member("set-0", 0, 3, 0, podtest.Ready(at(50)), func(p *corev1.Pod) { p.Annotations = nil }))

	stranger := member("set-1", 2, 3, 0, podtest.Ready(at(55)))
	stranger.Name, stranger.UID = "set-0-2", "stranger"
	f("a worker of another group with the name of its own", scale.Starting, 60, leader, one, stranger)
	f("a pod without an owner", scale.Starting, 60, leader, one, member("set-0", 2, 3, 0, podtest.Ready(at(55)), func(p *corev1.Pod) { p.OwnerReferences = nil }))
	f("a worker with an index beyond the group's", scale.Starting, 60, leader, one, member("set-0", 7, 3, 0, podtest.Ready(at(55))))
	f("a worker too many, which never starts", scale.Serving, 60, leader, one, two, member("set-0", 7, 3, 0))
}

// A leader that leaves the endpoints is out of them by its own readiness.
func TestALeaderLeaves(t *testing.T) {
	gate := podtest.Condition(v1alpha1.ReadinessGate, corev1.ConditionFalse, v1alpha1.ReasonDraining, at(70))
	leader := member("set-0", 0, 2, 0, podtest.Ready(at(50)), gate, func(p *corev1.Pod) {
		p.Spec.ReadinessGates = []corev1.PodReadinessGate{{ConditionType: v1alpha1.ReadinessGate}}
	})
	u := unitOf(leader, member("set-0", 1, 2, 0, unready(60)))
	if phase, _ := PhaseOf(u.Pods[0]); phase != scale.Leaving || !IsReady(u.Pods[0]) {
		t.Errorf("%v, ready %v", phase, IsReady(u.Pods[0]))
	}
}

// The start of a group ends when its last member is ready. A worker that was replaced is
// no start.
func TestStartOfAGroup(t *testing.T) {
	var s Startup
	see := func(pods ...*corev1.Pod) { u := unitOf(pods...); s.Observe(u.Pods) }
	see(member("set-0", 0, 2, 0, scheduled(1), unready(2)))
	see(member("set-0", 0, 2, 0, scheduled(1), podtest.Ready(at(30))))
	see(member("set-0", 0, 2, 0, scheduled(1), podtest.Ready(at(30))), member("set-0", 1, 2, 31, scheduled(32), unready(32)))
	see(member("set-0", 0, 2, 0, scheduled(1), podtest.Ready(at(30))), member("set-0", 1, 2, 31, scheduled(32), podtest.Ready(at(80))))
	if l := s.Learned(); l == nil || l.Samples != 1 || l.P50Seconds != 80 {
		t.Fatalf("learned %+v, want one start of 80 s", l)
	}
	see(member("set-0", 0, 2, 0, scheduled(1), podtest.Ready(at(30))), member("set-0", 1, 2, 5000, scheduled(5001), unready(5001)))
	see(member("set-0", 0, 2, 0, scheduled(1), podtest.Ready(at(30))), member("set-0", 1, 2, 5000, scheduled(5001), podtest.Ready(at(5100))))
	if n := s.Learned().Samples; n != 1 {
		t.Errorf("%d starts, want 1: a worker's start counted as the group's", n)
	}
	see(member("set-1", 0, 2, 0, scheduled(1), unready(2)), member("set-1", 1, 2, 0, unschedulable(1)))
	see(member("set-1", 0, 2, 0, scheduled(1), unready(2)), member("set-1", 1, 2, 0, scheduled(600), unready(601)))
	see(member("set-1", 0, 2, 0, scheduled(1), podtest.Ready(at(40))), member("set-1", 1, 2, 0, scheduled(600), podtest.Ready(at(660))))
	if l := s.Learned(); l.Samples != 2 || l.P50Seconds != 60 {
		t.Errorf("learned %+v, want a start of 60 s after the wait for a node", l)
	}
}

// Pods of one owner that no selector matches say why a group does not serve.
func TestAGroupSaysWhatKeepsIt(t *testing.T) {
	crash := member("set-0", 1, 2, 0, scheduled(1), unready(2), func(p *corev1.Pod) {
		p.Status.ContainerStatuses = []corev1.ContainerStatus{{State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff", Message: "back-off"}}}}
	})
	u := unitOf(member("set-0", 0, 2, 0, scheduled(1), podtest.Ready(at(5))), crash)
	if p := Pending(u.Pods, nil); len(p) != 1 || p[0].Reason != "CrashLoopBackOff" {
		t.Errorf("%+v", p)
	}
}

// TestGroups compares random groups with the plain rule: a group serves if its leader and
// each of its other indices serve. Pods that lie about their group change nothing.
func TestGroups(t *testing.T) {
	for seed := range uint64(3000) {
		r := rand.New(rand.NewPCG(seed, 1))
		size := 1 + r.IntN(5)
		state := func(p *corev1.Pod) bool {
			switch r.IntN(8) {
			case 0:
				unready(r.IntN(100))(p)
			case 1:
				deleted(r.IntN(100))(p)
			case 2:
				unschedulable(r.IntN(100))(p)
			case 3:
				p.Status.Phase = corev1.PodSucceeded
				podtest.Ready(at(r.IntN(100)))(p)
			default:
				podtest.Ready(at(r.IntN(100)))(p)
				return true
			}
			return false
		}
		leader := member("set-0", 0, size, r.IntN(50))
		want := state(leader)
		pods := []*corev1.Pod{leader}
		for i := 1; i < size; i++ {
			w := member("set-0", i, size, r.IntN(50))
			serves := state(w)
			if r.IntN(10) == 0 {
				want = false
				continue
			}
			want = want && serves
			pods = append(pods, w)
		}
		honest := len(pods)
		for range r.IntN(4) {
			lie := member("set-0", 1+r.IntN(8), size, r.IntN(50))
			state(lie)
			switch r.IntN(4) {
			case 0:
				lie.OwnerReferences[0].Kind = "ReplicaSet"
			case 1:
				lie.OwnerReferences[0].Controller = nil
			case 2:
				lie.OwnerReferences[0].Name = "set-1"
			default:
				lie.Labels[indexLabel] = ""
			}
			pods = append(pods, lie)
		}
		all := pods
		r.Shuffle(len(all)-1, func(i, j int) { all[i+1], all[j+1] = all[j+1], all[i+1] })
		before := leader.DeepCopy()
		u := unitOf(all...)
		if got := Serving(u.Pods[0]); got != want {
			t.Fatalf("seed %d: serving %v, want %v", seed, got, want)
		}
		if len(u.Pods) != 1 || u.Pods[0].Name != leader.Name || len(u.Members(0)) != honest || len(u.All()) != honest {
			t.Fatalf("seed %d: %d members, %d pods, want %d", seed, len(u.Members(0)), len(u.All()), honest)
		}
		if got, was := fmt.Sprint(leader.Status), fmt.Sprint(before.Status); got != was {
			t.Fatalf("seed %d: a shared pod was changed: %s, was %s", seed, got, was)
		}
	}
}

// found are the pods that every selector matches.
type found []*corev1.Pod

func (f found) Select(string, labels.Selector) []*corev1.Pod { return f }

func TestPodsAreUnits(t *testing.T) {
	pods := []*corev1.Pod{podtest.Pod("a", "x", at(0)), podtest.Pod("a", "y", at(1))}
	u := UnitsOf(found(pods), "ns", leaders)
	if !slices.Equal(u.Pods, pods) || !slices.Equal(u.All(), pods) || len(u.Members(1)) != 1 {
		t.Errorf("%+v", u)
	}
	if n := testing.AllocsPerRun(100, func() { u = UnitsOf(found(pods), "ns", leaders); u.Members(1) }); n > 1 {
		t.Errorf("%v allocations for pods alone", n)
	}
}

// SPDX-License-Identifier: Apache-2.0

package scale

import (
	"cmp"
	"math"
	"slices"

	"github.com/gpupilot/gpupilot/internal/scale/facts"
)

// victims names the pods to remove first so that replicas remain: unschedulable
// ones, then starting ones (those that are stuck, then the youngest), then serving ones with the
// lowest value of the policy's first signal. While any serving replica remains,
// one with a valid reading does, so that the signal stays readable.
//
// Right after a scale-down more pods run than the current replicas: those that
// it removes are not terminating yet. They are victims of this one, too.
//
// During a rollout each version loses pods in proportion, and its controller chooses among
// those of one version only.
func (v *view) victims(replicas int) []string {
	pods := make([]*Replica, 0, len(v.o.Pods))
	for i := range v.o.Pods {
		if v.o.Pods[i].Phase != Terminating {
			pods = append(pods, &v.o.Pods[i])
		}
	}
	slices.SortStableFunc(pods, v.compareVictims)
	n := min(max(int(v.o.Replicas), len(pods))-replicas, len(pods))
	if !v.rollout.InProgress || v.rollout.Updated == 0 || v.rollout.Outdated == 0 {
		return v.firstVictims(pods, n)
	}
	of := map[string]int{} // pods of each version
	for _, p := range pods {
		of[p.Version]++
	}
	names := make([]string, 0, n+len(of))
	for _, p := range pods {
		if all := of[p.Version]; all > 0 {
			of[p.Version] = 0
			same := slices.DeleteFunc(slices.Clone(pods), func(x *Replica) bool { return x.Version != p.Version })
			names = append(names, v.firstVictims(same, (n*all+len(pods)-1)/len(pods))...)
		}
	}
	return names
}

// firstVictims names the first n of the pods, which are in the order in which they are
// removed.
func (v *view) firstVictims(pods []*Replica, n int) []string {
	if keep := v.lastReadable(pods, n); keep >= 0 {
		p := pods[keep]
		pods = append(slices.Delete(pods, keep, keep+1), p)
	}
	names := make([]string, 0, n)
	for _, p := range pods[:n] {
		names = append(names, p.Name)
	}
	return names
}

// compareVictims orders pods by what is removed first.
func (v *view) compareVictims(a, b *Replica) int {
	rank := func(p *Replica) int {
		if p.Phase == Starting && v.now.Sub(p.Since) > v.p.credit() {
			return 1
		}
		return [...]int{Unschedulable: 0, Starting: 2, Serving: 3, Terminating: 4, Leaving: 4}[p.Phase]
	}
	if d := rank(a) - rank(b); d != 0 {
		return d
	}
	return cmp.Or(cmp.Compare(v.load(a), v.load(b)), b.Since.Compare(a.Since))
}

// load is the value of a serving pod; one without a valid reading may carry any
// load.
func (v *view) load(p *Replica) float64 {
	switch r := p.reading(0); {
	case p.Phase != Serving:
		return 0
	case v.isValid(p, r):
		return r.Value
	}
	return math.Inf(1)
}

// lastReadable is the index of the last of the first n pods with a valid
// reading, if some pods behind them serve and none of those has one; else -1.
func (v *view) lastReadable(pods []*Replica, n int) int {
	unread := false
	for _, p := range pods[n:] {
		if v.isValid(p, p.reading(0)) {
			return -1
		}
		unread = unread || p.Phase == Serving
	}
	for i := n - 1; unread && i >= 0; i-- {
		if v.isValid(pods[i], pods[i].reading(0)) {
			return i
		}
	}
	return -1
}

// leastThatServe returns the least number of replicas from want on of which need serve.
func (v *view) leastThatServe(want, need int32) int32 {
	for want < v.o.Replicas {
		short := need - v.servingOf(want)
		if short <= 0 {
			break
		}
		want = min(want+short, v.o.Replicas)
	}
	return want
}

// servingOf returns how many of n replicas serve. A workload that is ordered loses its highest
// ordinals, and one in a rollout loses replicas of each version in proportion: those that do
// not serve are not the first to go.
func (v *view) servingOf(n int32) int32 {
	rolling := v.rollout.Updated > 0 && v.rollout.Outdated > 0 && v.starting > 0
	if !v.o.Ordered && !rolling {
		return min(n, v.serving)
	}
	var lowest, updated, outdated int32
	for i := range v.o.Pods {
		p := &v.o.Pods[i]
		if p.Phase != Serving {
			continue
		}
		if p.Ordinal < n {
			lowest++
		}
		if p.Version == v.o.Version {
			updated++
		} else {
			outdated++
		}
	}
	if v.o.Ordered {
		return lowest
	}
	kept := float64(n) / float64(v.rollout.Updated+v.rollout.Outdated)
	share := func(of int32) int32 { return facts.Replicas(kept * float64(of)) }
	return min(updated, share(v.rollout.Updated)) + min(outdated, share(v.rollout.Outdated))
}

// SPDX-License-Identifier: Apache-2.0

package replica

import (
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/gpupilot/gpupilot/internal/scale"
)

// What a LeaderWorkerSet writes on its pods.
const (
	SetLabel       = "leaderworkerset.sigs.k8s.io/name"
	SizeAnnotation = "leaderworkerset.sigs.k8s.io/size" // pods of a group, with its leader

	indexLabel = "leaderworkerset.sigs.k8s.io/worker-index" // 0 for the leader
)

// IsWorker reports whether a pod is a worker of a LeaderWorkerSet. The leader has the
// metrics of its group's server.
func IsWorker(pod *corev1.Pod) bool {
	index := pod.Labels[indexLabel]
	return index != "" && index != "0"
}

// Units are the replicas of a workload at one moment. A replica is a pod, or a group of a
// LeaderWorkerSet, which serves only as a whole.
type Units struct {
	// Pods has one pod for each replica. That of a group is its leader, with the readiness
	// of the whole group.
	Pods []*corev1.Pod

	all     []*corev1.Pod
	members [][]*corev1.Pod // of groups, parallel to Pods; nil: there are none
}

// Pods finds pods, sorted by name.
type Pods interface {
	Select(namespace string, selector labels.Selector) []*corev1.Pod
}

// UnitsOf returns the replicas of a scale target with this selector. That of a
// LeaderWorkerSet matches the leaders only.
func UnitsOf(from Pods, namespace string, selector labels.Selector) Units {
	pods := from.Select(namespace, selector)
	u := Units{Pods: pods, all: pods}
	var workers map[string][]*corev1.Pod // by the name of their StatefulSet, which is their leader's
	var set string
	for i, pod := range pods {
		size := groupSize(pod)
		if size <= 1 {
			continue
		}
		if u.members == nil || set != pod.Labels[SetLabel] {
			set = pod.Labels[SetLabel]
			workers = workersOf(from.Select(namespace, labels.SelectorFromSet(labels.Set{SetLabel: set})))
		}
		if u.members == nil {
			u.members, u.Pods, u.all = make([][]*corev1.Pod, len(pods)), slices.Clone(pods), slices.Clone(pods)
		}
		own := slices.DeleteFunc(workers[pod.Name], func(w *corev1.Pod) bool {
			n, ok := Ordinal(w)
			return !ok || n < 1 || int64(n) >= size
		})
		u.members[i] = append([]*corev1.Pod{pod}, own...)
		u.Pods[i] = asOne(pod, own, size)
		u.all = append(u.all, own...)
	}
	return u
}

// Members returns the pods of the replica Pods[i].
func (u *Units) Members(i int) []*corev1.Pod {
	if u.members != nil && u.members[i] != nil {
		return u.members[i]
	}
	return u.Pods[i : i+1 : i+1]
}

// All returns the pods of all replicas.
func (u *Units) All() []*corev1.Pod { return u.all }

// Template is what new replicas are made of.
type Template struct {
	Pods       *corev1.PodSpec // of a pod, or of the leader of a group; nil: not known
	Workers    *corev1.PodSpec // of a group
	NumWorkers int32           // of a group
}

// groupSize returns how many pods a leader's group has when it is whole; 1 for another pod.
func groupSize(pod *corev1.Pod) int64 {
	if pod.Labels[SetLabel] == "" || pod.Labels[indexLabel] != "0" {
		return 1
	}
	n, err := strconv.ParseInt(pod.Annotations[SizeAnnotation], 10, 32)
	if err != nil {
		return 1
	}
	return n
}

// workersOf sorts the workers of a LeaderWorkerSet by the StatefulSet that owns them.
func workersOf(pods []*corev1.Pod) map[string][]*corev1.Pod {
	out := map[string][]*corev1.Pod{}
	for _, pod := range pods {
		if owner := metav1.GetControllerOf(pod); IsWorker(pod) && owner != nil && owner.Kind == statefulSet {
			out[owner.Name] = append(out[owner.Name], pod)
		}
	}
	return out
}

// asOne returns a leader with the conditions of its group: it is ready if the group is
// whole and all of it serves, and unschedulable if one of it is. A leader that leaves takes
// the group with it.
func asOne(leader *corev1.Pod, workers []*corev1.Pod, size int64) *corev1.Pod {
	phase, since := PhaseOf(leader)
	if Finished(leader) || phase == scale.Terminating || phase == scale.Leaving {
		return leader
	}
	g := group{phase: phase, since: since, scheduled: leader, statuses: leader.Status.ContainerStatuses, missing: size - 1}
	for _, w := range workers {
		g.add(leader, w)
	}
	if g.missing > 0 && g.phase == scale.Serving {
		g.phase = scale.Starting
	}
	one := *leader
	one.Status.ContainerStatuses = g.statuses
	one.Status.Conditions = g.conditions(leader)
	return &one
}

// group is what the members of a group are together.
type group struct {
	phase     scale.Phase
	since     time.Time
	scheduled *corev1.Pod // member that was scheduled last, or cannot be
	statuses  []corev1.ContainerStatus
	missing   int64 // members that it lacks
}

// late is how long after its leader became ready a worker of a new group is created, at
// most: one that is created later takes the place of another.
const late = 10 * time.Second

func (g *group) add(leader, w *corev1.Pod) {
	phase, since := PhaseOf(w)
	if Finished(w) || phase == scale.Terminating {
		if since.After(g.since) {
			g.since = since
		}
		return
	}
	g.missing--
	if phase != scale.Serving {
		g.statuses = slices.Concat(g.statuses, w.Status.ContainerStatuses, w.Status.InitContainerStatuses)
	}
	switch {
	case g.phase == scale.Unschedulable:
		return
	case phase == scale.Unschedulable:
		g.phase, g.since, g.scheduled = phase, since, w
		return
	case phase == g.phase && since.After(g.since), phase == scale.Starting && g.phase == scale.Serving:
		g.phase, g.since = phase, since
	}
	ready := condition(leader, corev1.PodReady)
	replaces := IsReady(leader) && w.CreationTimestamp.After(ready.LastTransitionTime.Add(late))
	if c := condition(w, corev1.PodScheduled); c != nil && !replaces {
		if last := condition(g.scheduled, corev1.PodScheduled); last == nil || c.LastTransitionTime.After(last.LastTransitionTime.Time) {
			g.scheduled = w
		}
	}
}

// conditions returns the leader's conditions with those of the group.
func (g *group) conditions(leader *corev1.Pod) []corev1.PodCondition {
	out := slices.DeleteFunc(slices.Clone(leader.Status.Conditions), func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady || c.Type == corev1.PodScheduled
	})
	if c := condition(g.scheduled, corev1.PodScheduled); c != nil {
		out = append(out, *c)
	}
	if g.phase == scale.Unschedulable {
		return out
	}
	ready := corev1.PodCondition{Type: corev1.PodReady, Status: corev1.ConditionFalse, LastTransitionTime: metav1.Time{Time: g.since}}
	if g.phase == scale.Serving {
		ready.Status = corev1.ConditionTrue
	}
	return append(out, ready)
}

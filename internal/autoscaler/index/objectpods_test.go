// SPDX-License-Identifier: Apache-2.0

package index

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gpupilot/gpupilot/internal/scale/replica"
)

// ownedPod is a pod of a namespace with a controller.
func ownedPod(namespace, name string, set map[string]string, kind, owner, uid string) *corev1.Pod {
	p := somePod(namespace, name, set)
	p.UID = types.UID("pod-" + name)
	isController := true
	p.OwnerReferences = []metav1.OwnerReference{{Kind: kind, Name: owner, UID: types.UID(uid), Controller: &isController}}
	return p
}

func matching(set map[string]string) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: set}
}

// statefulSet is one with a selector for its name; kind and owner are its controller's.
func statefulSet(name, uid, kind, owner, ownerUID string) *appsv1.StatefulSet {
	isController := true
	return &appsv1.StatefulSet{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "ml", Name: name, UID: types.UID(uid),
			OwnerReferences: []metav1.OwnerReference{{Kind: kind, Name: owner, UID: types.UID(ownerUID), Controller: &isController}},
		},
		Spec: appsv1.StatefulSetSpec{Selector: matching(map[string]string{replica.SetLabel: "llm"})},
	}
}

// ownerServer is a Deployment of two ReplicaSets, and a LeaderWorkerSet of one group.
func ownerServer() *objectServer {
	s := newObjectServer()
	s.objects["Deployment"] = []client.Object{deployment("web", "d1")}
	first, second, stranger := replicaSet("web-1", "r1", "d1"), replicaSet("web-2", "r2", "d1"), replicaSet("stranger", "r3", "d1")
	for _, rs := range []*appsv1.ReplicaSet{first, second} {
		rs.Labels = map[string]string{"app": "web"}
		rs.Spec.Selector = matching(map[string]string{"app": "web", "hash": rs.Name})
	}
	stranger.Labels = map[string]string{"app": "stranger"}
	stranger.Spec.Selector = matching(map[string]string{"app": "stranger"})
	s.objects["ReplicaSet"] = []client.Object{first, second, stranger}
	s.objects["StatefulSet"] = []client.Object{statefulSet("llm", "s1", "LeaderWorkerSet", "llm", "l1"), statefulSet("llm-0", "s2", "Pod", "llm-0", "pod-llm-0")}
	lws := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: "ml", Name: "llm", UID: "l1"}}
	s.objects["LeaderWorkerSet"] = []client.Object{lws}
	return s
}

// A workload's pods are those that its controllers own and select. A pod that names a
// foreign owner is nobody's.
func TestPodsOf(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o, pods := runObjects(t, ownerServer()), NewPods()
		o.cfg.Mapper.(*meta.DefaultRESTMapper).Add(schema.GroupVersionKind{Group: lwsResource.Group, Version: "v1", Kind: "LeaderWorkerSet"}, meta.RESTScopeNamespace)
		web := func(hash string) map[string]string { return map[string]string{"app": "web", "hash": hash} }
		llm := map[string]string{replica.SetLabel: "llm"}
		for _, p := range []*corev1.Pod{
			ownedPod("ml", "web-2-a", web("web-2"), "ReplicaSet", "web-2", "r2"),
			ownedPod("ml", "web-1-b", web("web-1"), "ReplicaSet", "web-1", "r1"),
			ownedPod("ml", "web-1-a", web("web-1"), "ReplicaSet", "web-1", "r1"),
			ownedPod("ml", "forged-label", map[string]string{"app": "web"}, "ReplicaSet", "web-1", "r1"),
			ownedPod("ml", "forged-uid", web("web-1"), "ReplicaSet", "web-1", "r9"),
			ownedPod("ml", "forged-direct", web("web-1"), "Deployment", "web", "d1"),
			ownedPod("evil", "forged-namespace", web("web-1"), "ReplicaSet", "web-1", "r1"),
			ownedPod("ml", "stranger-a", map[string]string{"app": "stranger"}, "ReplicaSet", "stranger", "r3"),
			somePod("ml", "no-owner", web("web-1")),
			ownedPod("ml", "llm-0", llm, "StatefulSet", "llm", "s1"),
			ownedPod("ml", "llm-0-1", llm, "StatefulSet", "llm-0", "s2"),
			ownedPod("ml", "llm-forged", map[string]string{replica.SetLabel: "other"}, "StatefulSet", "llm", "s1"),
		} {
			pods.OnAdd(p, true)
		}
		f := func(r schema.GroupResource, namespace, name, want string) {
			t.Helper()
			list, err := o.PodsOf(t.Context(), pods, nil, r, types.NamespacedName{Namespace: namespace, Name: name})
			var got []string
			for _, p := range list {
				got = append(got, p.Namespace+"/"+p.Name)
			}
			if err != nil || strings.Join(got, " ") != want {
				t.Errorf("%s %s: %q %v, want %q", r, name, got, err, want)
			}
		}
		f(deployments, "ml", "web", "ml/web-1-a ml/web-1-b ml/web-2-a")
		f(deployments, "evil", "web", "")
		f(deployments, "ml", "gone", "")
		f(replicaSets, "ml", "web-1", "ml/web-1-a ml/web-1-b")
		f(statefulSetsResource, "ml", "llm", "ml/llm-0")
		f(lwsResource, "ml", "llm", "ml/llm-0 ml/llm-0-1")

		g := func(namespace, name string, want Workload, owned bool) {
			t.Helper()
			p, _ := pods.Get(namespace, name)
			if w, ok := o.WorkloadOf(pods, p); ok != owned || ok && w != want {
				t.Errorf("%s/%s is of %v %v, want %v", namespace, name, w, ok, want)
			}
		}
		g("ml", "web-1-a", Workload{"Deployment", "web"}, true)
		g("ml", "llm-0", Workload{"LeaderWorkerSet", "llm"}, true)
		g("ml", "llm-0-1", Workload{"LeaderWorkerSet", "llm"}, true)
		g("ml", "forged-label", Workload{}, false)
		g("ml", "no-owner", Workload{}, false)
		g("evil", "forged-namespace", Workload{"ReplicaSet", "web-1"}, true) // by the name that it has, in its own namespace
	})
}

// What is remembered of a workload ends with a change of its pods, its selector or its
// controllers, and is bounded.
func TestMatchesAreForgotten(t *testing.T) {
	var m matches
	pods := NewPods()
	set := map[string]string{"app": "web"}
	workload := &Object{Namespace: "ml", UID: "d1", Selector: labels.SelectorFromSet(set)}
	controller := &Object{Namespace: "ml", UID: "r1", Selector: labels.SelectorFromSet(set)}
	f := func(what string, want int) {
		t.Helper()
		for range 2 {
			if got := m.append(nil, pods, workload, controller); len(got) != want {
				t.Errorf("%s: %d pods, want %d", what, len(got), want)
			}
		}
	}
	f("no pod", 0)
	pods.OnAdd(ownedPod("ml", "a", set, "ReplicaSet", "web", "r1"), false)
	pods.OnAdd(ownedPod("ml", "b", set, "ReplicaSet", "web", "r1"), false)
	f("two pods", 2)
	pods.OnUpdate(nil, ownedPod("ml", "b", nil, "ReplicaSet", "web", "r1"))
	f("a pod without the label", 1)
	pods.OnDelete(ownedPod("ml", "a", set, "ReplicaSet", "web", "r1"))
	f("a pod that is gone", 0)
	pods.OnAdd(ownedPod("ml", "a", set, "ReplicaSet", "web", "r1"), false)
	f("a pod that is back", 1)
	changed := *workload
	changed.Selector = labels.SelectorFromSet(labels.Set{"app": "other"})
	workload = &changed
	f("another selector", 0)
	for i := range 2 * maxMatches {
		m.set(matchKey{"ml", types.UID(fmt.Sprint(i)), ""}, matched{pods: make([]*corev1.Pod, 300)})
		if len(m.byOwner) > maxMatches || m.pods > maxMatchedPods {
			t.Fatalf("%d lists with %d pods", len(m.byOwner), m.pods)
		}
	}
}

// The index by owner finds what looking at every pod finds, whatever came and went.
func TestPodsByOwnerAgainstAList(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	pods, all := NewPods(), map[string]*corev1.Pod{}
	for range 3000 {
		name := fmt.Sprint("p", rng.IntN(30))
		p := ownedPod("ml", name, nil, "ReplicaSet", "web", fmt.Sprint("r", rng.IntN(4)))
		switch rng.IntN(4) {
		case 0:
			pods.OnDelete(p)
			delete(all, name)
		case 1:
			p.OwnerReferences = nil
			fallthrough
		default:
			pods.OnAdd(p, false)
			all[name] = p
		}
		uid := fmt.Sprint("r", rng.IntN(4))
		var want []string
		for name, p := range all {
			if owner := metav1.GetControllerOf(p); owner != nil && string(owner.UID) == uid {
				want = append(want, name)
			}
		}
		slices.Sort(want)
		var got []string
		for _, p := range pods.AppendOwned(nil, "ml", types.UID(uid)) {
			if p != all[p.Name] {
				t.Fatal("an older version of a pod")
			}
			got = append(got, p.Name)
		}
		if !slices.Equal(got, want) {
			t.Fatalf("%s owns %v, want %v", uid, got, want)
		}
	}
}

// BenchmarkPodsOf finds the 1,000 pods of a Deployment in a namespace of 10,000.
func BenchmarkPodsOf(b *testing.B) {
	o, pods := NewObjects(ObjectsConfig{}), NewPods()
	indexes := map[schema.GroupResource]*objectIndex{}
	for _, r := range []schema.GroupResource{deployments, replicaSets} {
		x := &objectIndex{resource: r, objects: map[string]map[string]*Object{}, listed: make(chan struct{})}
		close(x.listed)
		o.kinds[r], indexes[r] = x, x
	}
	for i := range 10 {
		name := fmt.Sprint("web-", i)
		set := map[string]string{"app": name}
		selector := labels.SelectorFromSet(set)
		o.set(indexes[deployments], "ml", name, &Object{Resource: deployments, Namespace: "ml", Name: name, UID: types.UID("d" + name), Selector: selector})
		o.set(indexes[replicaSets], "ml", name, &Object{Resource: replicaSets, Namespace: "ml", Name: name, UID: types.UID("r" + name), Selector: selector, Labels: set, Owner: types.UID("d" + name)})
		for j := range 1000 {
			pods.OnAdd(ownedPod("ml", fmt.Sprintf("%s-%04d", name, j), set, "ReplicaSet", name, "r"+name), true)
		}
	}
	var dst []*corev1.Pod
	b.ReportAllocs()
	for b.Loop() {
		var err error
		if dst, err = o.PodsOf(b.Context(), pods, dst[:0], deployments, types.NamespacedName{Namespace: "ml", Name: "web-3"}); err != nil || len(dst) != 1000 {
			b.Fatal(len(dst), err)
		}
	}
}

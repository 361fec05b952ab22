// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	toolscache "k8s.io/client-go/tools/cache"
)

func somePod(namespace, name string, set map[string]string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: set}}
}

// The index finds what looking at every pod finds, whatever came and went.
func TestPodsAgainstAList(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	pods, all := NewPods(), map[string]*corev1.Pod{}
	selectors := []string{"", "app=a", "app=b,tier=x", "app in (a,b)", "app in (a,b),tier!=x", "!app", "app", "tier notin (x)", "app=none"}
	for range 2000 {
		p := somePod(fmt.Sprint("ns", rng.IntN(3)), fmt.Sprint("p", rng.IntN(40)), map[string]string{})
		if n := rng.IntN(3); n > 0 {
			p.Labels["app"] = string(rune('a' + n - 1))
		}
		if rng.IntN(2) == 0 {
			p.Labels["tier"] = "x"
		}
		key := p.Namespace + "/" + p.Name
		switch {
		case rng.IntN(3) > 0:
			pods.OnUpdate(nil, p)
			all[key] = p
		case rng.IntN(2) == 0:
			pods.OnDelete(p)
			delete(all, key)
		default:
			pods.OnDelete(toolscache.DeletedFinalStateUnknown{Key: key, Obj: p})
			delete(all, key)
		}
		text := selectors[rng.IntN(len(selectors))]
		sel, err := labels.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		for _, ns := range []string{"", "ns0", "ns1"} {
			if diff := cmp.Diff(naive(all, ns, sel), names(pods.Select(ns, sel))); diff != "" {
				t.Fatalf("%q in %q (-list +index):\n%s", text, ns, diff)
			}
		}
	}
	for _, p := range all {
		pods.OnDelete(p)
	}
	if n := len(pods.byLabel) + len(pods.all) + pods.Len(); n != 0 {
		t.Errorf("%d entries are left of no pods", n)
	}
}

func naive(all map[string]*corev1.Pod, ns string, sel labels.Selector) []string {
	out := []string{}
	for key, p := range all {
		if (ns == "" || p.Namespace == ns) && sel.Matches(labels.Set(p.Labels)) {
			out = append(out, key)
		}
	}
	slices.SortFunc(out, func(a, b string) int {
		na, pa, _ := strings.Cut(a, "/")
		nb, pb, _ := strings.Cut(b, "/")
		return 2*strings.Compare(na, nb) + strings.Compare(pa, pb)
	})
	return out
}

func names(pods []*corev1.Pod) []string {
	out := []string{}
	for _, p := range pods {
		out = append(out, p.Namespace+"/"+p.Name)
	}
	return out
}

func TestPodsTellOfChanges(t *testing.T) {
	pods := NewPods()
	var told []string
	pods.OnChange(func(old, pod *corev1.Pod) { told = append(told, fmt.Sprint(old != nil, pod != nil)) })
	p := somePod("a", "b", nil)
	pods.OnAdd(p, true)
	pods.OnUpdate(p, p)
	pods.OnDelete(p)
	if want := []string{"false true", "true true", "true false"}; !slices.Equal(told, want) {
		t.Errorf("told of %v, want %v", told, want)
	}
}

func TestSlimPod(t *testing.T) {
	gpus := corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("2")}
	limits := gpus.DeepCopy()
	limits["cpu"] = resource.MustParse("1")
	ready := corev1.PodCondition{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Time{Time: time.Unix(9, 0)}}
	hosts := []corev1.HostIP{{IP: "1.2.3.1"}, {IP: "fd00::1"}}
	full := somePod("a", "b", map[string]string{"app": "x"})
	full.Annotations = map[string]string{"big": strings.Repeat("x", 1000), PodDeletionCost: "5"}
	full.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "m"}}
	full.Spec.NodeName, full.Spec.HostNetwork = "n", true
	full.Spec.Containers = []corev1.Container{{
		Name: "c", Image: "i", Env: []corev1.EnvVar{{Name: "E"}}, Ports: []corev1.ContainerPort{{ContainerPort: 1}},
		Resources: corev1.ResourceRequirements{Limits: limits},
	}}
	full.Status = corev1.PodStatus{Phase: corev1.PodRunning, PodIP: "1.2.3.4", HostIP: "1.2.3.1", HostIPs: hosts, Message: "m", Conditions: []corev1.PodCondition{ready, {Type: "Other"}}}
	got, err := slimPod(full)
	if err != nil {
		t.Fatal(err)
	}
	want := somePod("a", "b", map[string]string{"app": "x"})
	want.Annotations = map[string]string{PodDeletionCost: "5"}
	want.Spec.NodeName, want.Spec.HostNetwork = "n", true
	want.Spec.Containers = []corev1.Container{{
		Name: "c", Ports: []corev1.ContainerPort{{ContainerPort: 1}}, Resources: corev1.ResourceRequirements{Limits: gpus},
	}}
	want.Status = corev1.PodStatus{Phase: corev1.PodRunning, PodIP: "1.2.3.4", HostIP: "1.2.3.1", HostIPs: hosts, Conditions: []corev1.PodCondition{ready}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestShorten(t *testing.T) {
	f := func(in string, n int, want string) {
		t.Helper()
		if got := shorten(in, n); got != want || len(got) > n {
			t.Errorf("shorten(%q, %d) = %q, want %q", in, n, got, want)
		}
	}
	f("short", 10, "short")
	f("0123456789ab", 10, "0123456…")
	f("äöüäöüäöü", 10, "äöü…")
}

// SPDX-License-Identifier: Apache-2.0

package index

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	toolscache "k8s.io/client-go/tools/cache"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

func somePod(namespace, name string, set map[string]string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: set}}
}

// The index finds what looking at every pod finds, whatever came and went.
func TestPodsAgainstAList(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	pods, all := NewPods(), map[string]*corev1.Pod{}
	selectors := []string{"", "app=a", "app=b", "tier=x", "app in (a)", "app=b,tier=x", "app in (a,b)", "app in (a,b),tier!=x", "!app", "app", "tier notin (x)", "app=none"}
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
			found := pods.Select(ns, sel)
			if diff := cmp.Diff(naive(all, ns, sel), names(found)); diff != "" {
				t.Fatalf("%q in %q (-list +index):\n%s", text, ns, diff)
			}
			for i, p := range found {
				if all[p.Namespace+"/"+p.Name] != p {
					t.Fatalf("%q in %q gives an older version of %s", text, ns, p.Name)
				}
				found[i] = nil // the caller's own
			}
		}
	}
	for _, p := range all {
		pods.OnDelete(p)
	}
	if n := len(pods.byLabel) + len(pods.sorted) + len(pods.all) + pods.Len(); n != 0 {
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

func TestPodsReportChanges(t *testing.T) {
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

// A pod whose labels were not read is selected with all pods only: a selector that excludes
// a label does not select it, and nor does a workload's.
func TestPodsWithUnreadLabels(t *testing.T) {
	pods := NewPods()
	pods.OnAdd(somePod("ns", "honest", map[string]string{"app": "a"}), false)
	pods.OnAdd(somePod("ns", "unread", map[string]string{gpu.UnreadLabels: "true"}), false)
	for _, text := range []string{"app!=b", "app notin (b)", "!tier", "app=a", gpu.UnreadLabels, gpu.UnreadLabels + "=true", "app!=b,tier!=x", "app in (a)"} {
		selector, err := labels.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		for _, ns := range []string{"", "ns"} {
			if list := pods.Select(ns, selector); slices.ContainsFunc(list, func(p *corev1.Pod) bool { return p.Name == "unread" }) {
				t.Errorf("%q in %q selects the pod", text, ns)
			}
		}
	}
	if list := pods.Select("ns", labels.Everything()); len(list) != 2 {
		t.Errorf("%d pods are selected, want both", len(list))
	}
	if list := pods.Unread(); len(list) != 1 || list[0].Name != "unread" {
		t.Errorf("unread: %v", names(list))
	}
	pods.OnDelete(somePod("ns", "unread", nil))
	if list := pods.Unread(); len(list) != 0 {
		t.Errorf("a deleted pod is unread: %v", names(list))
	}
}

// SPDX-License-Identifier: Apache-2.0

package usage

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/window/series"
	"github.com/gpupilot/gpupilot/internal/window/stat"
	"github.com/gpupilot/gpupilot/test/podtest"
)

// What is remembered between two requests never outlives a change of a pod, of its
// resource claims or of what exporters claim.
func TestPodsAreCheckedOnEachRequest(t *testing.T) {
	r := newRig(t)
	since := r.now.Add(-time.Hour)
	web := func(name string, change ...func(*corev1.Pod)) *corev1.Pod { return pod("web", name, since, change...) }
	a, b := web("web-a", ready(since)), web("web-b", ready(since))
	dra := web("web-dra", ready(since), containers(), podtest.GeneratedClaim("", "claim"))
	r.pods.Pods = []*corev1.Pod{a, b, dra, web("web-starting"), web("web-waiting", ready(since), func(p *corev1.Pod) { p.Spec.NodeName = "" }), pod("other", "other", since, ready(since))}
	r.deps.Devices.ResourceClaimChanged(podtest.ResourceClaim("claim", "gpu.nvidia.com"), false)
	r.utilization(r.now, 60, r.pods.Pods...)
	m := r.Reader
	f := func(what, want string) {
		t.Helper()
		var got []string
		for name, s := range m.Values("ns", labels.SelectorFromSet(labels.Set{"app": "web"}), stat.Query{Field: gpu.GPUUtil, Now: r.now, MaxAge: 5 * time.Second}) {
			got = append(got, fmt.Sprint(name, "=", s.Value))
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%s: %q, want %q", what, got, want)
		}
	}
	f("the first request", "web-a=60 web-b=60 web-dra=60")
	f("the second request", "web-a=60 web-b=60 web-dra=60")

	r.deps.Devices.ResourceClaimChanged(podtest.ResourceClaim("claim", "nic.example.com"), false)
	f("a claim without GPUs", "web-a=60 web-b=60")
	r.deps.Devices.ResourceClaimChanged(podtest.ResourceClaim("claim", "gpu.nvidia.com"), false)
	f("a claim with a GPU", "web-a=60 web-b=60 web-dra=60")

	leaving := b.DeepCopy()
	leaving.DeletionTimestamp = &metav1.Time{Time: r.now}
	r.pods.Pods[1] = leaving
	f("a pod that terminates", "web-a=60 web-dra=60")
	moved := b.DeepCopy()
	moved.Spec.NodeName = "node-2"
	r.pods.Pods[1] = moved
	f("a pod on another node", "web-a=60 web-dra=60")
	r.pods.Pods = slices.Delete(r.pods.Pods, 1, 2)
	f("a pod that is gone", "web-a=60 web-dra=60")
	r.pods.Pods = slices.Insert(r.pods.Pods, 1, b)
	f("a pod that is back", "web-a=60 web-b=60 web-dra=60")

	r.now = r.now.Add(time.Second)
	forged := r.store.Target("agent", series.TargetLabels{Node: "node-1"})
	owner := []gpu.Owner{{Namespace: "ns", Pod: "web-a"}}
	forged.SetOwners(r.now, []series.DeviceOwners{{Device: "GPU-web-a", Owners: owner}, {Device: "GPU-web-b", Owners: owner}})
	f("an exporter that gives a pod more than it requests", "")
	r.store.Drop("agent")
	r.utilization(r.now, 70, a, b)
	f("a new exporter", "web-a=70 web-b=70")
}

func TestValuesEndEarly(t *testing.T) {
	r := newRig(t)
	since := r.now.Add(-time.Hour)
	r.pods.Pods = []*corev1.Pod{pod("web", "web-a", since, ready(since)), pod("web", "web-b", since, ready(since))}
	r.utilization(r.now, 60, r.pods.Pods...)
	m := r.Reader
	for range 3 {
		for name := range m.Values("ns", labels.Everything(), stat.Query{Field: gpu.GPUUtil, Now: r.now, MaxAge: time.Minute}) {
			if name != "web-a" {
				t.Errorf("%s came first", name)
			}
			break
		}
	}
}

func TestRosters(t *testing.T) {
	now := time.Now()
	x := newRosters()
	key := func(i int) rosterKey { return rosterKey{"ns", fmt.Sprint(i)} }
	use := func(i, members int, at time.Time) {
		r := x.take(key(i), at)
		r.members = make([]member, members)
		x.put(r)
	}
	f := func(what string, rosters, members int) {
		t.Helper()
		if len(x.byKey) != rosters || x.members != members {
			t.Errorf("%s: %d rosters with %d members, want %d with %d", what, len(x.byKey), x.members, rosters, members)
		}
	}
	use(1, 10, now)
	use(2, 5, now)
	use(1, 12, now)
	f("two selectors", 2, 17)
	first, second := x.take(key(1), now), x.take(key(1), now)
	if first == second || len(second.members) != 0 {
		t.Error("two requests share a roster")
	}
	x.put(second)
	x.put(first)
	f("two requests at a time", 2, 17)
	use(3, maxMembers, now)
	f("a selector of too many pods", 2, 17)
	use(3, 1, now.Add(rosterTTL+time.Second))
	f("selectors that are not used any more", 1, 1)
	for i := range maxRosters + 10 {
		use(i, 1, now.Add(rosterTTL+time.Second))
	}
	f("too many selectors", maxRosters, maxRosters)
}

// podMap finds pods as a big cluster does.
type podMap struct {
	*podtest.List
	pods map[[2]string]*corev1.Pod
}

func (m *podMap) Get(namespace, name string) (*corev1.Pod, bool) {
	pod, ok := m.pods[[2]string{namespace, name}]
	return pod, ok
}

// selectedPods are the pods of one selector, as the cluster's index has them.
type selectedPods struct{ podMap }

func (p *selectedPods) Select(string, labels.Selector) []*corev1.Pod {
	return slices.Clone(p.List.Pods)
}

// BenchmarkValues reads a field of 5,000 pods with one GPU each, eight to a node:
// as a request for the metric of all pods of a workload does, and pod by pod.
func BenchmarkValues(b *testing.B) {
	const pods = 5000
	r := newRig(b)
	since := r.now.Add(-time.Hour)
	all := &selectedPods{podMap{&podtest.List{}, map[[2]string]*corev1.Pod{}}}
	for first := 0; first < pods; first += 8 {
		node := fmt.Sprintf("node-%d", first/8)
		var held []*corev1.Pod
		for i := first; i < first+8; i++ {
			p := pod("web", fmt.Sprintf("web-6d4cf56db6-%05d", i), since, ready(since), func(p *corev1.Pod) { p.Spec.NodeName = node })
			held = append(held, p)
			all.podMap.pods[[2]string{"ns", p.Name}] = p
		}
		all.List.Pods = append(all.List.Pods, held...)
		r.utilizationBy("agent-"+node, node, r.now, 60, held...)
	}
	r.deps.Pods = all
	m := r.Reader
	selector := labels.SelectorFromSet(labels.Set{"app": "web"})
	q := stat.Query{Field: gpu.GPUUtil, Now: r.now, MaxAge: time.Minute}
	run := func(name string, count func() int) {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			before := podtest.CPUTime(b)
			for b.Loop() {
				if n := count(); n != pods {
					b.Fatalf("%d of %d pods", n, pods)
				}
			}
			b.ReportMetric(float64((podtest.CPUTime(b)-before).Nanoseconds())/float64(b.N)/pods, "cpu-ns/pod")
		})
	}
	run("list", func() (n int) {
		for range m.Values("ns", selector, q) {
			n++
		}
		return n
	})
	run("pod by pod", func() (n int) {
		for _, p := range all.Select("ns", selector) {
			if serving, _ := m.State("ns", p.Name); serving {
				if _, ok := m.Value("ns", p.Name, q); ok {
					n++
				}
			}
		}
		return n
	})
}

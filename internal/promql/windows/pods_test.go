// SPDX-License-Identifier: Apache-2.0

package windows

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	corev1 "k8s.io/api/core/v1"

	"github.com/gpupilot/gpupilot/internal/window/series"
)

// podCount returns the number of a namespace's pods in kube_pod_labels.
func (r *rig) podCount(namespace string) int {
	r.Helper()
	text := r.instant(fmt.Sprintf("count(kube_pod_labels{namespace=%q})", namespace), r.now)
	n := 0
	if text != "" {
		if _, err := fmt.Sscanf(text, "{} => %d", &n); err != nil {
			r.Fatalf("%s: %v", text, err)
		}
	}
	return n
}

// hostilePod has labels that no other pod has.
func (r *rig) hostilePod(i, labels int) *corev1.Pod {
	own := map[string]string{}
	for j := range labels {
		own[fmt.Sprintf("label-%d-%d", i, j)] = strings.Repeat("x", 63)
	}
	return r.pods.add("loud", fmt.Sprintf("pod-%d", i), "n1", own)
}

// The namespace whose pods take the most memory loses pods, whoever comes first. It gets
// them back when there is room.
func TestTheMemoryOfPodsIsBounded(t *testing.T) {
	r := newRig(t)
	r.store = New(Config{PodBytes: 1 << 20}, Deps{Windows: r.windows, Pods: r.pods})
	r.store.now = func() time.Time { return r.now }
	var loud []*corev1.Pod
	for i := range 100 {
		loud = append(loud, r.hostilePod(i, 100))
	}
	r.now = at(0)
	if n := r.podCount("loud"); n == 0 || n == 100 {
		t.Errorf("%d of 100 pods with 100 labels are kept in 1 MiB", n)
	}
	for i := range 100 {
		r.store.PodChanged(nil, r.pods.add("quiet", fmt.Sprintf("pod-%d", i), "n1", map[string]string{"app": "web"}))
	}
	if n := r.podCount("quiet"); n != 100 {
		t.Errorf("%d of 100 pods of the other namespace are kept", n)
	}
	// Pods that come and go take the memory of their namespace, too.
	for i := range 1000 {
		pod := r.hostilePod(1000+i, 100)
		delete(r.pods, "loud/"+pod.Name)
		r.store.PodChanged(nil, pod)
		r.store.PodChanged(pod, nil)
	}
	quiet := r.pods["quiet/pod-7"]
	delete(r.pods, "quiet/pod-7")
	r.store.PodChanged(quiet, nil)
	if n := r.podCount("quiet"); n != 99 {
		t.Errorf("%d of 99 pods of the other namespace are kept", n)
	}
	if d := cmp.Diff(`{} => 1 @[`, r.instant(`count(kube_pod_labels{pod="pod-7",namespace="quiet"})`, at(-1))[:10]); d != "" {
		t.Error("the deleted pod has no history", d)
	}
	b := &r.store.pods.budget
	if b.total > b.limit || b.refused == 0 {
		t.Errorf("%d bytes of %d, %d pods refused", b.total, b.limit, b.refused)
	}
	for _, pod := range loud[5:] {
		delete(r.pods, "loud/"+pod.Name)
		r.store.PodChanged(pod, nil)
	}
	r.now = r.now.Add(r.windows.Span() + time.Minute)
	r.store.pods.prune(r.now)
	if n := r.podCount("loud"); n != 5 {
		t.Errorf("%d of 5 pods are kept after the others were deleted", n)
	}
	sum := int64(0)
	for _, x := range r.store.pods.pods {
		sum += x.bytes
	}
	if b.total != sum || b.bytes["loud"]+b.bytes["quiet"] != sum || b.short {
		t.Errorf("%d bytes are charged, %d are in use", b.total, sum)
	}
	r.store.pods.drop()
	if b.total != 0 || len(b.bytes) != 0 {
		t.Errorf("%d bytes are charged for an empty index", b.total)
	}
}

// metric returns a metric of the store's own; its label's value is a part of the name.
func (r *rig) metric(name string) float64 {
	r.Helper()
	r.store.settle(r.now)
	ch := make(chan prometheus.Metric, 100)
	r.store.Collect(ch)
	close(ch)
	for m := range ch {
		var x dto.Metric
		if err := m.Write(&x); err != nil {
			r.Fatal(err)
		}
		of := strings.Split(m.Desc().String(), `"`)[1]
		for _, l := range x.GetLabel() {
			of += "/" + l.GetValue()
		}
		if of == name {
			return x.GetGauge().GetValue() + x.GetCounter().GetValue()
		}
	}
	return -1
}

func TestMeters(t *testing.T) {
	r := newRig(t)
	r.pods.add("ml", "a", "n1", nil)
	r.pods.add("ml", "elsewhere", "n2", nil)
	n := r.windows.Target("agent/n1", series.TargetLabels{Node: "n1"})
	r.page(n, at(0), util("a", 10), ownLine("gpupilot_x", 1, "namespace", "ml", "pod", "elsewhere"), ownLine("gpupilot_y", 1, "namespace", "ml", "pod", "elsewhere"))
	r.now = at(30)
	for i := range maxWantedEach + 7 {
		r.store.Want(fmt.Sprint("name", i))
	}
	r.store.Hold("rules", []string{"name1", "other"})
	r.instant("kube_pod_labels", r.now)
	for name, want := range map[string]float64{
		"gpupilot_query_names": maxWantedEach + 1, "gpupilot_query_names_refused_total": 7,
		"gpupilot_query_contradicted_series": 2, "gpupilot_query_contradicted_target_series/agent/n1": 2,
		"gpupilot_query_pods": 2, "gpupilot_query_pods_memory_limit_bytes": 64 << 20, "gpupilot_query_pods_refused_total": 0,
	} {
		if got := r.metric(name); got != want {
			t.Errorf("%s is %v, want %v", name, got, want)
		}
	}
	if got := r.metric("gpupilot_query_pods_memory_bytes"); got < 1000 {
		t.Errorf("two pods take %v bytes", got)
	}
	r.page(n, at(31), util("a", 10)) // the contradiction ends
	r.now = at(31)
	if got := r.metric("gpupilot_query_contradicted_series"); got != 0 {
		t.Errorf("%v series are contradicted by an honest page", got)
	}
}

// The namespaces of series, of exporters' claims and of pods with GPUs are listed.
func TestNamespaces(t *testing.T) {
	r := newRig(t)
	r.pods.add("ml", "a", "n1", nil)
	r.pods.add("idle", "b", "n1", nil)
	r.pods.add("cpu", "c", "n1", nil).Spec.Containers = nil
	r.page(r.windows.Target("n1", series.TargetLabels{Node: "n1"}), at(0), util("a", 1), ownLine("x", 1, "namespace", "claimed", "pod", "p"))
	r.page(r.windows.Target("pod", series.TargetLabels{Namespace: "web", Pod: "p"}), at(0), ownLine("y", 1, "namespace", "web", "pod", "p"))
	if d := cmp.Diff([]string{"claimed", "idle", "ml", "web"}, r.store.Namespaces()); d != "" {
		t.Error(d)
	}
}

// The count of contradicted series follows pods, pages and targets without a walk over
// the claims that are settled.
func TestTally(t *testing.T) {
	r := newRig(t)
	pod := r.pods.add("ml", "a", "n1", nil)
	n := r.windows.Target("agent/n1", series.TargetLabels{Node: "n1"})
	r.page(n, at(0), util("a", 10), ownLine("gpupilot_x", 1, "namespace", "ml", "pod", "a"))
	r.now = at(30)
	f := func(when string, series float64, open int) {
		t.Helper()
		if got := r.metric("gpupilot_query_contradicted_series"); got != series {
			t.Errorf("%s: %v series are contradicted, want %v", when, got, series)
		}
		if got := len(r.store.index.tally.unsettled()); got != open {
			t.Errorf("%s: %d claims are not settled, want %d", when, got, open)
		}
	}
	f("an honest page", 0, 0)
	r.store.PodChanged(pod, r.pods.add("ml", "a", "n2", nil))
	f("the pod's successor runs elsewhere", 2, 1)
	pod = r.pods.add("ml", "a", "n1", nil)
	r.store.PodChanged(nil, pod)
	f("the pod is back", 0, 0)
	delete(r.pods, "ml/a")
	r.store.PodChanged(pod, nil)
	f("the pod is gone", 2, 1)
	r.windows.Drop("agent/n1")
	f("the exporter is gone", 0, 0)
	if n := len(r.store.index.tally.targets); n != 0 {
		t.Errorf("%d exporters are remembered", n)
	}
}

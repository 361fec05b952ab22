// SPDX-License-Identifier: Apache-2.0

package windows

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/storage"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	k8slabels "k8s.io/apimachinery/pkg/labels"

	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/window/series"
)

var start = time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC)

// podList is Pods over a list.
type podList map[string]*corev1.Pod

func (l podList) Get(namespace, name string) (*corev1.Pod, bool) {
	p, ok := l[namespace+"/"+name]
	return p, ok
}

func (l podList) Select(string, k8slabels.Selector) (out []*corev1.Pod) {
	for _, p := range l {
		out = append(out, p)
	}
	return out
}

func (l podList) add(namespace, name, node string, podLabels map[string]string) *corev1.Pod {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: "u", Labels: podLabels, CreationTimestamp: metav1.NewTime(start.Add(-time.Hour))},
		Spec: corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{
			Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("1")}},
		}}},
		Status: corev1.PodStatus{Phase: corev1.PodRunning},
	}
	l[namespace+"/"+name] = pod
	return pod
}

// rig is a store over windows that a test fills.
type rig struct {
	*testing.T
	windows *series.Store
	pods    podList
	store   *Store
	storage storage.Queryable // that queries read; nil: the store
	now     time.Time
	engine  *promql.Engine
}

func newRig(t *testing.T) *rig {
	r := &rig{T: t, windows: series.New(series.Config{}), pods: podList{}, now: start}
	r.store = New(Config{}, Deps{Windows: r.windows, Pods: r.pods})
	r.store.now = func() time.Time { return r.now }
	r.engine = promql.NewEngine(promql.EngineOpts{LookbackDelta: DefaultLookback, MaxSamples: 1e7, Timeout: time.Minute, Logger: slog.New(slog.DiscardHandler)})
	return r
}

func (r *rig) queryable() storage.Queryable {
	if r.storage != nil {
		return r.storage
	}
	return r.store
}

// line is a series of a page.
type line struct {
	labels []string
	field  gpu.FieldID // 0: a series of its own
	scale  float64
	device string
	value  float64
}

// page stores a page of a target. All lines of a page that follow the first are shown
// until the next page.
func (r *rig) page(t *series.Target, at time.Time, lines ...line) {
	r.Helper()
	var list []series.Exposed
	var b series.Batch
	for _, x := range lines {
		set := labels.FromStrings(x.labels...)
		k := series.Key{Line: string(set.Bytes(nil))}
		e := series.Exposed{Labels: set, Scale: 1}
		if x.field != 0 {
			k, e.Field, e.Scale = series.Key{Device: x.device, Field: x.field}, x.field, x.scale
		}
		ref, ok := t.Ref(k)
		if !ok {
			r.Fatalf("no ref for %v", x.labels)
		}
		e.Ref = ref
		list = append(list, e)
		b.Add(ref, x.value*e.Scale)
	}
	if !t.Expose(at, list) {
		r.Fatal("not exposed as a whole")
	}
	if _, err := t.Append(at, &b); err != nil {
		r.Fatal(err)
	}
}

// instant returns the result of a query as text.
func (r *rig) instant(query string, at time.Time) string {
	r.Helper()
	q, err := r.engine.NewInstantQuery(context.Background(), r.queryable(), nil, query, at)
	if err != nil {
		r.Fatal(err)
	}
	defer q.Close()
	res := q.Exec(context.Background())
	if res.Err != nil {
		r.Fatalf("%s: %v", query, res.Err)
	}
	lines := strings.Split(res.String(), "\n")
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

func (r *rig) ranged(query string, from, to time.Time, step time.Duration) string {
	r.Helper()
	q, err := r.engine.NewRangeQuery(context.Background(), r.queryable(), nil, query, from, to, step)
	if err != nil {
		r.Fatal(err)
	}
	defer q.Close()
	res := q.Exec(context.Background())
	if res.Err != nil {
		r.Fatalf("%s: %v", query, res.Err)
	}
	return res.String()
}

func (r *rig) wants(query string, at time.Time, want string) {
	r.Helper()
	if d := cmp.Diff(want, r.instant(query, at)); d != "" {
		r.Errorf("%s at +%v: (-want +got)\n%s", query, at.Sub(start), d)
	}
}

func util(pod string, v float64) line {
	l := line{[]string{"__name__", "DCGM_FI_DEV_GPU_UTIL", "gpu", "0", "UUID", "GPU-0", "job", "agent", "instance", "i", "node", "n1"}, gpu.GPUUtil, 1, "GPU-0", v}
	if pod != "" {
		l.labels = append(l.labels, "namespace", "ml", "pod", pod)
	}
	return l
}

func ownLine(name string, v float64, pairs ...string) line {
	return line{labels: append([]string{"__name__", name}, pairs...), value: v}
}

func at(seconds float64) time.Time { return start.Add(time.Duration(seconds * float64(time.Second))) }

func msOf(t time.Time) int64 { return t.UnixMilli() }

func TestASeriesHasItsLabelsAndItsAge(t *testing.T) {
	r := newRig(t)
	r.pods.add("ml", "a", "n1", nil)
	n := r.windows.Target("n1", series.TargetLabels{Node: "n1", Instance: "i", Job: "agent"})
	for i := range 4 {
		r.page(n, at(float64(i)), util("a", float64(10*i)), ownLine("gpupilot_x", 7, "node", "n1"))
	}
	r.now = at(3)
	labelled := `{UUID="GPU-0", __name__="DCGM_FI_DEV_GPU_UTIL", gpu="0", instance="i", job="agent", namespace="ml", node="n1", pod="a"}`
	r.wants("DCGM_FI_DEV_GPU_UTIL", at(3), fmt.Sprintf("%s => 30 @[%d]", labelled, msOf(at(3))))
	r.wants("DCGM_FI_DEV_GPU_UTIL", at(2.5), fmt.Sprintf("%s => 20 @[%d]", labelled, msOf(at(2.5))))
	r.wants("DCGM_FI_DEV_GPU_UTIL", at(8), fmt.Sprintf("%s => 30 @[%d]", labelled, msOf(at(8))))
	r.wants("DCGM_FI_DEV_GPU_UTIL", at(8.1), "")
	r.wants(`sum(rate(DCGM_FI_DEV_GPU_UTIL[3s]))`, at(3), fmt.Sprintf("{} => 10 @[%d]", msOf(at(3))))
	r.wants(`{__name__=~"gpupilot.*"}`, at(3), fmt.Sprintf(`{__name__="gpupilot_x", node="n1"} => 7 @[%d]`, msOf(at(3))))
	r.wants(`up`, at(3), fmt.Sprintf(`{__name__="up", instance="i", job="agent", node="n1"} => 1 @[%d]`, msOf(at(3))))
	n.Fail(at(4))
	r.wants(`up`, at(4), fmt.Sprintf(`{__name__="up", instance="i", job="agent", node="n1"} => 0 @[%d]`, msOf(at(4))))
}

func TestASeriesThatLeftThePageIsStale(t *testing.T) {
	r := newRig(t)
	r.pods.add("ml", "a", "n1", nil)
	r.pods.add("ml", "b", "n1", nil)
	n := r.windows.Target("n1", series.TargetLabels{Node: "n1"})
	r.page(n, at(0), util("a", 10))
	r.page(n, at(1), util("a", 11))
	r.page(n, at(2), util("b", 12))
	r.page(n, at(3), util("", 13))
	r.now = at(3)
	r.wants(`sum by(pod)(DCGM_FI_DEV_GPU_UTIL)`, at(1.9), fmt.Sprintf(`{pod="a"} => 11 @[%d]`, msOf(at(1.9))))
	r.wants(`sum by(pod)(DCGM_FI_DEV_GPU_UTIL)`, at(2), fmt.Sprintf(`{pod="b"} => 12 @[%d]`, msOf(at(2))))
	r.wants(`sum by(pod)(DCGM_FI_DEV_GPU_UTIL)`, at(3), fmt.Sprintf(`{} => 13 @[%d]`, msOf(at(3))))
	got := r.ranged(`sum by(pod)(DCGM_FI_DEV_GPU_UTIL)`, at(0), at(3), time.Second)
	want := fmt.Sprintf("{} =>\n13 @[%d]\n{pod=\"a\"} =>\n10 @[%d]\n11 @[%d]\n{pod=\"b\"} =>\n12 @[%d]", msOf(at(3)), msOf(at(0)), msOf(at(1)), msOf(at(2)))
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

func TestADeviceThatIsNotReadAnewKeepsItsValue(t *testing.T) {
	r := newRig(t)
	n := r.windows.Target("n1", series.TargetLabels{Node: "n1"})
	r.page(n, at(0), util("", 10))
	var b series.Batch
	if _, err := n.Append(at(1), &b); err != nil { // the page shows the line, and the device was not read
		t.Fatal(err)
	}
	r.now = at(1)
	r.wants(`sum(DCGM_FI_DEV_GPU_UTIL)`, at(1), fmt.Sprintf(`{} => 10 @[%d]`, msOf(at(1))))
	r.wants(`sum(DCGM_FI_DEV_GPU_UTIL)`, at(6), "")
}

func TestAnyProfilesNameFindsAField(t *testing.T) {
	r := newRig(t)
	n := r.windows.Target("n1", series.TargetLabels{Node: "n1"})
	r.page(n, at(0), util("", 55))
	r.now = at(0)
	r.wants(`sum by(__name__)(dcgm_gpu_utilization)`, at(0), fmt.Sprintf(`{__name__="dcgm_gpu_utilization"} => 55 @[%d]`, msOf(at(0))))
	r.wants(`sum(DCGM_FI_DEV_GPU_UTIL_RATIO)`, at(0), fmt.Sprintf(`{} => 0.55 @[%d]`, msOf(at(0))))
	r.wants(`{__name__=~"dcgm_gpu.*"}`, at(0), "")
	m := r.windows.Target("n2", series.TargetLabels{Node: "n2"})
	r.page(m, at(0), line{[]string{"__name__", "DCGM_FI_DEV_GPU_UTIL_RATIO", "node", "n2"}, gpu.GPUUtil, 100, "GPU-1", 0.25})
	// A target with the exact name needs no other one.
	both := util("", 30)
	both.labels[11], both.device = "n3", "GPU-3"
	r.page(r.windows.Target("n3", series.TargetLabels{Node: "n3"}), at(0), both,
		line{[]string{"__name__", "DCGM_FI_DEV_GPU_UTIL_RATIO", "node", "n3"}, gpu.GPUUtil, 100, "GPU-4", 0.4})
	r.wants(`sum(DCGM_FI_DEV_GPU_UTIL_RATIO{node="n3"})`, at(0), fmt.Sprintf(`{} => 0.4 @[%d]`, msOf(at(0))))
	r.wants(`sum(DCGM_FI_DEV_GPU_UTIL{node="n3"})`, at(0), fmt.Sprintf(`{} => 30 @[%d]`, msOf(at(0))))
	r.windows.Drop("n3")
	r.wants(`sum by(node)(DCGM_FI_DEV_GPU_UTIL_RATIO)`, at(0), fmt.Sprintf("{node=\"n1\"} => 0.55 @[%d]\n{node=\"n2\"} => 0.25 @[%d]", msOf(at(0)), msOf(at(0))))
}

func TestAContradictedPodIsNotShownAsThatPod(t *testing.T) {
	r := newRig(t)
	r.pods.add("ml", "a", "other", nil)
	n := r.windows.Target("n1", series.TargetLabels{Node: "n1"})
	r.page(n, at(0), util("a", 90))
	r.now = at(20)
	r.page(n, at(20), util("a", 90))
	r.wants(`sum by(namespace,pod,exported_namespace,exported_pod,contradicted_namespace,contradicted_pod)(DCGM_FI_DEV_GPU_UTIL)`, at(20),
		fmt.Sprintf(`{contradicted_namespace="ml", contradicted_pod="a"} => 90 @[%d]`, msOf(at(20))))
	for _, label := range []string{`namespace="ml"`, `pod="a"`, `exported_namespace="ml"`, `exported_pod="a"`} {
		r.wants(`DCGM_FI_DEV_GPU_UTIL{`+label+`}`, at(20), "")
	}
	moved := r.pods.add("ml", "a", "n1", nil)
	r.store.PodChanged(nil, moved)
	r.wants(`sum by(pod)(DCGM_FI_DEV_GPU_UTIL)`, at(20), fmt.Sprintf(`{pod="a"} => 90 @[%d]`, msOf(at(20))))
}

func TestTheJoinOfTheWalkthrough(t *testing.T) {
	r := newRig(t)
	r.pods.add("ml", "a", "n1", map[string]string{"app": "cuda-test", "app.kubernetes.io/partOf": "x"})
	r.pods.add("ml", "b", "n1", map[string]string{"app": "other"})
	n := r.windows.Target("n1", series.TargetLabels{Node: "n1"})
	b := util("b", 10)
	b.device = "GPU-1"
	b.labels[5] = "GPU-1"
	r.page(n, at(0), util("a", 90), b)
	r.now = at(0)
	const join = `avg(max by(node,pod,namespace)(dcgm_gpu_utilization) * on(pod) group_left(label_app) max by(pod,label_app)(kube_pod_labels{label_app="cuda-test"}))`
	r.wants(join, at(0), fmt.Sprintf(`{} => 90 @[%d]`, msOf(at(0))))
	r.wants(`kube_pod_labels{pod="a"}`, at(0), fmt.Sprintf(
		`{__name__="kube_pod_labels", instance="localhost", job="gpupilot-controller", label_app="cuda-test", label_app_kubernetes_io_part_of="x", namespace="ml", pod="a", uid="u"} => 1 @[%d]`, msOf(at(0))))
	r.wants(`sum(kube_pod_status_phase{phase="Running"})`, at(0), fmt.Sprintf(`{} => 2 @[%d]`, msOf(at(0))))
	r.wants(`count(kube_pod_info{node="n1"})`, at(0), fmt.Sprintf(`{} => 2 @[%d]`, msOf(at(0))))
	gone := r.pods["ml/a"]
	delete(r.pods, "ml/a")
	r.now = at(5)
	r.store.PodChanged(gone, nil)
	r.wants(`kube_pod_labels{pod="a"}`, at(5), "")
	r.wants(`sum(kube_pod_labels{pod="a"})`, at(4), fmt.Sprintf(`{} => 1 @[%d]`, msOf(at(4))))
}

// SPDX-License-Identifier: Apache-2.0

package windows

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/window/series"
	"github.com/gpupilot/gpupilot/test/logtest"
)

// Of an exporter's claims only what the API server confirms is shown as the pod's.
func TestClaims(t *testing.T) {
	f := func(what string, pod func(p *corev1.Pod), devices int, labels []string, at2 time.Time, shown string) {
		t.Helper()
		r := newRig(t)
		r.store = New(Config{}, Deps{Windows: r.windows, Pods: r.pods, Holder: func(*corev1.Pod) series.Holder { return series.Holder{Devices: devices} }})
		r.store.now = func() time.Time { return r.now }
		if pod != nil {
			pod(r.pods.add("ml", "a", "n1", nil))
		}
		n := r.windows.Target("n1", series.TargetLabels{Node: "n1"})
		r.page(n, at(0), ownLine("x", 1, labels...), util("a", 1))
		r.page(n, at2, ownLine("x", 1, labels...), util("a", 1))
		n.SetOwners(at2, []series.DeviceOwners{{Device: "GPU-0", Owners: []gpu.Owner{{Namespace: "ml", Pod: "a"}}}})
		r.now = at2
		if got, _, _ := strings.Cut(r.instant("x", at2), " => "); got != shown {
			t.Errorf("%s: %s, want %s", what, got, shown)
		}
	}
	same := func(*corev1.Pod) {}
	claim := []string{"namespace", "ml", "pod", "a", "container", "c"}
	const good, bad = `{__name__="x", container="c", namespace="ml", pod="a"}`, `{__name__="x", contradicted_container="c", contradicted_namespace="ml", contradicted_pod="a"}`
	slack, late := at(claimSlack.Seconds()-0.001), at(claimSlack.Seconds())
	f("the pod is on the node", same, 1, claim, late, good)
	f("the pod has fewer devices", same, 0, claim, late, bad)
	f("the pod's devices are not known", same, -1, claim, late, good)
	f("the pod is not known yet", nil, 1, claim, slack, good)
	f("there is no such pod", nil, 1, claim, late, bad)
	f("the pod is on another node", func(p *corev1.Pod) { p.Spec.NodeName = "n2" }, 1, claim, late, bad)
	young := func(p *corev1.Pod) { p.Spec.NodeName, p.CreationTimestamp = "", metav1.NewTime(at(0)) }
	f("the pod is not bound yet", young, 1, claim, slack, good)
	f("the pod is not bound", young, 1, claim, late, bad)
	f("a namespace without a pod", same, 1, []string{"namespace", "ml"}, late, `{__name__="x", contradicted_namespace="ml"}`)
	f("a pod without a namespace is no tenant's", same, 1, []string{"pod", "a"}, late, `{__name__="x", pod="a"}`)
	f("a label that is taken", nil, 1, append(claim, "contradicted_pod", "b"), late, `{__name__="x", contradicted_container="c", contradicted_contradicted_pod="a", contradicted_namespace="ml", contradicted_pod="b"}`)
	f("no claim", nil, 1, []string{"node", "n1"}, late, `{__name__="x", node="n1"}`)
}

// A query that asks for exported_pod and so on finds the owners that the API server confirms,
// under both names. Pods' own pages and idle GPUs have no such owner.
func TestOwnersUnderBothNames(t *testing.T) {
	r := newRig(t)
	r.pods.add("ml", "a", "n1", nil)
	r.pods.add("ml", "b", "other", nil) // is contradicted
	n := r.windows.Target("n1", series.TargetLabels{Node: "n1"})
	lines := []line{util("a", 90), util("b", 10), util("", 5)}
	for i := range lines {
		lines[i].device, lines[i].labels[5] = fmt.Sprint("GPU-", i), fmt.Sprint("GPU-", i)
	}
	lines[0].labels = append(lines[0].labels, "container", "c")
	r.page(n, at(0), lines...)
	r.page(n, at(20), lines...)
	pod := r.windows.Target("p", series.TargetLabels{Node: "n1", Namespace: "evil", Pod: "p"})
	r.page(pod, at(20), ownLine("requests", 7, "namespace", "evil", "pod", "p", "exported_namespace", "ml", "exported_pod", "a"))
	r.now = at(20)
	f := func(query, want string) {
		t.Helper()
		if want != "" {
			want += fmt.Sprintf(" @[%d]", msOf(at(20)))
		}
		r.wants(query, at(20), want)
	}
	const both = `{UUID="GPU-0", __name__="DCGM_FI_DEV_GPU_UTIL", container="c", exported_container="c", exported_namespace="ml", exported_pod="a", gpu="0", instance="i", job="agent", namespace="ml", node="n1", pod="a"}`
	f(`DCGM_FI_DEV_GPU_UTIL{exported_namespace!="",exported_container!="",exported_pod!=""}`, both+" => 90")
	f(`DCGM_FI_DEV_GPU_UTIL{exported_namespace="ml",namespace="ml",exported_pod=~"a|b"}`, both+" => 90")
	f(`sum by(exported_pod,pod)(DCGM_FI_DEV_GPU_UTIL > 50)`, `{pod="a"} => 90`) // asks for it elsewhere: the engine's part
	f(`sum by(exported_pod)(DCGM_FI_DEV_GPU_UTIL_RATIO{exported_namespace="ml"})`, `{exported_pod="a"} => 0.9`)
	f(`sum by(exported_pod)(DCGM_FI_DEV_GPU_UTIL{exported_namespace=""})`, `{} => 15`)
	f(`sum by(exported_pod)(DCGM_FI_DEV_GPU_UTIL{exported_pod!="x"}) > 50`, `{exported_pod="a"} => 90`)
	f(`DCGM_FI_DEV_GPU_UTIL{exported_namespace="evil"}`, "")
	f(`DCGM_FI_DEV_GPU_UTIL{exported_container="c",pod="b"}`, "")
	// A page of a pod has the label as it wrote it, and no series of GPUs.
	f(`sum by(namespace,exported_namespace)({exported_pod="a",__name__=~"requests|DCGM.*"} < 8)`, `{exported_namespace="ml", namespace="evil"} => 7`)
	q, err := r.store.Querier(msOf(at(19)), msOf(at(20)))
	if err != nil {
		t.Fatal(err)
	}
	if got, _, err := q.LabelValues(t.Context(), "exported_pod", nil, selectorOf(t, "DCGM_FI_DEV_GPU_UTIL")...); err != nil || !slices.Equal(got, []string{"a"}) {
		t.Errorf("the values of exported_pod: %v, %v", got, err)
	}
}

// The series of pods are those of kube-state-metrics.
func TestPodsAsKubeStateMetrics(t *testing.T) {
	r := newRig(t)
	yes := true
	pod := r.pods.add("ml", "a", "n1", map[string]string{"app.kubernetes.io/name": "x", "app_kubernetes_io_name": "y", "appName": "z", "empty": ""})
	pod.OwnerReferences = []metav1.OwnerReference{{Kind: "Node", Name: "n"}, {Kind: "ReplicaSet", Name: "web-1", Controller: &yes}}
	pod.Status.PodIP, pod.Status.HostIP, pod.Spec.HostNetwork = "10.0.0.1", "10.1.0.1", true
	r.pods.add("ml", "orphan", "n1", nil)
	r.pods.add("ml", "cpu", "n1", nil).Spec.Containers = nil
	r.now = at(0)
	tail := fmt.Sprintf(` => 1 @[%d]`, msOf(at(0)))
	f := func(query, want string) {
		t.Helper()
		r.wants(query, at(0), want)
	}
	const own = `instance="localhost", job="gpupilot-controller"`
	f(`kube_pod_labels{pod="a"}`, `{__name__="kube_pod_labels", `+own+`, label_app_kubernetes_io_name_conflict1="x", label_app_kubernetes_io_name_conflict2="y", label_app_name="z", namespace="ml", pod="a", uid="u"}`+tail)
	f(`kube_pod_owner{pod="a"}`, `{__name__="kube_pod_owner", `+own+`, namespace="ml", owner_is_controller="true", owner_kind="ReplicaSet", owner_name="web-1", pod="a", uid="u"}`+tail)
	f(`kube_pod_owner{pod="orphan"}`, `{__name__="kube_pod_owner", `+own+`, namespace="ml", pod="orphan", uid="u"}`+tail)
	f(`kube_pod_info{pod="a"}`, `{__name__="kube_pod_info", created_by_kind="ReplicaSet", created_by_name="web-1", host_ip="10.1.0.1", host_network="true", `+own+`, namespace="ml", node="n1", pod="a", pod_ip="10.0.0.1", uid="u"}`+tail)
	f(`kube_pod_info{pod="cpu"}`, "")
	f(`count by (phase) (kube_pod_status_phase{pod="a"} == 1)`, `{phase="Running"}`+tail)
	f(`count(kube_pod_status_phase{pod="a"} == 0)`, fmt.Sprintf(`{} => 4 @[%d]`, msOf(at(0))))
	// A change of the pod is seen, and its series have a sample in each interval until it ends.
	changed := *pod
	changed.Labels = map[string]string{"app": "new"}
	r.pods["ml/a"] = &changed
	r.store.PodChanged(pod, &changed)
	f(`count by (label_app, label_app_name) (kube_pod_labels{pod="a"})`, `{label_app="new"}`+tail)
	delete(r.pods, "ml/a")
	r.now = at(10)
	r.store.PodChanged(&changed, nil)
	r.now = at(20)
	if got, want := r.ranged(`count(kube_pod_labels{pod="a"})`, at(8), at(12), time.Second), fmt.Sprintf("{} =>\n1 @[%d]\n1 @[%d]", msOf(at(8)), msOf(at(9))); got != want {
		t.Errorf("a deleted pod: %s, want %s", got, want)
	}
	f(`sum(count_over_time(kube_pod_labels{pod="orphan"}[1m]))`, fmt.Sprintf(`{} => 60 @[%d]`, msOf(at(0))))
}

// Metrics without a page are described.
func TestHelp(t *testing.T) {
	f := func(name, want string) {
		t.Helper()
		got, ok := HelpOf(name)
		if ok != (want != "") || !strings.HasPrefix(got, want) {
			t.Errorf("%s: %q", name, got)
		}
	}
	f("kube_pod_labels", "Kubernetes labels converted")
	f("kube_pod_status_phase", "The pods current phase.")
	f("up", "1 if the last scrape")
	f("scrape_samples_scraped", "Values of the target's page.")
	f("DCGM_FI_DEV_GPU_UTIL", "")
}

// families is a Gatherer of fixed families.
type families struct {
	mu   sync.Mutex
	list []*dto.MetricFamily
	err  error
}

func (f *families) Gather() ([]*dto.MetricFamily, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.list, f.err
}

// Run tells the names that are wanted as soon as they are, drops those that are not, and
// collects the controller's own metrics.
func TestRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log logtest.Buffer
		var told []string
		name, sum, count, q, half := "own", 4.5, uint64(3), 0.5, 1.5
		own := &families{err: errors.New("no metrics")}
		windows := series.New(series.Config{})
		s := New(Config{Keep: KeepUsed, Instance: "me"}, Deps{
			Windows: windows, Own: own, Log: slog.New(slog.NewTextHandler(&log, nil)),
			SetNames: func(all bool, names []string, _ map[string][]string) { told = append(told, fmt.Sprint(all, names)) },
		})
		if job, instance := s.OwnLabels(); job != "gpupilot-controller" || instance != "me" {
			t.Errorf("the labels are %s, %s", job, instance)
		}
		s.Hold("rules", []string{"own_sum", "own"})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { defer close(ended); s.Run(ctx) }()
		synctest.Wait()
		s.Want("", "x")
		synctest.Wait()
		time.Sleep(1500 * time.Millisecond)
		synctest.Wait()
		if text := log.Take(); !strings.Contains(text, "own metrics are not collected") {
			t.Errorf("the log is %s", text)
		}
		own.mu.Lock()
		own.err = errors.New("one of them") // the others are collected
		own.list = []*dto.MetricFamily{{Name: &name, Metric: []*dto.Metric{
			{Summary: &dto.Summary{SampleSum: &sum, SampleCount: &count, Quantile: []*dto.Quantile{{Quantile: &q, Value: &half}}}},
		}}, {Name: &name, Metric: []*dto.Metric{{Untyped: &dto.Untyped{Value: &sum}}, {Untyped: &dto.Untyped{Value: &half}}}}}
		own.mu.Unlock()
		time.Sleep(2 * time.Second)
		synctest.Wait()
		querier, _ := s.Querier(time.Now().Add(-time.Minute).UnixMilli(), time.Now().UnixMilli())
		var got []string
		for set := querier.Select(t.Context(), true, nil, selectorOf(t, `{__name__=~"own.*"}`)...); set.Next(); {
			it := set.At().Iterator(nil)
			it.Next()
			_, v := it.At()
			got = append(got, fmt.Sprint(set.At().Labels(), " ", v))
		}
		// own_count is not wanted, and of two series with the same labels the first counts.
		want := []string{`{__name__="own", instance="me", job="gpupilot-controller"} 4.5`, `{__name__="own", instance="me", job="gpupilot-controller", quantile="0.5"} 1.5`, `{__name__="own_sum", instance="me", job="gpupilot-controller"} 4.5`}
		if d := cmp.Diff(want, got); d != "" {
			t.Error(d)
		}
		time.Sleep(useTTL + checkInterval)
		cancel()
		<-ended
		if want := []string{"false [own own_sum]", "false [own own_sum x]", "false [own own_sum]"}; !slices.Equal(told, want) {
			t.Errorf("told were %q, want %q", told, want)
		}
	})
}

// What is described is what is collected.
func TestDescriptions(t *testing.T) {
	r := newRig(t)
	registry := prometheus.NewPedanticRegistry()
	if err := registry.Register(r.store); err != nil {
		t.Fatal(err)
	}
	list, err := registry.Gather()
	if err != nil || len(list) != 8 { // no exporter is contradicted
		t.Errorf("%d metrics, %v", len(list), err)
	}
}

// A name that a holder or a query wants is wanted, and so are prefixes of it.
func TestWanted(t *testing.T) {
	s := New(Config{Keep: KeepUsed}, Deps{Windows: series.New(series.Config{})})
	s.Hold("rules", []string{"held_x"})
	s.Want("used_x")
	for name, want := range map[string]bool{"held_x": true, "used_x": true, "held": false, "other": false} {
		if got := s.wanted.has(name); got != want {
			t.Errorf("%s is wanted: %v", name, got)
		}
	}
	for prefix, want := range map[string]bool{"held": true, "used_": true, "x": false} {
		if got := s.wanted.hasPrefix(prefix); got != want {
			t.Errorf("something with %s is wanted: %v", prefix, got)
		}
	}
	s.Hold("rules", nil)
	if s.wanted.has("held_x") {
		t.Error("a name is wanted that nobody holds")
	}
}

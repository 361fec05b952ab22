// SPDX-License-Identifier: Apache-2.0

package metricsapi

import (
	"iter"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/metrics/pkg/apis/custom_metrics"
	"sigs.k8s.io/custom-metrics-apiserver/pkg/provider"

	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/window/series"
	"github.com/gpupilot/gpupilot/internal/window/stat"
)

// now is not on a whole second, as no collection is.
var now = time.Date(2026, 3, 1, 12, 0, 0, 250e6, time.UTC)

const maxAge = 5 * time.Second

// podList is the pods of one namespace, "ml", in order, with a store of their values.
type podList struct {
	pods  []labelledPod
	store *series.Store
}

type labelledPod struct {
	name    string
	serving bool
	labels  labels.Set
}

func (l *podList) State(namespace, pod string) (serving, found bool) {
	i := slices.IndexFunc(l.pods, func(p labelledPod) bool { return p.name == pod })
	if i < 0 || namespace != "ml" {
		return false, false
	}
	return l.pods[i].serving, true
}

func (l *podList) Serving(namespace string, selector labels.Selector) (names []string) {
	for i := range l.pods {
		if p := &l.pods[i]; namespace == "ml" && p.serving && selector.Matches(p.labels) {
			names = append(names, p.name)
		}
	}
	return names
}

func (l *podList) Value(namespace, pod string, q stat.Query) (series.Sample, bool) {
	if q.Metric != "" {
		return l.store.PodMetric(namespace, pod, q.Metric, q.Now, q.MaxAge)
	}
	return l.store.Pod(namespace, pod, q.Field, q.Now, q.MaxAge)
}

func (l *podList) Values(namespace string, selector labels.Selector, q stat.Query) iter.Seq2[string, series.Sample] {
	return func(yield func(string, series.Sample) bool) {
		for i := range l.pods {
			p := &l.pods[i]
			if namespace != "ml" || !p.serving || !selector.Matches(p.labels) {
				continue
			}
			if s, ok := l.Value(namespace, p.name, q); ok && !yield(p.name, s) {
				return
			}
		}
	}
}

// node fills a store as a scraper does.
type node struct {
	t      testing.TB
	target *series.Target
	owners []series.DeviceOwners
}

func newNode(t testing.TB, store *series.Store, name string) *node {
	return &node{t: t, target: store.Target(name, series.TargetLabels{Node: name})}
}

// give has the pod hold a device from a minute ago.
func (n *node) give(pod, device string) {
	n.owners = append(n.owners, series.DeviceOwners{Device: device, Owners: []gpu.Owner{{Namespace: "ml", Pod: pod}}})
	n.target.SetOwners(now.Add(-time.Minute), n.owners)
}

// read stores one scrape.
func (n *node) read(at time.Time, values map[series.Key]float64) {
	n.t.Helper()
	var batch series.Batch
	for key, v := range values {
		ref, ok := n.target.Ref(key)
		if !ok {
			n.t.Fatalf("no ref for %v", key)
		}
		batch.Add(ref, v)
	}
	if _, err := n.target.Append(at, &batch); err != nil {
		n.t.Fatal(err)
	}
}

// fleet is what the tests ask about: two serving pods with values, one that
// starts, one whose values are stale, and one with two GPUs of which one is
// dead.
func fleet(t testing.TB) Deps {
	store := series.New(series.Config{})
	n := newNode(t, store, "node-1")
	key := func(device string, f gpu.FieldID) series.Key { return series.Key{Device: device, Field: f} }
	n.give("web-a", "GPU-0")
	n.give("web-a", "GPU-1")
	n.give("web-b", "GPU-2")
	n.give("web-loading", "GPU-3")
	n.give("web-half", "GPU-4")
	n.give("web-half", "GPU-5")
	for i := range 20 { // of energy, 300 W each
		n.read(now.Add(time.Duration(i-20)*time.Second), map[series.Key]float64{
			key("GPU-0", gpu.TotalEnergy): float64(i) * 300e3, key("GPU-1", gpu.TotalEnergy): float64(i) * 300e3,
		})
	}
	n.read(now.Add(-500*time.Millisecond), map[series.Key]float64{
		key("GPU-0", gpu.GPUUtil): 90, key("GPU-1", gpu.GPUUtil): 41, key("GPU-2", gpu.GPUUtil): 0,
		key("GPU-3", gpu.GPUUtil): 7, key("GPU-4", gpu.GPUUtil): 80,
		key("GPU-0", gpu.FBUsed): 60000, key("GPU-1", gpu.FBUsed): 20000, key("GPU-4", gpu.FBUsed): 100,
		key("GPU-0", gpu.TotalEnergy): 19.5 * 300e3, key("GPU-1", gpu.TotalEnergy): 19.5 * 300e3,
		key("GPU-0", gpu.XIDErrors): 0, key("GPU-2", gpu.XIDErrors): 31,
	})
	dead := newNode(t, store, "node-2")
	dead.give("web-stale", "GPU-9")
	dead.read(now.Add(-maxAge-time.Millisecond), map[series.Key]float64{key("GPU-9", gpu.GPUUtil): 100})
	own := &node{t: t, target: store.Target("pod/web-a", series.TargetLabels{Namespace: "ml", Pod: "web-a"})}
	own.read(now.Add(-2*time.Second), map[series.Key]float64{{Metric: "vllm:num_requests_waiting"}: 12.5})

	web := labels.Set{"app": "web"}
	return Deps{
		Names: func() []string {
			return []string{"vllm:num_requests_waiting", "queue_depth", "DCGM_FI_DEV_GPU_UTIL", "queue_depth"}
		},
		Now: func() time.Time { return now },
		Pods: &podList{store: store, pods: []labelledPod{
			{"web-a", true, web},
			{"web-b", true, web},
			{"web-loading", false, web},
			{"web-half", true, web},
			{"web-stale", true, web},
			{"other", true, labels.Set{"app": "other"}},
		}},
	}
}

func selectorOf(t testing.TB, s string) labels.Selector {
	t.Helper()
	selector, err := labels.Parse(s)
	if err != nil {
		t.Fatal(err)
	}
	return selector
}

func podsMetric(name string) provider.CustomMetricInfo {
	return provider.CustomMetricInfo{GroupResource: schema.GroupResource{Resource: "pods"}, Namespaced: true, Metric: name}
}

// said is a list as "pod=value" sorted by pod.
func said(items []custom_metrics.MetricValue) string {
	var out []string
	for _, v := range items {
		out = append(out, v.DescribedObject.Name+"="+v.Value.String())
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

func TestMetricBySelector(t *testing.T) {
	p := NewProvider(maxAge, 15*time.Second, fleet(t))
	f := func(metric, selector, want string) {
		t.Helper()
		list, err := p.GetMetricBySelector(t.Context(), "ml", selectorOf(t, selector), podsMetric(metric), labels.Everything())
		if err != nil {
			t.Errorf("%s: %v", metric, err)
		} else if got := said(list.Items); got != want {
			t.Errorf("%s of %q = %q, want %q", metric, selector, got, want)
		}
	}
	// The mean over a pod's GPUs; the loading pod, the stale pod and the pod
	// without GPUs are left out, an idle one is 0.
	f("DCGM_FI_DEV_GPU_UTIL", "app=web", "web-a=65500m web-b=0 web-half=80")
	f("dcgm_gpu_utilization", "", "web-a=65500m web-b=0 web-half=80")
	f("DCGM_FI_DEV_GPU_UTIL_RATIO", "app", "web-a=655m web-b=0 web-half=800m")
	// A sum, and none where a part of it is missing.
	f("DCGM_FI_DEV_FB_USED", "", "web-a=80k")
	f("DCGM_FI_DEV_FB_USED_BYTES", "", "web-a=83886080k")
	f("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "", "web-a=600k")
	// Nothing that could be combined: only of a pod with one GPU.
	f("DCGM_FI_DEV_XID_ERRORS", "", "web-b=31")
	// The pod's own metric, and one that is in use but has no value now.
	f("vllm:num_requests_waiting", "app=web", "web-a=12500m")
	f("queue_depth", "app=web", "")
	f("DCGM_FI_DEV_GPU_UTIL", "app=other", "")
	f("DCGM_FI_DEV_GPU_UTIL", "app=nobody", "")
}

func TestValueSaysWhatItIs(t *testing.T) {
	p := NewProvider(maxAge, 15*time.Second, fleet(t))
	f := func(metric string, at time.Time, window int64) {
		t.Helper()
		v, err := p.GetMetricByName(t.Context(), types.NamespacedName{Namespace: "ml", Name: "web-a"}, podsMetric(metric), labels.Everything())
		if err != nil {
			t.Fatal(err)
		}
		if !v.Timestamp.Time.Equal(at) {
			t.Errorf("%s: timestamp %v, want the collection's %v", metric, v.Timestamp, at)
		}
		if got := v.WindowSeconds; (got == nil) != (window == 0) || got != nil && *got != window {
			t.Errorf("%s: window %v, want %d", metric, got, window)
		}
		want := custom_metrics.ObjectReference{Kind: "Pod", APIVersion: "v1", Namespace: "ml", Name: "web-a"}
		if diff := cmp.Diff(want, v.DescribedObject); diff != "" {
			t.Error(diff)
		}
		if v.Metric.Name != metric || v.Metric.Selector != nil {
			t.Errorf("metric %v, want %s", v.Metric, metric)
		}
	}
	f("DCGM_FI_DEV_GPU_UTIL", now.Add(-500*time.Millisecond), 0)
	f("dcgm_gpu_utilization", now.Add(-500*time.Millisecond), 0)
	f("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", now.Add(-500*time.Millisecond), 15)
	f("vllm:num_requests_waiting", now.Add(-2*time.Second), 0)
}

func TestRefusals(t *testing.T) {
	p := NewProvider(maxAge, 0, fleet(t))
	check := func(err error, code int32, want string) {
		t.Helper()
		status, ok := err.(apierrors.APIStatus)
		if !ok || status.Status().Code != code || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %d %q", err, code, want)
		}
	}
	byName := func(pod, metric string, code int32, want string) {
		t.Helper()
		_, err := p.GetMetricByName(t.Context(), types.NamespacedName{Namespace: "ml", Name: pod}, podsMetric(metric), labels.Everything())
		check(err, code, want)
	}
	byName("web-a", "DCGM_FI_DEV_GPU_UTIl", http.StatusNotFound, "metric DCGM_FI_DEV_GPU_UTIl is not known")
	byName("web-a", "queue_depth", http.StatusNotFound, "metric queue_depth: pod ml/web-a has no value from the last 5s")
	byName("web-stale", "DCGM_FI_DEV_GPU_UTIL", http.StatusNotFound, "has no value from the last 5s")
	byName("web-loading", "DCGM_FI_DEV_GPU_UTIL", http.StatusNotFound, "pod ml/web-loading is starting or terminating")
	byName("nobody", "DCGM_FI_DEV_GPU_UTIL", http.StatusNotFound, `pods "nobody" not found`)

	list := func(namespace string, info provider.CustomMetricInfo, metricSelector string, code int32, want string) {
		t.Helper()
		_, err := p.GetMetricBySelector(t.Context(), namespace, labels.Everything(), info, selectorOf(t, metricSelector))
		check(err, code, want)
	}
	list("ml", podsMetric("no_such_metric"), "", http.StatusNotFound, "metric no_such_metric is not known")
	list("ml", podsMetric("DCGM_FI_DRIVER_VERSION"), "", http.StatusNotFound, "is a label, not a number")
	list("ml", podsMetric("DCGM_FI_DEV_GPU_UTIL"), "modelName=H100", http.StatusBadRequest, `has the label "modelName": use window=DURATION`)
	list("", podsMetric("DCGM_FI_DEV_GPU_UTIL"), "", http.StatusBadRequest, "no namespace was given")
	list("ml", podsMetric("DCGM_FI_DEV_GPU_UTIL"), strings.Repeat("a,", 65)+"b", http.StatusBadRequest, "the selector has 66 labels and values; at most 64 are allowed")
	nodes := provider.CustomMetricInfo{GroupResource: schema.GroupResource{Resource: "nodes"}, Metric: "DCGM_FI_DEV_GPU_UTIL"}
	list("", nodes, "", http.StatusNotFound, "nodes have no metrics here; pods have")
}

func TestListAllMetrics(t *testing.T) {
	deps := fleet(t)
	f := func(want ...string) {
		t.Helper()
		var got []string
		for _, m := range NewProvider(maxAge, 0, deps).ListAllMetrics() {
			got = append(got, m.String())
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
	}
	f("pods/DCGM_FI_DEV_GPU_UTIL(namespaced)", "pods/queue_depth(namespaced)", "pods/vllm:num_requests_waiting(namespaced)")
	deps.Names = func() []string { return nil }
	f("pods/DCGM_FI_DEV_GPU_UTIL(namespaced)")
}

func TestQuantity(t *testing.T) {
	f := func(v float64, want string) {
		t.Helper()
		if q := quantity(v); q.String() != want {
			t.Errorf("quantity(%v) = %s, want %s", v, &q, want)
		}
		if got := appendQuantity(nil, v); string(got) != want {
			t.Errorf("appendQuantity(%v) = %s, want %s", v, got, want)
		}
	}
	f(0, "0")
	f(87, "87")
	f(-87, "-87")
	f(2000, "2k")
	f(2001, "2001")
	f(50.25, "50250m")
	f(-50.001, "-50001m")
	f(0.999999999999, "1")
	f(7.0000000001, "7")
	f(61.0004, "61000400u")
	f(999999999999, "999999999999")
	f(65.5, "65500m")
	f(0.653421, "653421u")
	f(1.0/3, "333333333n")
	f(-0.25, "-250m")
	f(1<<53, "9007199254740992")
	f(1.5e12, "1500G")
	f(1500000000000.5, "1500000000000500m")
	f(12345678.0625, "12345678062500u")
	f(9.3e12+0.25, "9300G")
	f(1e300, "9223372036854775807")
	f(-1e300, "-9223372036854775808")
}

// FuzzQuantity: what the HPA reads is the value, to the thousandth.
func FuzzQuantity(f *testing.F) {
	for _, v := range []float64{0, 1, 65.5, 1e-12, -3.25, 9e9, 9e12, 1e18} {
		f.Add(v)
	}
	f.Fuzz(func(t *testing.T, v float64) {
		if !(v > -9e15 && v < 9e15) {
			t.Skip("not what the HPA can count in thousandths")
		}
		q := quantity(v)
		if text := appendQuantity(nil, v); string(text) != q.String() {
			t.Errorf("appendQuantity(%v) = %s, want %s", v, text, &q)
		}
		got := q.AsApproximateFloat64()
		if diff := got - v; diff > 1e-3 && diff > 1e-12*v || diff < -1e-3 && diff < -1e-12*-v {
			t.Errorf("quantity(%v) reads %v", v, got)
		}
	})
}

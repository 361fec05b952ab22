// SPDX-License-Identifier: Apache-2.0

//go:build e2e

// Package external tests external.metrics.k8s.io with the real HorizontalPodAutoscaler:
// MetricQueries, the desired replicas of GPUAutoscalers, and scaling from and to zero.
package external

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/metrics/pkg/apis/external_metrics/v1beta1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/test/stack"
)

const (
	namespace   = "team-a"
	gpusPerNode = 14 // for 40 pods
)

// backend is a PromQL backend that answers every query with one number.
type backend struct {
	mu      sync.Mutex
	value   string // empty: no series
	queries []string
}

func (b *backend) set(v string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.value = v
}

func (b *backend) seen() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return append([]string(nil), b.queries...)
}

// ServeHTTP implements http.Handler.
func (b *backend) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !strings.HasSuffix(r.URL.Path, "/query_range") { // which reads the controller's history
		b.queries = append(b.queries, r.FormValue("query"))
	}
	result := ""
	if b.value != "" {
		result = fmt.Sprintf(`{"metric":{},"value":[%d,%q]}`, time.Now().Unix(), b.value)
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = fmt.Fprintf(w, `{"status":"success","data":{"resultType":"vector","result":[%s]}}`, result)
}

// recordedRule is in the controller's rule file.
const recordedRule = "groups: [{name: gpus, rules: [{record: 'recorded:utilization', " +
	"expr: '100 * avg by (namespace, name) (gpupilot_workload_gpu_utilization_ratio{in_use=\"allocated\",stat=\"avg\"})'}]}]"

// rig is the stack that the tests of this package share, and queue the PromQL backend of its controller.
var (
	rig   *stack.Stack
	queue = &backend{}
	args  []string // of the controller
	// overWindows are those of a controller without a backend: it answers queries itself.
	overWindows []string
)

func TestMain(m *testing.M) {
	flag.Parse()
	server := httptest.NewServer(queue)
	defer server.Close()
	dir, err := os.MkdirTemp("", "rules-")
	if err != nil {
		panic(err) // no temporary folder: nothing runs here
	}
	for name, rules := range map[string]string{"recorded.yaml": recordedRule, "cluster.yaml": clusterRule()} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(rules), 0o600); err != nil {
			panic(err)
		}
	}
	overWindows = []string{"--external-metrics", "--rule-files", filepath.Join(dir, "*.yaml")}
	args = append(slices.Clone(overWindows), "--prometheus-url", server.URL)
	cfg := stack.Config{
		Nodes: 3, GPUs: gpusPerNode, HPASyncPeriod: time.Second, ControllerArgs: args,
		ClusterArgs: map[string][]string{
			"kube-apiserver": {"--feature-gates=HPAScaleToZero=true"}, "kube-controller-manager": {"--feature-gates=HPAScaleToZero=true"},
		},
	}
	stack.Main(m, cfg, func(s *stack.Stack) error {
		rig = s
		s.OnClose(func() { _ = os.RemoveAll(dir) })
		return rig.Client.Create(context.Background(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}})
	})
}

// deploy creates a Deployment. The test's end deletes it with its pods, so that the next one of its name has none of them.
func deploy(t *testing.T, d *appsv1.Deployment) {
	t.Helper()
	t.Cleanup(func() {
		stack.Eventually(t, func() error {
			var pods corev1.PodList
			err := rig.Client.List(context.Background(), &pods, client.InNamespace(namespace), client.MatchingLabels(d.Spec.Selector.MatchLabels))
			if err == nil && len(pods.Items) > 0 {
				err = fmt.Errorf("%d pods of %s are left", len(pods.Items), d.Name)
			}
			return err
		})
	})
	rig.Create(t, d)
}

// controllerArgs starts the controller with other arguments, until the test ends.
func controllerArgs(t *testing.T, other ...string) {
	t.Helper()
	if err := rig.RestartController(t.Context(), other...); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := rig.RestartController(context.WithoutCancel(t.Context()), args...); err != nil {
			t.Error(err)
		}
	})
}

// hpa scales a Deployment on one external metric with an average of 10 per replica.
func hpa(name string, minReplicas int32, metric string, labels map[string]string, average string) *autoscalingv2.HorizontalPodAutoscaler {
	zero, target := int32(0), resource.MustParse(average)
	m := autoscalingv2.MetricIdentifier{Name: metric}
	if labels != nil {
		m.Selector = &metav1.LabelSelector{MatchLabels: labels}
	}
	return &autoscalingv2.HorizontalPodAutoscaler{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: autoscalingv2.HorizontalPodAutoscalerSpec{
			ScaleTargetRef: autoscalingv2.CrossVersionObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Name: name},
			MinReplicas:    &minReplicas, MaxReplicas: 6,
			Metrics: []autoscalingv2.MetricSpec{{Type: autoscalingv2.ExternalMetricSourceType, External: &autoscalingv2.ExternalMetricSource{
				Metric: m, Target: autoscalingv2.MetricTarget{Type: autoscalingv2.AverageValueMetricType, AverageValue: &target},
			}}},
			Behavior: &autoscalingv2.HorizontalPodAutoscalerBehavior{ScaleDown: &autoscalingv2.HPAScalingRules{StabilizationWindowSeconds: &zero}},
		},
	}
}

func metricQuery(name, metric, promql string) *v1alpha1.MetricQuery {
	return &v1alpha1.MetricQuery{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec:       v1alpha1.MetricQuerySpec{MetricName: metric, Query: &v1alpha1.MetricQueryPromQL{PromQL: promql}},
	}
}

func ready(t *testing.T, name string, status metav1.ConditionStatus, reason string) {
	t.Helper()
	stack.Eventually(t, func() error {
		var q v1alpha1.MetricQuery
		if err := rig.Client.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: name}, &q); err != nil {
			return err
		}
		c := meta.FindStatusCondition(q.Status.Conditions, "Ready")
		if c == nil || c.Status != status || c.Reason != reason {
			return fmt.Errorf("MetricQuery %s: condition %+v, want %s %s", name, c, status, reason)
		}
		return nil
	})
}

// raw requests a metric from the API server.
func raw(ctx context.Context, k kubernetes.Interface, ns, metric string) (*v1beta1.ExternalMetricValueList, error) {
	b, err := k.Discovery().RESTClient().Get().AbsPath("/apis/external.metrics.k8s.io/v1beta1/namespaces/" + ns + "/" + metric).DoRaw(ctx)
	if err != nil {
		return nil, fmt.Errorf("%w: %s", err, b)
	}
	list := &v1beta1.ExternalMetricValueList{}
	return list, json.Unmarshal(b, list)
}

func TestExternalMetrics(t *testing.T) {
	k, err := kubernetes.NewForConfig(rig.REST)
	if err != nil {
		t.Fatal(err)
	}
	queue.set("25")
	asked, began := len(queue.seen()), time.Now().Truncate(time.Second)
	rig.Create(t, metricQuery("queue", "", "sum(queue_length)"))
	ready(t, "queue", metav1.ConditionTrue, "Value")
	stack.Eventually(t, func() error { // the APIService becomes available
		list, err := raw(t.Context(), k, namespace, "queue")
		if err == nil && (len(list.Items) != 1 || list.Items[0].Value.Value() != 25 || list.Items[0].Timestamp.Time.Before(began)) {
			err = fmt.Errorf("%+v", list)
		}
		return err
	})
	if q := queue.seen()[asked:]; q[0] != `sum(queue_length{namespace="team-a"})` {
		t.Errorf("the backend was asked for %s", q[0])
	}
	if _, err := raw(t.Context(), k, "default", "queue"); err == nil || !strings.Contains(err.Error(), "not known in namespace default") {
		t.Errorf("from another namespace: %v", err)
	}

	t.Run("errors are on the object", func(t *testing.T) {
		rig.Create(t, metricQuery("second", "queue", "sum(other)"))
		ready(t, "second", metav1.ConditionFalse, "Conflict")
		rig.Create(t, metricQuery("bad", "", "sum("))
		ready(t, "bad", metav1.ConditionFalse, "NoValue")
		rig.Create(t, metricQuery("elsewhere", "", `sum(x{namespace="team-b"})`))
		ready(t, "elsewhere", metav1.ConditionFalse, "NoValue")
		if err := rig.Client.Create(t.Context(), metricQuery("reserved", "gpupilot_desired_replicas", "x")); err == nil {
			t.Error("a reserved metricName was accepted")
		}
		ready(t, "queue", metav1.ConditionTrue, "Value")
	})

	t.Run("an HPA scales from and to zero", func(t *testing.T) {
		deploy(t, stack.Deployment(namespace, "worker", 1, 0))
		rig.Create(t, hpa("worker", 0, "queue", nil, "10"))
		rig.AwaitReplicas(t, namespace, "worker", 3)
		queue.set("0")
		rig.AwaitReplicas(t, namespace, "worker", 0)
		queue.set("11")
		rig.AwaitReplicas(t, namespace, "worker", 2)
		queue.set("") // missing is not zero
		ready(t, "queue", metav1.ConditionFalse, "NoValue")
		stack.Eventually(t, func() error {
			var h autoscalingv2.HorizontalPodAutoscaler
			if err := rig.Client.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: "worker"}, &h); err != nil {
				return err
			}
			for _, c := range h.Status.Conditions {
				if c.Type == autoscalingv2.ScalingActive && c.Status == corev1.ConditionFalse && strings.Contains(c.Message, "MetricQuery team-a/queue has no value") {
					return nil
				}
			}
			return fmt.Errorf("conditions %+v", h.Status.Conditions)
		})
		rig.AwaitReplicas(t, namespace, "worker", 2)
	})

	t.Run("the desired replicas of a GPUAutoscaler", func(t *testing.T) {
		queue.set("45")
		deploy(t, stack.Deployment(namespace, "server", 1, 0))
		rig.Create(t, &v1alpha1.GPUAutoscaler{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "server"},
			Spec: v1alpha1.GPUAutoscalerSpec{
				ScaleTargetRef: v1alpha1.CrossVersionObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "server"},
				MaxReplicas:    6, Actuation: v1alpha1.ActuationAdvise,
				Signals: []v1alpha1.Signal{{
					Query:  &v1alpha1.QuerySignal{PromQL: "sum(queue_length)"},
					Target: &v1alpha1.Target{Type: "AverageValue", Value: resource.MustParse("9")},
				}},
			},
		})
		rig.Create(t, hpa("server", 1, "gpupilot_desired_replicas", map[string]string{"gpuautoscaler": "server"}, "1"))
		rig.AwaitReplicas(t, namespace, "server", 5)
	})

	t.Run("discovery", func(t *testing.T) {
		list, err := k.Discovery().ServerResourcesForGroupVersion("external.metrics.k8s.io/v1beta1")
		if err != nil || len(list.APIResources) != 1 || list.APIResources[0].Name != "gpupilot_desired_replicas" {
			t.Errorf("%+v, %v", list, err)
		}
	})
}

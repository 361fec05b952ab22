// SPDX-License-Identifier: Apache-2.0

//go:build e2e

// Package external tests external.metrics.k8s.io with the real HorizontalPodAutoscaler:
// MetricQueries, the desired replicas of GPUAutoscalers, and scaling from and to zero.
package external

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/metrics/pkg/apis/external_metrics/v1beta1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/test/cluster"
	"github.com/gpupilot/gpupilot/test/stack"
)

const (
	namespace = "team-a"
	patience  = stack.Patience
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

func start(t *testing.T, b *backend, args ...string) *stack.Stack {
	t.Helper()
	if _, err := cluster.FindBinary(); err != nil {
		t.Skip("no control plane; make test builds it: ", err)
	}
	server := httptest.NewServer(b)
	t.Cleanup(server.Close)
	s, err := stack.Start(t.Context(), stack.Config{
		Nodes: 1, NoAgents: true, HPASyncPeriod: time.Second, Log: slog.New(slog.NewTextHandler(os.Stderr, nil)),
		ControllerArgs: append([]string{"--external-metrics", "--prometheus-url", server.URL}, args...),
		ClusterArgs: map[string][]string{
			"kube-apiserver": {"--feature-gates=HPAScaleToZero=true"}, "kube-controller-manager": {"--feature-gates=HPAScaleToZero=true"},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	t.Cleanup(func() {
		if t.Failed() {
			log, _ := os.ReadFile(s.ControllerLog())
			t.Logf("controller.log:\n%s", log[max(0, len(log)-8000):])
		}
	})
	create(t, s, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}})
	return s
}

func create(t *testing.T, s *stack.Stack, o client.Object) {
	t.Helper()
	if err := s.Client.Create(t.Context(), o); err != nil {
		t.Fatal(err)
	}
}

func await(t *testing.T, check func() error) {
	t.Helper()
	if err := stack.Await(t.Context(), patience, check); err != nil {
		t.Fatal(err)
	}
}

func awaitReplicas(t *testing.T, s *stack.Stack, name string, want int32) {
	t.Helper()
	await(t, func() error {
		got, err := s.Replicas(t.Context(), namespace, name)
		if err == nil && got != want {
			err = fmt.Errorf("%s has %d replicas, want %d", name, got, want)
		}
		return err
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

func ready(t *testing.T, s *stack.Stack, name string, status metav1.ConditionStatus, reason string) {
	t.Helper()
	await(t, func() error {
		var q v1alpha1.MetricQuery
		if err := s.Client.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: name}, &q); err != nil {
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
	t.Parallel() // it has a control plane of its own, and waits
	b := &backend{}
	s := start(t, b)
	k, err := kubernetes.NewForConfig(s.REST)
	if err != nil {
		t.Fatal(err)
	}
	b.set("25")
	create(t, s, metricQuery("queue", "", "sum(queue_length)"))
	ready(t, s, "queue", metav1.ConditionTrue, "Value")
	await(t, func() error { // the APIService becomes available
		list, err := raw(t.Context(), k, namespace, "queue")
		if err == nil && (len(list.Items) != 1 || list.Items[0].Value.Value() != 25 || time.Since(list.Items[0].Timestamp.Time) > 10*time.Second) {
			err = fmt.Errorf("%+v", list)
		}
		return err
	})
	if q := b.seen(); q[0] != `sum(queue_length{namespace="team-a"})` {
		t.Errorf("the backend was asked for %s", q[0])
	}
	if _, err := raw(t.Context(), k, "default", "queue"); err == nil || !strings.Contains(err.Error(), "not known in namespace default") {
		t.Errorf("from another namespace: %v", err)
	}

	t.Run("errors are on the object", func(t *testing.T) {
		create(t, s, metricQuery("second", "queue", "sum(other)"))
		ready(t, s, "second", metav1.ConditionFalse, "Conflict")
		create(t, s, metricQuery("bad", "", "sum("))
		ready(t, s, "bad", metav1.ConditionFalse, "NoValue")
		create(t, s, metricQuery("elsewhere", "", `sum(x{namespace="team-b"})`))
		ready(t, s, "elsewhere", metav1.ConditionFalse, "NoValue")
		if err := s.Client.Create(t.Context(), metricQuery("reserved", "gpupilot_desired_replicas", "x")); err == nil {
			t.Error("a reserved metricName was accepted")
		}
		ready(t, s, "queue", metav1.ConditionTrue, "Value")
	})

	t.Run("an HPA scales from and to zero", func(t *testing.T) {
		create(t, s, stack.Deployment(namespace, "worker", 1, 0))
		create(t, s, hpa("worker", 0, "queue", nil, "10"))
		awaitReplicas(t, s, "worker", 3)
		b.set("0")
		awaitReplicas(t, s, "worker", 0)
		b.set("11")
		awaitReplicas(t, s, "worker", 2)
		b.set("") // missing is not zero
		ready(t, s, "queue", metav1.ConditionFalse, "NoValue")
		await(t, func() error {
			var h autoscalingv2.HorizontalPodAutoscaler
			if err := s.Client.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: "worker"}, &h); err != nil {
				return err
			}
			for _, c := range h.Status.Conditions {
				if c.Type == autoscalingv2.ScalingActive && c.Status == corev1.ConditionFalse && strings.Contains(c.Message, "MetricQuery team-a/queue has no value") {
					return nil
				}
			}
			return fmt.Errorf("conditions %+v", h.Status.Conditions)
		})
		awaitReplicas(t, s, "worker", 2)
	})

	t.Run("the desired replicas of a GPUAutoscaler", func(t *testing.T) {
		b.set("45")
		create(t, s, stack.Deployment(namespace, "server", 1, 0))
		create(t, s, &v1alpha1.GPUAutoscaler{
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
		create(t, s, hpa("server", 1, "gpupilot_desired_replicas", map[string]string{"gpuautoscaler": "server"}, "1"))
		awaitReplicas(t, s, "server", 5)
	})

	t.Run("discovery", func(t *testing.T) {
		list, err := k.Discovery().ServerResourcesForGroupVersion("external.metrics.k8s.io/v1beta1")
		if err != nil || len(list.APIResources) != 1 || list.APIResources[0].Name != "gpupilot_desired_replicas" {
			t.Errorf("%+v, %v", list, err)
		}
	})
}

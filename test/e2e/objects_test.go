// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/metrics/pkg/apis/custom_metrics/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gpupilot/gpupilot/internal/window/view"
	"github.com/gpupilot/gpupilot/test/stack"
)

// objectHPA is a HorizontalPodAutoscaler on a metric of the Deployment itself.
func objectHPA(name, metric string, selector *metav1.LabelSelector, target autoscalingv2.MetricTarget) *autoscalingv2.HorizontalPodAutoscaler {
	of := autoscalingv2.CrossVersionObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Name: name}
	return &autoscalingv2.HorizontalPodAutoscaler{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: autoscalingv2.HorizontalPodAutoscalerSpec{
			ScaleTargetRef: of, MaxReplicas: 12,
			Metrics: []autoscalingv2.MetricSpec{{Type: autoscalingv2.ObjectMetricSourceType, Object: &autoscalingv2.ObjectMetricSource{
				DescribedObject: of, Metric: autoscalingv2.MetricIdentifier{Name: metric, Selector: selector}, Target: target,
			}}},
			Behavior: stack.AtOnce(),
		},
	}
}

// The real HorizontalPodAutoscaler scales on a metric of the Deployment: on its mean as
// a value, and on its sum as a value per replica.
func TestHPAOnObjectMetrics(t *testing.T) {
	const load = 3.4
	sixty := resource.MustParse("60")
	f := func(name string, hpa *autoscalingv2.HorizontalPodAutoscaler) {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // each has a workload of its own
			rig.Offer(name, 0.3)
			rig.Deploy(t, name, 1, 3*time.Second)
			if err := rig.Client.Create(t.Context(), hpa); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = rig.Client.Delete(context.Background(), hpa) })
			rig.Offer(name, load)
			stack.Eventually(t, func() error {
				if n := rig.Serving(t, name); n < int(stack.Need(load)) {
					return fmt.Errorf("%d replicas serve, %d are needed", n, stack.Need(load))
				}
				return nil
			})
			rig.Offer(name, 0.3)
			rig.WantReplicas(t, name, "1", func(n int32) bool { return n == 1 })
		})
	}
	f("objectvalue", objectHPA("objectvalue", "gpu_utilization:avg_5s", nil,
		autoscalingv2.MetricTarget{Type: autoscalingv2.ValueMetricType, Value: &sixty}))
	f("objectaverage", objectHPA("objectaverage", "DCGM_FI_DEV_GPU_UTIL",
		&metav1.LabelSelector{MatchLabels: map[string]string{"stat": "sum", "in_use": "allocated"}},
		autoscalingv2.MetricTarget{Type: autoscalingv2.AverageValueMetricType, AverageValue: &sixty}))
}

// An HPA that reads our metrics is on the page: with its condition while it names a metric that does not exist, and with
// the value and the target once the name is right.
func TestHPAIsOnThePage(t *testing.T) {
	const name = "hpapage"
	sixty := resource.MustParse("60")
	rig.Offer(name, 0.3)
	rig.Deploy(t, name, 1, 0)
	hpa := objectHPA(name, "DCGM_FI_DEV_GPU_UTL", nil, autoscalingv2.MetricTarget{Type: autoscalingv2.ValueMetricType, Value: &sixty})
	stack.Must(t, rig.Client.Create(t.Context(), hpa))
	t.Cleanup(func() { _ = rig.Client.Delete(context.Background(), hpa) })
	wants := func(is func(h *view.HPA) bool) {
		t.Helper()
		stack.Eventually(t, func() error {
			var v view.View
			if err := page().Get(t.Context(), "api/v1/view", nil, &v); err != nil {
				return err
			}
			i := slices.IndexFunc(v.HPAs, func(h view.HPA) bool { return h.Namespace == namespace && h.Name == name })
			if i < 0 || !is(&v.HPAs[i]) {
				return fmt.Errorf("the page shows %+v", v.HPAs)
			}
			return nil
		})
	}
	wants(func(h *view.HPA) bool {
		return h.Target == name && strings.HasPrefix(h.Problem, "it keeps 1 replica: metric DCGM_FI_DEV_GPU_UTL is not known") &&
			strings.Contains(h.Problem, "did you mean DCGM_FI_DEV_GPU_UTIL") && h.Metrics[0].Value == nil
	})
	right := client.RawPatch(types.JSONPatchType, []byte(`[{"op": "replace", "path": "/spec/metrics/0/object/metric/name", "value": "DCGM_FI_DEV_GPU_UTIL"}]`))
	stack.Must(t, rig.Client.Patch(t.Context(), hpa, right))
	wants(func(h *view.HPA) bool {
		return h.Problem == "" && h.Current == 1 && h.Max == 12 && h.Metrics[0].Value != nil && h.Metrics[0].Target == 60
	})
}

// objectValue is the one value of a path, in the metric's unit.
func objectValue(t *testing.T, path string) (v v1beta2.MetricValue, err error) {
	t.Helper()
	body, err := rig.Raw(t.Context(), "/apis/custom.metrics.k8s.io/"+"v1beta2/namespaces/"+path)
	if err != nil {
		return v, fmt.Errorf("%w: %s", err, body)
	}
	var list v1beta2.MetricValueList
	if err := json.Unmarshal([]byte(body), &list); err != nil {
		return v, err
	}
	if len(list.Items) != 1 {
		return v, fmt.Errorf("%d values: %s", len(list.Items), body)
	}
	return list.Items[0], nil
}

func TestObjectMetrics(t *testing.T) {
	const name = "objects"
	rig.Offer(name, 0.9)
	rig.Deploy(t, name, 2, time.Second)
	forge(t, name)
	began := time.Now().Truncate(time.Second)
	between := func(path string, low, high float64, of string) {
		t.Helper()
		stack.Eventually(t, func() error {
			v, err := objectValue(t, path)
			if err != nil {
				return err
			}
			if x := v.Value.AsApproximateFloat64(); x < low || x > high {
				return fmt.Errorf("%s is %g, want %g to %g", path, x, low, high)
			}
			if v.DescribedObject.Kind != of || v.Timestamp.Time.Before(began) || v.Timestamp.Time.After(time.Now()) {
				return fmt.Errorf("%s: %+v", path, v)
			}
			return nil
		})
	}
	mine := namespace + "/deployments.apps/" + name + "/"
	between(mine+"gpu_utilization", 35, 55, "Deployment")
	between(mine+"DCGM_FI_DEV_GPU_UTIL:sum", 70, 110, "Deployment")
	between(mine+"DCGM_FI_DEV_GPU_UTIL:p90_10s?metricLabelSelector=in_use%3Dactive", 35, 60, "Deployment")
	between(namespace+"/metrics/gpu_utilization?metricLabelSelector=in_use%3Dactive,stat%3Dmax", 35, 100, "Namespace")
	var sets appsv1.ReplicaSetList
	if err := rig.Client.List(t.Context(), &sets, client.InNamespace(namespace), client.MatchingLabels{"app": name}); err != nil || len(sets.Items) != 1 {
		t.Fatalf("%d ReplicaSets: %v", len(sets.Items), err)
	}
	between(namespace+"/replicasets.apps/"+sets.Items[0].Name+"/gpu_utilization:min", 30, 55, "ReplicaSet")
	between(namespace+"/deployments.apps/*/gpu_utilization?labelSelector=app%3D"+name, 35, 55, "Deployment")

	var nodes corev1.NodeList
	if err := rig.Client.List(t.Context(), &nodes); err != nil {
		t.Fatal(err)
	}
	if body, err := rig.Raw(t.Context(), "/apis/custom.metrics.k8s.io/"+"v1beta1/nodes/"+nodes.Items[0].Name+"/gpu_utilization"); err != nil || !strings.Contains(body, `"kind":"Node"`) {
		t.Errorf("of a node: %v %s", err, body)
	}
	for path, want := range map[string]string{
		mine + "gpu_utilisation":                                                         "did you mean gpu_utilization",
		mine + "gpu_utilization:avg_5h":                                                  "is longer than the controller",
		mine + "gpu_utilization?metricLabelSelector=modelName%3DH100":                    "use window=DURATION",
		namespace + "/deployments.apps/nobody/gpu_utilization":                           `deployments.apps \"nobody\" not found`,
		namespace + "/secrets/x/gpu_utilization":                                         "secrets have no metrics here",
		namespace + "/leaderworkersets.leaderworkerset.x-k8s.io/x/gpu_utilization":       "the cluster does not serve this resource",
		namespace + "/deployments.apps/" + name + "/" + strings.Repeat("gpu_util", 1000): "is not known",
	} {
		if body, err := rig.Raw(t.Context(), "/apis/custom.metrics.k8s.io/"+"v1beta2/namespaces/"+path); err == nil || !strings.Contains(body, want) {
			t.Errorf("%.100s: %v %.300s, want %s", path, err, body, want)
		}
	}
	for _, version := range []string{"v1beta1", "v1beta2"} {
		if body, err := rig.Raw(t.Context(), "/apis/custom.metrics.k8s.io/"+version); err != nil || !strings.Contains(body, `"deployments.apps/DCGM_FI_DEV_GPU_UTIL"`) || strings.Contains(body, "leaderworkersets") {
			t.Errorf("discovery of %s: %v %s", version, err, body)
		}
	}
}

// forge creates serving pods that name the Deployment's ReplicaSet as their controller,
// in the namespace of another tenant and with other labels. Neither is the Deployment's.
func forge(t *testing.T, name string) {
	t.Helper()
	var sets appsv1.ReplicaSetList
	if err := rig.Client.List(t.Context(), &sets, client.InNamespace(namespace), client.MatchingLabels{"app": name}); err != nil || len(sets.Items) != 1 {
		t.Fatalf("%d ReplicaSets: %v", len(sets.Items), err)
	}
	isController := true
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: "forged-" + name, Labels: sets.Items[0].Spec.Selector.MatchLabels,
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: "apps/v1", Kind: "ReplicaSet", Name: sets.Items[0].Name, UID: sets.Items[0].UID, Controller: &isController,
			}},
		},
		Spec: sets.Items[0].Spec.Template.Spec,
	}
	if err := rig.Client.Create(t.Context(), pod); err != nil {
		t.Logf("the API server refuses the forged pod: %v", err)
		return
	}
	t.Cleanup(func() { _ = rig.Client.Delete(context.Background(), pod, client.GracePeriodSeconds(0)) })
}

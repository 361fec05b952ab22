// SPDX-License-Identifier: Apache-2.0

//go:build !race

package journeys

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gpupilot/gpupilot/test/journeys/walkthrough"
	"github.com/gpupilot/gpupilot/test/stack"
)

// apply applies manifests, and shows the command that a reader would run.
func apply(t *testing.T, manifest string) {
	t.Helper()
	if err := rig.Apply(t.Context(), []byte(manifest)); err != nil {
		t.Fatalf("kubectl apply -f - <<EOF\n%s\nEOF: %v", manifest, err)
	}
}

func replicas(t *testing.T, name string, want int32) {
	t.Helper()
	began := time.Now()
	stack.Eventually(t, func() error {
		n, err := rig.Replicas(t.Context(), "default", name)
		if err == nil && n != want {
			err = fmt.Errorf("%s has %d replicas, want %d; the HPA says %s", name, n, want, hpaStatus(t, name))
		}
		return err
	})
	t.Logf("%s: %d replicas after %s; %s", name, want, time.Since(began).Round(100*time.Millisecond), hpaStatus(t, name))
}

// hpaStatus is what kubectl describe hpa says in short.
func hpaStatus(t *testing.T, name string) string {
	var h autoscalingv2.HorizontalPodAutoscaler
	if err := rig.Client.Get(t.Context(), client.ObjectKey{Namespace: "default", Name: name}, &h); err != nil {
		return err.Error()
	}
	metrics, _ := json.Marshal(h.Status.CurrentMetrics)
	var why []string
	for _, c := range h.Status.Conditions {
		why = append(why, fmt.Sprintf("%s=%s %s", c.Type, c.Status, c.Message))
	}
	return fmt.Sprintf("current %d, desired %d, metrics %s; %s", h.Status.CurrentReplicas, h.Status.DesiredReplicas, metrics, strings.Join(why, "; "))
}

// query is promtool query instant, through the controller's page address.
func query(t *testing.T, promql string) (string, error) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, rig.ControllerURL+"/api/v1/query", nil)
	if err != nil {
		return "", err
	}
	req.URL.RawQuery = "query=" + strings.ReplaceAll(promql, " ", "%20")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return string(b), err
}

func deployment(name string) string {
	return `
apiVersion: apps/v1
kind: Deployment
metadata:
  name: ` + name + `
  namespace: default
  labels: {app: ` + name + `}
spec:
  replicas: 1
  selector: {matchLabels: {app: ` + name + `}}
  template:
    metadata:
      labels: {app: ` + name + `}
      annotations: {sim.gpupilot.dev/workload: ` + name + `, sim.gpupilot.dev/startup: 1s}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
      - name: main
        image: cuda-vector-add
        resources: {limits: {nvidia.com/gpu: 1}}
`
}

// The walkthrough of ashrafgt/k8s-gpu-hpa. Its recording rule is as written; the HPA is
// in autoscaling/v2.
func TestK8sGPUHPA(t *testing.T) {
	t.Parallel()
	apply(t, walkthrough.PrometheusRuleCRD)
	rig.Offer("cuda-test", 0.04) // one process
	apply(t, deployment("cuda-test"))
	stack.Eventually(t, func() error { return rig.Apply(t.Context(), []byte(walkthrough.RecordingRule)) })
	stack.Eventually(t, func() error {
		s, err := query(t, "cuda_test_gpu_avg")
		if err == nil && !strings.Contains(s, `"deployment":"cuda-test"`) {
			err = fmt.Errorf("no series yet: %s", s)
		}
		if err == nil {
			t.Log("promtool query instant: ", s)
		}
		return err
	})
	stack.Eventually(t, func() error {
		s, err := rig.Raw(t.Context(), "/apis/custom.metrics.k8s.io/v1beta1")
		if err == nil && !strings.Contains(s, `"deployments.apps/cuda_test_gpu_avg"`) {
			err = fmt.Errorf("discovery has no cuda_test_gpu_avg")
		}
		return err
	})
	t.Log("kubectl get --raw /apis/custom.metrics.k8s.io/v1beta1 | grep cuda_test_gpu_avg: found")
	stack.Eventually(t, func() error {
		s, err := rig.Raw(t.Context(), walkthrough.Metric)
		if err == nil && !strings.Contains(s, `"value":"4"`) {
			err = fmt.Errorf("the value is %s", s)
		}
		if err == nil {
			t.Log("kubectl get --raw ", walkthrough.Metric, ": ", s)
		}
		return err
	})
	apply(t, walkthrough.HPA)
	replicas(t, "cuda-test", 1)
	rig.Offer("cuda-test", 0.08) // a second process in the pod
	replicas(t, "cuda-test", 2)
	rig.Offer("cuda-test", 0.01) // both have ended
	replicas(t, "cuda-test", 1)
}

// NVIDIA's article: an HPA on the utilisation that DCGM measures, as a Pods metric.
func TestDCGM(t *testing.T) {
	t.Parallel()
	rig.Offer("dcgm-test", 0.3)
	apply(t, deployment("dcgm-test"))
	apply(t, `
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {name: dcgm-test, namespace: default}
spec:
  scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: dcgm-test}
  minReplicas: 1
  maxReplicas: 3
  behavior: {scaleDown: {stabilizationWindowSeconds: 0}}
  metrics:
  - type: Pods
    pods:
      metric: {name: DCGM_FI_DEV_GPU_UTIL}
      target: {type: AverageValue, averageValue: "40"}
`)
	stack.Eventually(t, func() error {
		s, err := rig.Raw(t.Context(), "/apis/custom.metrics.k8s.io/v1beta1/namespaces/default/pods/*/DCGM_FI_DEV_GPU_UTIL")
		if err == nil && !strings.Contains(s, `"value":"30"`) {
			err = fmt.Errorf("the value is %s", s)
		}
		if err == nil {
			t.Log("pods/*/DCGM_FI_DEV_GPU_UTIL: ", s)
		}
		return err
	})
	replicas(t, "dcgm-test", 1)
	fromZero(t)
	rig.Offer("dcgm-test", 0.7)
	replicas(t, "dcgm-test", 2)
	replicas(t, "from-zero", 2)
	rig.Offer("dcgm-test", 0.1)
	replicas(t, "dcgm-test", 1)
}

// NVIDIA's article with its rules of prometheus-adapter: a metric of pods and one of a
// Service, which the controller makes from the rules' file.
func TestDCGMWithAdapterRules(t *testing.T) {
	t.Parallel()
	rig.Offer("dcgm-rules", 0.3)
	apply(t, deployment("dcgm-rules"))
	apply(t, `
apiVersion: v1
kind: Service
metadata: {name: dcgm-rules, namespace: default}
spec: {selector: {app: dcgm-rules}, ports: [{port: 80}]}
---
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {name: dcgm-rules, namespace: default}
spec:
  scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: dcgm-rules}
  minReplicas: 1
  maxReplicas: 3
  behavior: {scaleDown: {stabilizationWindowSeconds: 0}}
  metrics:
  - type: Pods
    pods:
      metric: {name: pod_gpu_utilization}
      target: {type: AverageValue, averageValue: "40"}
  - type: Object
    object:
      describedObject: {apiVersion: v1, kind: Service, name: dcgm-rules}
      metric: {name: service_gpu_utilization}
      target: {type: Value, value: "40"}
`)
	for _, path := range []string{"pods/*/pod_gpu_utilization?labelSelector=app%3Ddcgm-rules", "services/dcgm-rules/service_gpu_utilization"} {
		stack.Eventually(t, func() error {
			s, err := rig.Raw(t.Context(), "/apis/custom.metrics.k8s.io/v1beta1/namespaces/default/"+path)
			if err == nil && !strings.Contains(s, `"value":"30"`) {
				err = fmt.Errorf("the value is %s", s)
			}
			if err == nil {
				t.Log("kubectl get --raw …/", path, ": ", s)
			}
			return err
		})
	}
	stack.Eventually(t, func() error {
		s, err := rig.Raw(t.Context(), "/apis/custom.metrics.k8s.io/v1beta1")
		for _, want := range []string{`"pods/pod_gpu_utilization"`, `"namespaces/pod_gpu_utilization"`, `"services/service_gpu_utilization"`} {
			if err == nil && !strings.Contains(s, want) {
				err = errors.New("discovery has no " + want)
			}
		}
		return err
	})
	// Both metrics are there: the HPA takes the larger number of replicas.
	stack.Eventually(t, func() error {
		var h autoscalingv2.HorizontalPodAutoscaler
		if err := rig.Client.Get(t.Context(), client.ObjectKey{Namespace: "default", Name: "dcgm-rules"}, &h); err != nil {
			return err
		}
		if m := h.Status.CurrentMetrics; len(m) != 2 || m[0].Pods == nil || m[1].Object == nil {
			return fmt.Errorf("the HPA has the metrics %+v", m)
		}
		return nil
	})
	replicas(t, "dcgm-rules", 1)
	rig.Offer("dcgm-rules", 0.7)
	replicas(t, "dcgm-rules", 2)
	rig.Offer("dcgm-rules", 0.1)
	replicas(t, "dcgm-rules", 1)
}

// fromZero makes a GPUAutoscaler at zero replicas, whose query runs over the windows: the
// utilisation of the other workload.
func fromZero(t *testing.T) {
	t.Helper()
	apply(t, strings.Replace(deployment("from-zero"), "replicas: 1", "replicas: 0", 1))
	apply(t, `
apiVersion: gpupilot.dev/v1alpha1
kind: GPUAutoscaler
metadata: {name: from-zero, namespace: default}
spec:
  scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: from-zero}
  minReplicas: 0
  maxReplicas: 2
  signals:
  - query: {promql: 'sum(max by (pod) (DCGM_FI_DEV_GPU_UTIL{pod=~"dcgm-test-.*"}))'}
    target: {type: Value, value: "35"}
    activation: "50"
`)
	t.Cleanup(func() {
		var a unstructured.Unstructured
		a.SetAPIVersion("gpupilot.dev/v1alpha1")
		a.SetKind("GPUAutoscaler")
		a.SetNamespace("default")
		a.SetName("from-zero")
		if err := rig.Client.Delete(context.Background(), &a); err != nil {
			t.Error(err)
		}
	})
}

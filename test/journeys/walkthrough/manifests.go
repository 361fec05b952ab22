// SPDX-License-Identifier: Apache-2.0

// Package walkthrough runs two public walkthroughs of autoscaling on GPU metrics on a
// real control plane, without Prometheus: ashrafgt/k8s-gpu-hpa with its recording rule
// as written, and NVIDIA's article on HPAs with DCGM's metrics. Package realnode runs the
// first one on a real node, too.
package walkthrough

import (
	_ "embed" // the CRD
)

// PrometheusRuleCRD is that of the Prometheus operator, without its schema.
//
//go:embed testdata/prometheusrules-crd.yaml
var PrometheusRuleCRD string

// The objects of k8s-gpu-hpa. The recording rule is as written; the HPA is in
// autoscaling/v2.
const (
	RecordingRule = `
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: cuda-test
  namespace: default
spec:
  groups:
  - name: gpu-rule-group
    rules:
    - record: cuda_test_gpu_avg
      expr: avg( max by(node, pod, namespace) (dcgm_gpu_utilization) * on(pod) group_left(label_app) max by(pod, label_app) (kube_pod_labels{label_app="cuda-test"}) )
      labels:
        namespace: default
        deployment: cuda-test
`
	HPA = `
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {name: cuda-test, namespace: default}
spec:
  scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: cuda-test}
  minReplicas: 1
  maxReplicas: 3
  behavior: {scaleDown: {stabilizationWindowSeconds: 0}}
  metrics:
  - type: Object
    object:
      describedObject: {apiVersion: apps/v1, kind: Deployment, name: cuda-test}
      metric: {name: cuda_test_gpu_avg}
      target: {type: Value, value: "5"}
`
)

// Metric is the path of the recording rule's result.
const Metric = "/apis/custom.metrics.k8s.io/v1beta1/namespaces/default/deployments.apps/cuda-test/cuda_test_gpu_avg"

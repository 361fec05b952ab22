// SPDX-License-Identifier: Apache-2.0

//go:build e2e

// Package adapter serves a prometheus-adapter file on a real control plane, without
// Prometheus: the real HorizontalPodAutoscaler scales on a metric that a rule makes.
package adapter

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpupilot/gpupilot/test/simnode"
	"github.com/gpupilot/gpupilot/test/stack"
)

const (
	name     = "chat"
	capacity = 20.0 // requests/s of one replica
)

const rules = `
rules:
- seriesQuery: 'DCGM_FI_DEV_GPU_UTIL{namespace!="",pod!=""}'
  resources: {overrides: {namespace: {resource: namespace}, pod: {resource: pod}}}
  name: {as: %s}
  metricsQuery: avg(<<.Series>>{<<.LabelMatchers>>}) by (<<.GroupBy>>)
- seriesQuery: 'DCGM_FI_DEV_GPU_UTIL{namespace!="",container!=""}'
  resources: {overrides: {namespace: {resource: namespace}, container: {group: cheese.io, resource: brand}}}
  name: {as: brand_busy}
  metricsQuery: max(<<.Series>>{<<.LabelMatchers>>}) by (<<.GroupBy>>)
externalRules:
- seriesQuery: 'DCGM_FI_DEV_GPU_UTIL{namespace!="",pod!=""}'
  resources: {overrides: {namespace: {resource: namespace}}}
  name: {as: load}
  metricsQuery: sum(<<.Series>>{<<.LabelMatchers>>}) by (container)
`

func TestHPAOnAnAdapterRule(t *testing.T) {
	file := filepath.Join(t.TempDir(), "config.yaml")
	write(t, file, fmt.Sprintf(rules, "busy"))
	var load stack.Load
	offer := func(replicas float64) { load.Set(replicas * capacity) }
	s := stack.New(t, stack.Config{
		Nodes: 2, HPASyncPeriod: time.Second,
		ControllerArgs: []string{"--adapter-config", file, "--external-metrics"},
		Workloads: []simnode.Workload{{
			Name: name, Model: simnode.Model{Capacity: capacity, Concurrency: 16, QueueLimit: 60},
			Offered: load.At,
		}},
	})
	offer(0.3)
	if err := s.Client.Create(t.Context(), stack.Deployment("default", name, 1, time.Second)); err != nil {
		t.Fatal(err)
	}
	if err := s.Client.Create(t.Context(), hpa("busy")); err != nil {
		t.Fatal(err)
	}
	offer(2.2)
	stack.Eventually(t, func() error {
		n, err := s.Replicas(t.Context(), "default", name)
		if err == nil && n < 4 {
			err = fmt.Errorf("%d replicas", n)
		}
		return err
	})

	// The external rule reads the namespace of the request. The query has its selector.
	stack.Eventually(t, func() error { return read(t, s, external+"default/load") })
	if err := read(t, s, external+"default/load?labelSelector=container%3Dnone"); err == nil {
		t.Error("a selector that matches nothing has a value")
	}
	if err := read(t, s, external+"kube-system/load"); err == nil {
		t.Error("a namespace without GPUs has a value")
	}

	customResource(t, s)

	// A broken file keeps the rules; a new one replaces them, without a restart.
	write(t, file, "rules: [{}]")
	stack.Eventually(t, func() error { return s.Logged("rules[0].seriesQuery: Required value") })
	stack.Eventually(t, func() error { return value(t, s, "busy") })
	write(t, file, fmt.Sprintf(rules, "busier"))
	stack.Eventually(t, func() error { return value(t, s, "busier") })
	stack.Eventually(t, func() error {
		if value(t, s, "busy") == nil {
			return errors.New("the removed rule is still served")
		}
		return nil
	})
}

// customResource installs the CRD that a rule names after the start: the metric appears
// in discovery, and is served once the controller may list the objects.
func customResource(t *testing.T, s *stack.Stack) {
	t.Helper()
	const metric, apis = "/apis/custom.metrics.k8s.io/v1beta2/namespaces/default/brands.cheese.io/server/brand_busy", "/apis/custom.metrics.k8s.io/v1beta2"
	stack.Eventually(t, func() error { return s.Logged("no custom resource of this group and name") })
	if body, _ := s.Raw(t.Context(), apis); strings.Contains(body, "cheese.io") {
		t.Error("discovery has a resource that the API server does not serve")
	}
	if err := s.Apply(t.Context(), []byte(brands)); err != nil {
		t.Fatal(err)
	}
	stack.Eventually(t, func() error {
		body, err := s.Raw(t.Context(), apis)
		if err == nil && !strings.Contains(body, `"brands.cheese.io/brand_busy"`) {
			err = errors.New("discovery lacks brands.cheese.io/brand_busy")
		}
		return err
	})
	stack.Eventually(t, func() error {
		body, err := s.Raw(t.Context(), metric)
		if err == nil || !strings.Contains(body, `resources: [brands], verbs: [list, watch]`) {
			return fmt.Errorf("without the right to list: %w", err)
		}
		return nil
	})
	if err := s.Apply(t.Context(), []byte(brandRights)); err != nil {
		t.Fatal(err)
	}
	stack.Eventually(t, func() error { return read(t, s, metric) })
	if err := read(t, s, strings.Replace(metric, "server", "other", 1)); err == nil {
		t.Error("an object that does not exist has a value")
	}
}

// brands is a CRD with one object, which has the name of a container.
const brands = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: brands.cheese.io}
spec:
  group: cheese.io
  scope: Namespaced
  names: {kind: Brand, plural: brands, singular: brand}
  versions:
  - {name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object}}}
---
apiVersion: cheese.io/v1
kind: Brand
metadata: {name: server, namespace: default}
`

const brandRights = `
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: "gpupilot-controller:brands"}
rules: [{apiGroups: [cheese.io], resources: [brands], verbs: [list, watch]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: "gpupilot-controller:brands"}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: "gpupilot-controller:brands"}
subjects: [{kind: ServiceAccount, name: gpupilot-controller, namespace: gpupilot-system}]
`

func write(t *testing.T, file, text string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func hpa(metric string) *autoscalingv2.HorizontalPodAutoscaler {
	sixty := resource.MustParse("60")
	return &autoscalingv2.HorizontalPodAutoscaler{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec: autoscalingv2.HorizontalPodAutoscalerSpec{
			ScaleTargetRef: autoscalingv2.CrossVersionObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Name: name}, MaxReplicas: 12,
			Metrics: []autoscalingv2.MetricSpec{{Type: autoscalingv2.PodsMetricSourceType, Pods: &autoscalingv2.PodsMetricSource{
				Metric: autoscalingv2.MetricIdentifier{Name: metric},
				Target: autoscalingv2.MetricTarget{Type: autoscalingv2.AverageValueMetricType, AverageValue: &sixty},
			}}},
		},
	}
}

// value returns nil if the API server has the metric of the workload's pods.
func value(t *testing.T, s *stack.Stack, metric string) error {
	return read(t, s, "/apis/custom.metrics.k8s.io/v1beta2/namespaces/default/pods/*/"+metric)
}

const external = "/apis/external.metrics.k8s.io/v1beta1/namespaces/"

// read returns nil if the API server answers a path with a value.
func read(t *testing.T, s *stack.Stack, path string) error {
	body, err := s.Raw(t.Context(), path)
	if err == nil && !strings.Contains(body, `"value"`) {
		err = fmt.Errorf("no value: %.200s", body)
	}
	return err
}

// SPDX-License-Identifier: Apache-2.0

//go:build e2e

// Package adapter serves a prometheus-adapter file on a real control plane, without
// Prometheus: the real HorizontalPodAutoscaler scales on a metric that a rule makes.
package adapter

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/gpupilot/gpupilot/internal/gpu/sim"
	"github.com/gpupilot/gpupilot/test/cluster"
	"github.com/gpupilot/gpupilot/test/simnode"
	"github.com/gpupilot/gpupilot/test/stack"
)

const (
	name     = "chat"
	capacity = 20.0 // requests/s of one replica
	patience = 90 * time.Second
)

const rules = `
rules:
- seriesQuery: 'DCGM_FI_DEV_GPU_UTIL{namespace!="",pod!=""}'
  resources: {overrides: {namespace: {resource: namespace}, pod: {resource: pod}}}
  name: {as: %s}
  metricsQuery: avg(<<.Series>>{<<.LabelMatchers>>}) by (<<.GroupBy>>)
externalRules:
- seriesQuery: 'DCGM_FI_DEV_GPU_UTIL{namespace!="",pod!=""}'
  resources: {overrides: {namespace: {resource: namespace}}}
  name: {as: load}
  metricsQuery: sum(<<.Series>>{<<.LabelMatchers>>}) by (container)
`

func TestHPAOnAnAdapterRule(t *testing.T) {
	file := filepath.Join(t.TempDir(), "config.yaml")
	write(t, file, fmt.Sprintf(rules, "busy"))
	var load atomic.Uint64
	offer := func(replicas float64) { load.Store(math.Float64bits(replicas * capacity)) }
	s, err := stack.Start(t.Context(), stack.Config{
		Nodes: 2, HPASyncPeriod: time.Second, Log: slog.New(slog.NewTextHandler(t.Output(), nil)),
		ControllerArgs: []string{"--adapter-config", file, "--external-metrics"},
		Workloads: []simnode.Workload{{
			Name: name, Model: sim.Workload{Capacity: capacity, Concurrency: 16, QueueLimit: 60},
			Offered: func(time.Time) float64 { return math.Float64frombits(load.Load()) },
		}},
	})
	if errors.Is(err, cluster.ErrNoBinary) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	t.Cleanup(func() {
		if log, err := os.ReadFile(s.ControllerLog()); err == nil && t.Failed() {
			t.Logf("%s", log[max(0, len(log)-8000):])
		}
	})
	offer(0.3)
	if err := s.Client.Create(t.Context(), stack.Deployment("default", name, 1, time.Second)); err != nil {
		t.Fatal(err)
	}
	if err := s.Client.Create(t.Context(), hpa("busy")); err != nil {
		t.Fatal(err)
	}
	offer(2.2)
	eventually(t, func() error { return replicas(t, s, func(n int32) bool { return n >= 4 }) })

	// The external rule reads the namespace of the request. The query has its selector.
	eventually(t, func() error { return read(t, s, external+"default/load") })
	if err := read(t, s, external+"default/load?labelSelector=container%3Dnone"); err == nil {
		t.Error("a selector that matches nothing has a value")
	}
	if err := read(t, s, external+"kube-system/load"); err == nil {
		t.Error("a namespace without GPUs has a value")
	}

	// A broken file keeps the rules; a new one replaces them, without a restart.
	write(t, file, "rules: [{}]")
	eventually(t, func() error { return logged(s, "rules[0].seriesQuery: Required value") })
	if err := value(t, s, "busy"); err != nil {
		t.Error(err)
	}
	write(t, file, fmt.Sprintf(rules, "busier"))
	eventually(t, func() error { return value(t, s, "busier") })
	eventually(t, func() error {
		if value(t, s, "busy") == nil {
			return errors.New("the removed rule is still served")
		}
		return nil
	})
}

func write(t *testing.T, file, text string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func eventually(t *testing.T, check func() error) {
	t.Helper()
	if err := stack.Eventually(t.Context(), patience, check); err != nil {
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

func replicas(t *testing.T, s *stack.Stack, ok func(int32) bool) error {
	n, err := s.Replicas(t.Context(), "default", name)
	if err == nil && !ok(n) {
		err = fmt.Errorf("%d replicas", n)
	}
	return err
}

// value returns nil if the API server has the metric of the workload's pods.
func value(t *testing.T, s *stack.Stack, metric string) error {
	return read(t, s, "/apis/custom.metrics.k8s.io/v1beta2/namespaces/default/pods/*/"+metric)
}

const external = "/apis/external.metrics.k8s.io/v1beta1/namespaces/"

// read returns nil if the API server answers a path with a value.
func read(t *testing.T, s *stack.Stack, path string) error {
	clients, err := kubernetes.NewForConfig(s.REST)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	b, err := clients.RESTClient().Get().RequestURI(path).DoRaw(ctx)
	if err == nil && !strings.Contains(string(b), `"value"`) {
		err = fmt.Errorf("no value: %.200s", b)
	}
	return err
}

// logged returns nil if the controller's log contains a text.
func logged(s *stack.Stack, text string) error {
	log, err := os.ReadFile(s.ControllerLog())
	if err == nil && !strings.Contains(string(log), text) {
		err = fmt.Errorf("the log does not say %q", text)
	}
	return err
}

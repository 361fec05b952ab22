// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/test/stack"
)

// What the API server itself refuses, by the CRD's rules.
func TestAPIServerRefuses(t *testing.T) {
	f := func(what string, change func(*v1alpha1.GPUAutoscalerSpec), want ...string) {
		t.Helper()
		a := stack.Autoscaler("refused")
		change(&a.Spec)
		err := rig.Client.Create(t.Context(), a)
		for _, w := range want {
			if err == nil || !strings.Contains(err.Error(), w) {
				t.Errorf("%s: error %v, want it to say %q", what, err, w)
			}
		}
	}
	f("min > max", func(s *v1alpha1.GPUAutoscalerSpec) { n := int32(20); s.MinReplicas = &n }, "minReplicas must not be greater than maxReplicas")
	f("no signal", func(s *v1alpha1.GPUAutoscalerSpec) { s.Signals = nil }, "spec.signals")
	f("two sources", func(s *v1alpha1.GPUAutoscalerSpec) { s.Signals[0].Preset = "vllm" }, "exactly one of gpu, pods, query and preset")
	f("zero without a query", func(s *v1alpha1.GPUAutoscalerSpec) { n := int32(0); s.MinReplicas = &n }, "can be read at zero replicas")
	f("an unknown preset", func(s *v1alpha1.GPUAutoscalerSpec) { s.Signals[0] = v1alpha1.Signal{Preset: "nim"} }, "Unsupported value", "sglang")
	f("a preset's target for the whole", func(s *v1alpha1.GPUAutoscalerSpec) {
		s.Signals[0].GPU, s.Signals[0].Preset, s.Signals[0].Target.Type = nil, "tgi", v1alpha1.Value
	}, "a preset's target is per replica")
	f("a port beside no preset", func(s *v1alpha1.GPUAutoscalerSpec) { s.Signals[0].Path = "/m" }, "port, path, scheme and tls of a signal are for presets")
	f("a scheme without tls", func(s *v1alpha1.GPUAutoscalerSpec) { s.Signals[0] = v1alpha1.Signal{Preset: "vllm", Scheme: "HTTPS"} }, "scheme HTTPS needs tls")
	f("an activation that cannot be read", func(s *v1alpha1.GPUAutoscalerSpec) { s.Signals[0].Activation = &s.Signals[0].Target.Value }, "activation needs a signal")
	f("unknown actuation", func(s *v1alpha1.GPUAutoscalerSpec) { s.Actuation = "Guess" }, "spec.actuation", "Guess")
}

// What the controller refuses: it says so and touches nothing.
func TestControllerRefuses(t *testing.T) {
	a := rig.Autoscale(t, "nobody", nil)
	refused(t, a.Name, v1alpha1.ConditionAbleToScale, "nobody")
	wantRow(t, a.Name, map[string]string{"Target": "nobody", "Serving": "0", "Desired": "<nil>", "Ready": "False", "Why": "TargetNotFound", "Decision": "<nil>"})

	rig.Autoscale(t, "badmetric", func(a *v1alpha1.GPUAutoscaler) { a.Spec.Signals[0].GPU.Metric = "Nope" })
	refused(t, "badmetric", v1alpha1.ConditionReady, "Nope")

	rig.Deploy(t, "updown", 1, 0)
	one := int32(1)
	hpa := &autoscalingv2.HorizontalPodAutoscaler{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "owner-of-it"},
		Spec: autoscalingv2.HorizontalPodAutoscalerSpec{
			ScaleTargetRef: autoscalingv2.CrossVersionObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "updown"},
			MinReplicas:    &one, MaxReplicas: 3,
			Metrics: []autoscalingv2.MetricSpec{{Type: autoscalingv2.PodsMetricSourceType, Pods: &autoscalingv2.PodsMetricSource{
				Metric: autoscalingv2.MetricIdentifier{Name: "DCGM_FI_DEV_GPU_UTIL"},
				Target: autoscalingv2.MetricTarget{Type: autoscalingv2.AverageValueMetricType, AverageValue: &stack.Autoscaler("x").Spec.Signals[0].Target.Value},
			}}},
		},
	}
	if err := rig.Client.Create(t.Context(), hpa); err != nil {
		t.Fatal(err)
	}
	rig.Autoscale(t, "updown", nil)
	refused(t, "updown", v1alpha1.ConditionAbleToScale, "owner-of-it")

	// The owner goes: the target is free.
	if err := rig.Client.Delete(t.Context(), hpa); err != nil {
		t.Fatal(err)
	}
	stack.Eventually(t, func() error {
		if c := meta.FindStatusCondition(rig.Status(t, "updown").Conditions, v1alpha1.ConditionAbleToScale); c == nil || c.Status != metav1.ConditionTrue {
			return fmt.Errorf("still refused: %+v", c)
		}
		return nil
	})
}

// wantRow checks what kubectl get prints of a GPUAutoscaler: the API server's table.
func wantRow(t *testing.T, name string, want map[string]string) {
	t.Helper()
	cfg := *rig.REST
	cfg.AcceptContentTypes = "application/json;as=Table;g=meta.k8s.io;v=v1"
	cfg.GroupVersion, cfg.APIPath, cfg.NegotiatedSerializer = &v1alpha1.GroupVersion, "/apis", scheme.Codecs.WithoutConversion()
	c, err := rest.RESTClientFor(&cfg)
	if err != nil {
		t.Fatal(err)
	}
	text, err := c.Get().Namespace(namespace).Resource("gpuautoscalers").Name(name).SetHeader("Accept", cfg.AcceptContentTypes).DoRaw(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var table metav1.Table
	if err := json.Unmarshal(text, &table); err != nil || len(table.Rows) != 1 {
		t.Fatalf("%v: %s", err, text)
	}
	got := map[string]string{}
	for i, column := range table.ColumnDefinitions {
		if _, ok := want[column.Name]; ok {
			got[column.Name] = fmt.Sprint(table.Rows[0].Cells[i])
		}
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("%s: (-want +got)\n%s", name, d)
	}
}

func refused(t *testing.T, name, condition, says string) {
	t.Helper()
	stack.Eventually(t, func() error {
		c := meta.FindStatusCondition(rig.Status(t, name).Conditions, condition)
		if c == nil || c.Status != metav1.ConditionFalse || !strings.Contains(c.Message, says) {
			return fmt.Errorf("%s of %s is %+v, want False with %q", condition, name, c, says)
		}
		return nil
	})
}

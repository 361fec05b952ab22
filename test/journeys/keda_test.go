// SPDX-License-Identifier: Apache-2.0

//go:build !race

package journeys

import (
	"context"
	"crypto/tls"
	"fmt"
	"math"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"k8s.io/apimachinery/pkg/runtime/schema"

	pb "github.com/gpupilot/gpupilot/internal/serve/kedascaler/externalscaler"
	"github.com/gpupilot/gpupilot/test/stack"
)

// KEDA asks about a ScaledObject what its operator asks of an external scaler. test/e2e/keda runs the operator itself.
func TestKEDAScaler(t *testing.T) {
	t.Parallel()
	const name = "keda"
	if err := rig.InstallKind(t.Context(), schema.GroupVersionKind{Group: "keda.sh", Version: "v1alpha1", Kind: "ScaledObject"}); err != nil {
		t.Fatal(err)
	}
	rig.Offer(name, 0.95)
	rig.Deploy(t, name, 1, time.Second)
	apply(t, `
apiVersion: keda.sh/v1alpha1
kind: ScaledObject
metadata: {name: keda, namespace: `+namespace+`}
spec:
  scaleTargetRef: {name: keda}
  maxReplicaCount: 6
  triggers:
  - {type: external, metadata: {scalerAddress: "localhost:9443", metric: Utilization, target: "60"}}
`)
	conn, err := grpc.NewClient(kedaAddress, grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{InsecureSkipVerify: true}))) // KEDA's unsafeSsl
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	object := &pb.ScaledObjectRef{Name: name, Namespace: namespace, ScalerMetadata: map[string]string{"metric": "Utilization", "target": "60"}}
	ask := func(method string, in, out any) error {
		ctx, cancel := context.WithTimeout(t.Context(), stack.Patience)
		defer cancel()
		return conn.Invoke(ctx, "/externalscaler.ExternalScaler/"+method, in, out)
	}
	var spec pb.GetMetricSpecResponse
	stack.Eventually(t, func() error {
		if err := ask("GetMetricSpec", object, &spec); err != nil {
			return err
		}
		if len(spec.MetricSpecs) != 1 || target(spec.MetricSpecs[0]) != 60 {
			return fmt.Errorf("the metric is %v, want one with a target of 60", spec.MetricSpecs)
		}
		return nil
	})
	// What the HPA that KEDA makes computes from the answer.
	wants := func(want float64) {
		t.Helper()
		stack.Eventually(t, func() error {
			var got pb.GetMetricsResponse
			if err := ask("GetMetrics", &pb.GetMetricsRequest{ScaledObjectRef: object, MetricName: spec.MetricSpecs[0].MetricName}, &got); err != nil {
				return err
			}
			if n := len(got.MetricValues); n != 1 {
				return fmt.Errorf("%d values", n)
			}
			if n := math.Ceil(got.MetricValues[0].MetricValueFloat / target(spec.MetricSpecs[0])); n != want {
				return fmt.Errorf("%v replicas, want %v: %v", n, want, got.MetricValues)
			}
			return nil
		})
	}
	wants(2)
	var active pb.IsActiveResponse
	if err := ask("IsActive", object, &active); err != nil || !active.Result {
		t.Errorf("active: %v, %v", active.Result, err)
	}
	rig.Offer(name, 0.3)
	wants(1)
}

func target(s *pb.MetricSpec) float64 {
	if s.TargetSizeFloat != 0 {
		return s.TargetSizeFloat
	}
	return float64(s.TargetSize)
}

// SPDX-License-Identifier: Apache-2.0

package kedascaler

import (
	"context"
	"errors"
	"fmt"
	"math"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/gpupilot/gpupilot/internal/base/excerpt"
	pb "github.com/gpupilot/gpupilot/internal/serve/kedascaler/externalscaler"
)

// maxShown bounds the values of requests that errors quote, in bytes.
const maxShown = 80

func short(s string) string { return excerpt.Of(s, maxShown) }

// request is a trigger's request, resolved and checked.
type request struct {
	object  *ScaledObject
	trigger Trigger
	total   bool // the trigger's metricType is Value: the metric is not divided by the replicas
}

// reading is the current value of a trigger.
type reading struct {
	metric float64 // for the HPA
	active bool
}

// resolve finds the ScaledObject and its trigger. Errors are gRPC status errors.
func (s *Server) resolve(ctx context.Context, ref *pb.ScaledObjectRef) (*request, error) {
	namespace, name := ref.GetNamespace(), ref.GetName()
	if namespace == "" || name == "" || len(namespace) > maxName || len(name) > maxName {
		return nil, status.Errorf(codes.InvalidArgument, "scaledObjectRef: namespace %q, name %q: both are needed, with at most %d bytes", short(namespace), short(name), maxName)
	}
	if err := s.authorize(ctx, namespace); err != nil {
		return nil, err
	}
	t, err := ParseTrigger(ref.GetScalerMetadata())
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	o, own, err := s.findTrigger(ctx, ref)
	if err != nil {
		return nil, err
	}
	r := &request{object: o, trigger: t, total: own.MetricType == "Value"}
	return r, r.check()
}

// findTrigger finds the ScaledObject and its trigger with the request's metadata. KEDA
// asks as soon as an object has changed, which may not be in memory yet.
func (s *Server) findTrigger(ctx context.Context, ref *pb.ScaledObjectRef) (o *ScaledObject, own *ObjectTrigger, err error) {
	for _, live := range []bool{false, true} {
		if o, err = s.signals.ScaledObject(ctx, ref.GetNamespace(), ref.GetName(), live); err != nil {
			continue
		}
		if own, ok := o.findTrigger(ref.GetScalerMetadata()); ok {
			return o, own, nil
		}
	}
	if err != nil {
		return nil, nil, statusOf(err)
	}
	return nil, nil, status.Errorf(codes.FailedPrecondition, "ScaledObject %s/%s has no external or external-push trigger with this metadata; "+
		"write the values directly: FromEnv keys are not supported", ref.GetNamespace(), ref.GetName())
}

// check refuses a trigger that would scale to zero and never back.
func (r *request) check() error {
	if r.trigger.Metric != "" && r.trigger.Activation != nil && r.object.MinReplicas == 0 && len(r.object.Triggers) == 1 {
		return status.Errorf(codes.InvalidArgument, "metadata.%s: a GPU metric has no value at zero replicas, so nothing could scale from zero again; "+
			"remove the key, set minReplicaCount: 1, or add a trigger that has a value at zero replicas", keyActivation)
	}
	return nil
}

// statusOf converts an error of Signals.
func statusOf(err error) error {
	code := codes.Internal
	switch {
	case errors.Is(err, ErrNotFound):
		code = codes.NotFound
	case errors.Is(err, ErrInvalid):
		code = codes.InvalidArgument
	case errors.Is(err, ErrNoValue):
		code = codes.Unavailable
	case errors.Is(err, context.DeadlineExceeded):
		code = codes.DeadlineExceeded
	case errors.Is(err, context.Canceled):
		code = codes.Canceled
	}
	return status.Error(code, excerpt.Of(err.Error(), maxMessage))
}

// maxMessage bounds an error's text: KEDA writes it into Events.
const maxMessage = 512

// read returns the current value of a trigger.
func (s *Server) read(ctx context.Context, r *request) (reading, error) {
	t := &r.trigger
	switch {
	case t.Autoscaler != "":
		v, err := s.signals.Desired(r.object.Namespace, t.Autoscaler)
		return t.readingOf(v), err
	case t.Query != "":
		v, err := s.signals.Query(r.object.Namespace, t.Query)
		return t.readingOf(v), err
	}
	v, err := s.signals.Workload(ctx, &WorkloadQuery{
		Namespace: r.object.Namespace, Target: r.object.Target, Metric: t.Metric, Stat: t.Stat, Window: t.Window, Active: t.Active,
	})
	if err != nil {
		return reading{}, err
	}
	return r.ofWorkload(&v)
}

func (t *Trigger) readingOf(v Sample) reading {
	activation := 0.0
	if t.Activation != nil {
		activation = *t.Activation
	}
	return reading{v.Value, v.Value > activation}
}

// ofWorkload converts the value of a workload. The HPA divides an AverageValue by the
// replicas: it gets the statistic once for each serving pod. A sum is the workload's
// total and is not multiplied. At zero replicas the total is zero.
//
// A workload with pods stays active unless activationTarget says otherwise, because idle
// GPUs alone must not remove the last replica: nothing could bring it back.
func (r *request) ofWorkload(v *WorkloadValue) (reading, error) {
	t := &r.trigger
	if v.Pods == 0 {
		return reading{}, nil
	}
	if v.Serving == 0 {
		return reading{}, fmt.Errorf("%w: none of the %d pods of %s %s serves yet", ErrNoValue, v.Pods, r.object.Target.Kind, r.object.Target.Name)
	}
	out := reading{v.Value, true}
	if !r.total && t.Stat != "sum" {
		out.metric *= float64(v.Serving)
	}
	if t.Activation != nil {
		out.active = v.Value > *t.Activation
	}
	return out, nil
}

// IsActive reports whether the workload is to have at least one replica.
func (s *Server) IsActive(ctx context.Context, ref *pb.ScaledObjectRef) (*pb.IsActiveResponse, error) {
	r, err := s.resolve(ctx, ref)
	if err != nil {
		return nil, err
	}
	v, err := s.read(ctx, r)
	if err != nil {
		return nil, statusOf(err)
	}
	return &pb.IsActiveResponse{Result: v.active}, nil
}

// GetMetricSpec returns the trigger's metric and target for the HPA.
func (s *Server) GetMetricSpec(ctx context.Context, ref *pb.ScaledObjectRef) (*pb.GetMetricSpecResponse, error) {
	r, err := s.resolve(ctx, ref)
	if err != nil {
		s.report(ref, err)
		return nil, err
	}
	return &pb.GetMetricSpecResponse{MetricSpecs: []*pb.MetricSpec{{
		MetricName: r.trigger.MetricName(), TargetSize: max(1, round(r.trigger.Target)), TargetSizeFloat: r.trigger.Target,
	}}}, nil
}

// report reports an error that the author of the trigger can mend.
func (s *Server) report(ref *pb.ScaledObjectRef, err error) {
	switch status.Code(err) {
	case codes.InvalidArgument, codes.NotFound, codes.FailedPrecondition:
		if s.cfg.Report != nil {
			s.cfg.Report(ref.GetNamespace(), ref.GetName(), status.Convert(err).Message())
		}
	}
}

// GetMetrics returns the value of the trigger's metric.
func (s *Server) GetMetrics(ctx context.Context, in *pb.GetMetricsRequest) (*pb.GetMetricsResponse, error) {
	r, err := s.resolve(ctx, in.GetScaledObjectRef())
	if err != nil {
		return nil, err
	}
	name := r.trigger.MetricName()
	if got := in.GetMetricName(); got != "" && got != name {
		return nil, status.Errorf(codes.NotFound, "metricName %q: the trigger's metric is %s", short(got), name)
	}
	v, err := s.read(ctx, r)
	if err != nil {
		return nil, statusOf(err)
	}
	return &pb.GetMetricsResponse{MetricValues: []*pb.MetricValue{{
		MetricName: name, MetricValue: round(v.metric), MetricValueFloat: v.metric,
	}}}, nil
}

// round returns v as the nearest whole number that int64 can hold.
func round(v float64) int64 {
	switch {
	case v >= math.MaxInt64:
		return math.MaxInt64
	case v <= math.MinInt64:
		return math.MinInt64
	}
	return int64(math.Round(v))
}

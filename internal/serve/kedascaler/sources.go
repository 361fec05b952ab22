// SPDX-License-Identifier: Apache-2.0

package kedascaler

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/autoscaler/controller"
	"github.com/gpupilot/gpupilot/internal/serve/metricquery"
	"github.com/gpupilot/gpupilot/internal/window/usage"
)

// Workloads returns the values of workloads, as *usage.Reader does.
type Workloads interface {
	WorkloadValue(ctx context.Context, q *usage.WorkloadQuery, now time.Time) (usage.WorkloadValue, error)
}

// Decisions returns the replicas that a GPUAutoscaler wants, as *controller.Controller does.
type Decisions interface {
	DesiredReplicas(namespace, name string) (controller.DesiredReplicas, error)
}

// Queries returns the values of MetricQueries, as *metricquery.Keeper does.
type Queries interface {
	Object(namespace, name string) (v metricquery.Sample, found bool, err error)
	Follow(namespace, name string) (stop func())
}

// Sources is Signals in the controller.
type Sources struct {
	*Objects
	Workloads Workloads
	Decisions Decisions
	Queries   Queries
}

var _ Signals = (*Sources)(nil)

// Workload implements Signals.
func (s *Sources) Workload(ctx context.Context, q *WorkloadQuery) (WorkloadValue, error) {
	v, err := s.Workloads.WorkloadValue(ctx, &usage.WorkloadQuery{
		Namespace: q.Namespace, Target: v1alpha1.CrossVersionObjectReference(q.Target), Metric: q.Metric, Stat: q.Stat, Window: q.Window, Active: q.Active,
	}, time.Now())
	return WorkloadValue(v), errorOf(err)
}

// Desired implements Signals.
func (s *Sources) Desired(namespace, autoscaler string) (Sample, error) {
	d, err := s.Decisions.DesiredReplicas(namespace, autoscaler)
	return Sample{Value: float64(d.Replicas), At: d.At}, errorOf(err)
}

// errorOf converts an error of the controller to one of
func errorOf(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, usage.ErrUnknownMetric):
		return fmt.Errorf("%w: metadata.metric: %w", ErrInvalid, err)
	case errors.Is(err, usage.ErrUnknownWorkload):
		return fmt.Errorf("%w: %w", ErrNotFound, err)
	case errors.Is(err, usage.ErrNoValue):
		return fmt.Errorf("%w: %w", ErrNoValue, err)
	}
	return err
}

// Query implements Signals.
func (s *Sources) Query(namespace, name string) (Sample, error) {
	v, found, err := s.Queries.Object(namespace, name)
	switch {
	case !found:
		return Sample{}, fmt.Errorf("%w: MetricQuery %s/%s does not exist", ErrNotFound, namespace, name)
	case err != nil:
		return Sample{}, fmt.Errorf("%w: %w", ErrNoValue, err)
	}
	return Sample(v), nil
}

// Follow implements Signals.
func (s *Sources) Follow(namespace, query string) (stop func()) {
	return s.Queries.Follow(namespace, query)
}

// SPDX-License-Identifier: Apache-2.0

package metricsapi

import (
	"context"
	"math"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/metrics/pkg/apis/custom_metrics"

	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/window/stat"
)

// Statistics computes statistics from memory.
type Statistics interface {
	// Statistic returns a statistic of an existing object: of a workload, over its
	// serving pods; of a pod, a node or a namespace, over its GPUs. The error is an API
	// status error.
	Statistic(ctx context.Context, r schema.GroupResource, namespace, name string, q *stat.Request) (stat.Value, error)
}

// defaultSpan is the length of the controller's window by default.
const defaultSpan = 10 * time.Minute

// statistic returns a statistic of one object, or the reason why there is no value.
func (p *Provider) statistic(ctx context.Context, k objectKind, name types.NamespacedName, s *spec) (v *custom_metrics.MetricValue, reason string, err error) {
	q := stat.Request{
		Query: stat.Query{Now: p.deps.Now(), MaxAge: p.maxAge},
		Stat:  s.stat, Window: s.window, GPU: s.gpu, InUse: s.inUse,
	}
	if s.field != nil {
		q.Field = s.field.ID
	} else {
		q.Metric = s.base
	}
	result, err := p.deps.Statistics.Statistic(ctx, k.resource, name.Namespace, name.Name, &q)
	if err != nil || result.Reason != "" {
		return nil, result.Reason, err
	}
	value := result.Value / s.scale
	if math.IsNaN(value) || math.IsInf(value, 0) {
		return nil, "its value is not a finite number", nil
	}
	if p.observe != nil {
		p.observe(q.Now.Sub(result.At).Seconds())
	}
	window := result.Span
	if s.window == 0 {
		window = 0 // the times of different nodes are no window
		if s.field != nil && s.field.PodAgg == gpu.Rate {
			window = p.window
		}
	}
	return &custom_metrics.MetricValue{
		DescribedObject: k.reference(name.Namespace, name.Name),
		Metric:          custom_metrics.MetricIdentifier{Name: s.name},
		Timestamp:       metav1.Time{Time: result.At},
		WindowSeconds:   windowSeconds(window),
		Value:           quantity(value),
	}, "", nil
}

// SPDX-License-Identifier: Apache-2.0

package metricquery

import (
	"context"
	"fmt"
	"time"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/window/usage"
)

// ReadWorkload reads the value of a MetricQuery's spec.gpu. A workload at zero replicas
// has no value.
func ReadWorkload(ctx context.Context, from *usage.Reader, namespace string, q *v1alpha1.MetricQueryGPU) (Sample, error) {
	in := &usage.WorkloadQuery{Namespace: namespace, Target: q.ScaleTargetRef, Metric: q.Metric, Stat: q.Stat, Active: q.InUse == "active"}
	if q.Window != nil {
		in.Window = q.Window.Duration
	}
	v, err := from.WorkloadValue(ctx, in, time.Now())
	if err == nil && v.Serving == 0 {
		err = fmt.Errorf("%w: none of the %d pods of %s %s serves", usage.ErrNoValue, v.Pods, q.ScaleTargetRef.Kind, q.ScaleTargetRef.Name)
	}
	return Sample{Value: v.Value, At: v.At}, err
}

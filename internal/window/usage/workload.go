// SPDX-License-Identifier: Apache-2.0

package usage

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/gpu/names"
	"github.com/gpupilot/gpupilot/internal/scale/replica"
	"github.com/gpupilot/gpupilot/internal/window/stat"
)

// Target is a scale target.
type Target struct {
	Kind     string
	Selector labels.Selector // of its pods
}

// WorkloadQuery asks for a metric of the serving pods of a workload.
type WorkloadQuery struct {
	Namespace string
	Target    v1alpha1.CrossVersionObjectReference
	Metric    string        // a GPU metric of any profile, in the unit of that name, or a pod metric that is scraped
	Stat      string        // how the pods' values are combined: avg, sum, min, max or a percentile such as p95; empty: the metric's default
	Window    time.Duration // over which values are taken; 0: the newest
	Active    bool          // only GPUs with a utilisation above zero within the window, or now without a window
}

// WorkloadValue is the answer to a WorkloadQuery.
type WorkloadValue struct {
	Value   float64
	At      time.Time // the oldest of the pods' newest values
	Serving int       // pods that serve
	Pods    int       // pods that are not finished, starting ones included
}

// The errors of WorkloadValue that callers distinguish. Their text
// is for the author of the object that asks.
var (
	ErrUnknownMetric   = errors.New("unknown metric")
	ErrUnknownWorkload = errors.New("no such workload")
	ErrNoValue         = errors.New("no value")
)

// WorkloadValue evaluates a query from memory. Only pods that serve count. Those without a
// fresh value must not be able to make it higher. Without pods there is no value, and no
// error.
func (m *Reader) WorkloadValue(ctx context.Context, q *WorkloadQuery, now time.Time) (v WorkloadValue, err error) {
	metric, err := m.podMetric(q.Metric, now)
	if err != nil {
		return v, err
	}
	sq, err := metric.statQuery(q, now)
	if err != nil {
		return v, err
	}
	t, err := m.deps.TargetOf(ctx, q.Namespace, q.Target)
	if errors.Is(err, ErrUnknownWorkload) {
		return v, err
	} else if err != nil {
		return v, fmt.Errorf("%w: %w", ErrNoValue, err)
	}
	x := newStatReader(&m.deps, sq, false)
	for _, pod := range m.deps.Pods.Select(q.Namespace, t.Selector) {
		if replica.Finished(pod) {
			continue
		}
		v.Pods++
		if !replica.Serving(pod) {
			continue
		}
		v.Serving++
		if metric.field == nil {
			x.addPod(pod, true)
		} else {
			member := newMember(pod, m.deps.Devices)
			x.addMember(&member)
		}
	}
	if v.Serving == 0 {
		return v, nil
	}
	r := x.result("serving pods")
	if r.Reason != "" {
		return v, fmt.Errorf("%w of metric %s for %s %s: %s", ErrNoValue, q.Metric, t.Kind, q.Target.Name, r.Reason)
	}
	v.Value, v.At = r.Value/metric.scale, r.At
	return v, nil
}

// podMetric is a metric of pods, resolved.
type podMetric struct {
	field  *gpu.Field // nil: a pod's own metric
	name   string
	scale  float64 // the field's value divided by scale is in the name's unit
	maxAge time.Duration
}

// podMetric resolves a metric's name, and has a GPU field scraped from now on.
func (m *Reader) podMetric(name string, now time.Time) (podMetric, error) {
	p := podMetric{name: name, scale: 1, maxAge: m.deps.MaxAge}
	ref, ok := names.Resolve(name)
	if !ok {
		if !m.deps.Fields.hasPodMetric(name) {
			return p, fmt.Errorf("%w %q: no profile has a GPU metric of this name, and no GPUAutoscaler reads a pod metric of this name; "+
				"use a GPU metric such as Utilization, MemoryUsed or DCGM_FI_DEV_GPU_UTIL", ErrUnknownMetric, name)
		}
		return p, nil
	}
	p.field, ok = gpu.Lookup(ref.Field)
	if !ok || p.field.Kind == gpu.Label || ref.Scale == 0 {
		return p, fmt.Errorf("%w %q: it is a label, not a number", ErrUnknownMetric, name)
	}
	p.scale = ref.Scale
	m.deps.Fields.Request(ref.Field, now)
	return p, nil
}

// statQuery returns the query for a statistic of the metric.
func (m *podMetric) statQuery(q *WorkloadQuery, now time.Time) (*stat.Request, error) {
	out := &stat.Request{Query: stat.Query{Now: now, MaxAge: m.maxAge}, Window: q.Window, InUse: stat.AllocatedGPU}
	if m.field != nil {
		out.Field = m.field.ID
	} else {
		out.Metric = m.name
	}
	if q.Active {
		out.InUse = stat.ActiveGPU
	}
	if q.Stat == "" {
		return out, nil
	}
	var ok bool
	if out.Stat, ok = stat.Parse(q.Stat); !ok {
		return nil, fmt.Errorf("%w: statistic %q is none of avg, sum, min, max and p1 to p99", ErrNoValue, q.Stat)
	}
	return out, nil
}

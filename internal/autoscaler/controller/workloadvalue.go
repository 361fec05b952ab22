// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/gpu/names"
	"github.com/gpupilot/gpupilot/internal/scale/replica"
	"github.com/gpupilot/gpupilot/internal/window/stat"
)

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

// The errors of WorkloadValue and DesiredReplicas that callers distinguish. Their text
// is for the author of the object that asks.
var (
	ErrUnknownMetric   = errors.New("unknown metric")
	ErrUnknownWorkload = errors.New("no such workload")
	ErrNoValue         = errors.New("no value")
)

// WorkloadValue evaluates a query from memory. Only pods that serve count. At least half
// of those with GPUs must have a fresh value: a value of fewer would say little about the
// workload. Without pods there is no value, and no error.
func (c *Controller) WorkloadValue(ctx context.Context, q *WorkloadQuery, now time.Time) (v WorkloadValue, err error) {
	m, err := c.podMetric(q.Metric, now)
	if err != nil {
		return v, err
	}
	sq, err := m.statQuery(q, now)
	if err != nil {
		return v, err
	}
	t, err := c.targets.resolve(ctx, q.Namespace, q.Target, false)
	if errors.Is(err, errNoTarget) {
		return v, fmt.Errorf("%w: %w", ErrUnknownWorkload, err)
	} else if err != nil {
		return v, fmt.Errorf("%w: %w", ErrNoValue, err)
	}
	x := newStatReader(c, sq, false)
	for _, pod := range c.deps.Pods.Select(q.Namespace, t.selector) {
		if replica.Finished(pod) {
			continue
		}
		v.Pods++
		if !replica.Serving(pod) {
			continue
		}
		v.Serving++
		if m.field == nil {
			x.addPod(pod)
		} else {
			member := newMember(pod, c.deps.Devices)
			x.addMember(&member)
		}
	}
	if v.Serving == 0 {
		return v, nil
	}
	r := x.result("serving pods")
	switch {
	case r.Reason == "" && 2*r.Have < r.Members:
		return v, fmt.Errorf("%w: metric %s has a fresh value for %d of the %d serving pods of %s %s; at least half are needed",
			ErrNoValue, q.Metric, r.Have, r.Members, t.kind, t.name)
	case r.Reason != "":
		return v, fmt.Errorf("%w of metric %s for %s %s: %s", ErrNoValue, q.Metric, t.kind, t.name, r.Reason)
	}
	v.Value, v.At = r.Value/m.scale, r.At
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
func (c *Controller) podMetric(name string, now time.Time) (podMetric, error) {
	m := podMetric{name: name, scale: 1, maxAge: c.cfg.MaxAge}
	ref, ok := names.Resolve(name)
	if !ok {
		if !slices.Contains(c.Names(), name) {
			return m, fmt.Errorf("%w %q: no profile has a GPU metric of this name, and no GPUAutoscaler reads a pod metric of this name; "+
				"use a GPU metric such as Utilization, MemoryUsed or DCGM_FI_DEV_GPU_UTIL", ErrUnknownMetric, name)
		}
		return m, nil
	}
	m.field, ok = gpu.Lookup(ref.Field)
	if !ok || m.field.Kind == gpu.Label || ref.Scale == 0 {
		return m, fmt.Errorf("%w %q: it is a label, not a number", ErrUnknownMetric, name)
	}
	m.scale = ref.Scale
	if c.fieldUses.recordUse(ref.Field, now) {
		c.requestDiscovery()
	}
	return m, nil
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

// DesiredReplicas is what a GPUAutoscaler decided last.
type DesiredReplicas struct {
	Replicas int32
	At       time.Time
}

// DesiredReplicas returns the last decision of a GPUAutoscaler. The error is
// ErrUnknownWorkload if there is no such GPUAutoscaler, and ErrNoValue, with the reason,
// while it makes no decisions.
func (c *Controller) DesiredReplicas(namespace, name string) (DesiredReplicas, error) {
	c.mu.RLock()
	w := c.workloads[types.NamespacedName{Namespace: namespace, Name: name}]
	c.mu.RUnlock()
	if w == nil {
		return DesiredReplicas{}, fmt.Errorf("%w: GPUAutoscaler %s/%s does not exist", ErrUnknownWorkload, namespace, name)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.counts.ok {
		return DesiredReplicas{w.counts.desired, w.counts.at}, nil
	}
	return DesiredReplicas{}, fmt.Errorf("%w: GPUAutoscaler %s/%s makes no decision now%s", ErrNoValue, namespace, name, w.obstacle())
}

// obstacle returns the reason why there is no decision, from the conditions. w.mu is
// held.
func (w *workload) obstacle() string {
	for i := range w.conditions {
		if c := &w.conditions[i]; c.Status == metav1.ConditionFalse {
			return ": " + c.Message
		}
	}
	return ""
}

// AutoscalersOf returns the names of a namespace's GPUAutoscalers, sorted.
func (c *Controller) AutoscalersOf(namespace string) (out []string) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	for key := range c.workloads {
		if key.Namespace == namespace {
			out = append(out, key.Name)
		}
	}
	slices.Sort(out)
	return out
}

// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/gpu/names"
	"github.com/gpupilot/gpupilot/internal/scale"
	"github.com/gpupilot/gpupilot/internal/series"
)

// WorkloadQuery asks for a metric of the serving pods of a workload.
type WorkloadQuery struct {
	Namespace string
	Target    v1alpha1.CrossVersionObjectReference
	Metric    string        // a GPU metric of any profile, in the unit of that name, or a pod metric that is scraped
	Stat      string        // how the pods' values are combined: avg, sum, min, max or a percentile such as p95
	Window    time.Duration // over which values are taken; 0: the newest
	Active    bool          // only pods whose GPUs were used within the window, or activeWindow without one
}

// WorkloadValue is the answer to a WorkloadQuery.
type WorkloadValue struct {
	Value   float64
	At      time.Time // of the oldest value that is included
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

// WorkloadValue evaluates a query from memory. Only pods that serve count, and at least
// half of them must have a fresh value: a value of fewer would say little about the
// workload. Without pods there is no value, and no error.
func (c *Controller) WorkloadValue(ctx context.Context, q *WorkloadQuery, now time.Time) (v WorkloadValue, err error) {
	m, err := c.podMetric(q.Metric, now)
	if err != nil {
		return v, err
	}
	t, err := c.targets.resolve(ctx, q.Namespace, q.Target, false)
	if errors.Is(err, errNoTarget) {
		return v, fmt.Errorf("%w: %w", ErrUnknownWorkload, err)
	} else if err != nil {
		return v, fmt.Errorf("%w: %w", ErrNoValue, err)
	}
	var values []series.Sample
	known := 0 // serving pods with a value
	for _, pod := range c.deps.Pods.Select(q.Namespace, t.selector) {
		if Finished(pod) {
			continue
		}
		v.Pods++
		if phase, _ := PhaseOf(pod); phase != scale.Serving {
			continue
		}
		v.Serving++
		got := m.values(c, pod, q.Window, now)
		if len(got) == 0 {
			continue
		}
		known++
		if !q.Active || c.wasActive(pod, max(q.Window, activeWindow), now) {
			values = append(values, summarize(got, q.Stat)...)
		}
	}
	switch {
	case v.Serving == 0:
		return v, nil
	case 2*known < v.Serving:
		return v, fmt.Errorf("%w: metric %s has a fresh value for %d of the %d serving pods of %s %s; at least half are needed",
			ErrNoValue, q.Metric, known, v.Serving, t.kind, t.name)
	case len(values) == 0: // measured: no pod was active
		v.At = now
		return v, nil
	}
	v.Value, v.At = combine(values, q.Stat)
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

// values returns a pod's newest value, or those of a window; none if the newest value
// is not fresh.
func (m *podMetric) values(c *Controller, pod *corev1.Pod, window time.Duration, now time.Time) []series.Sample {
	newest, ok := m.newest(c, pod, now)
	if !ok {
		return nil
	}
	var out []series.Sample
	switch {
	case window <= 0:
		out = []series.Sample{newest}
	case m.field != nil:
		out = c.deps.Store.PodRange(pod.Namespace, pod.Name, m.field.ID, now.Add(-window), now)
	default:
		out = c.deps.Store.PodMetricRange(pod.Namespace, pod.Name, m.name, now.Add(-window), now)
	}
	n := 0
	for _, s := range out {
		if s.Value /= m.scale; !math.IsNaN(s.Value) && !math.IsInf(s.Value, 0) {
			out[n] = s
			n++
		}
	}
	return out[:n]
}

// newest returns a pod's newest value that is fresh and that the API server does not
// contradict.
func (m *podMetric) newest(c *Controller, pod *corev1.Pod, now time.Time) (series.Sample, bool) {
	if m.field == nil {
		return c.deps.Store.PodMetric(pod.Namespace, pod.Name, m.name, now, m.maxAge)
	}
	r, ok := verifiedValues{c.deps.Store, c.devices}.Field(pod, m.field.ID, now, m.maxAge)
	return r.Sample, ok
}

// wasActive reports whether the pod's GPUs had load within the window. A pod without
// readings of the utilisation counts as active.
func (c *Controller) wasActive(pod *corev1.Pod, window time.Duration, now time.Time) bool {
	samples := c.deps.Store.PodRange(pod.Namespace, pod.Name, gpu.GPUUtil, now.Add(-window), now)
	return len(samples) == 0 || slices.ContainsFunc(samples, func(s series.Sample) bool { return s.Value > 0 })
}

// summarize returns what of a pod's values over time goes into the statistic over the
// pods: the mean for avg and sum, and all values for the others.
func summarize(values []series.Sample, stat string) []series.Sample {
	if stat != "avg" && stat != "sum" || len(values) == 1 {
		return values
	}
	mean, at := combine(values, "avg")
	return []series.Sample{{At: at, Value: mean}}
}

// combine combines values, of which there is at least one, by a statistic. The time is
// that of the oldest value.
func combine(values []series.Sample, stat string) (value float64, at time.Time) {
	at = values[0].At
	sum := 0.0
	for _, s := range values {
		sum += s.Value
		if s.At.Before(at) {
			at = s.At
		}
	}
	switch stat {
	case "sum":
		return sum, at
	case "avg", "":
		return sum / float64(len(values)), at
	}
	sorted := slices.SortedFunc(slices.Values(values), func(a, b series.Sample) int {
		switch {
		case a.Value < b.Value:
			return -1
		case a.Value > b.Value:
			return 1
		}
		return 0
	})
	return sorted[rankOf(stat, len(sorted))].Value, at
}

// rankOf returns the index of a statistic in n sorted values, by the nearest rank.
func rankOf(stat string, n int) int {
	switch stat {
	case "min":
		return 0
	case "max":
		return n - 1
	}
	p, _ := strconv.ParseFloat(strings.TrimPrefix(stat, "p"), 64)
	return min(max(int(math.Ceil(p/100*float64(n)))-1, 0), n-1)
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

// Evaluate evaluates a PromQL query, limited to the series of a namespace, once. It
// waits for a slot, as the queries of GPUAutoscalers do. The text of its error is for
// the query's author.
func (c *Controller) Evaluate(ctx context.Context, namespace, promql string) (series.Sample, error) {
	if c.deps.Query == nil {
		return series.Sample{}, errNoBackend
	}
	limited, trusted, err := c.deps.LimitQuery(namespace, promql)
	if err != nil {
		return series.Sample{}, err
	}
	scope := namespace
	if trusted {
		scope = ""
	}
	if err := c.queries.slots.acquire(ctx, namespace); err != nil {
		return series.Sample{}, fmt.Errorf("%w: other queries of the namespace take all the time", ErrNoValue)
	}
	defer c.queries.slots.release(namespace)
	s, err := c.deps.Query(ctx, scope, limited)
	if err != nil {
		return series.Sample{}, errors.New(publicError(err))
	}
	return s, nil
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

// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"slices"

	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/window/history"
	"github.com/gpupilot/gpupilot/internal/window/usage"
	"github.com/gpupilot/gpupilot/internal/window/view"
)

// The metrics of GPUAutoscalers that the history continues.
const (
	replicasName    = workloadPrefix + "replicas"
	signalValueName = workloadPrefix + "signal_value"
	requestsName    = workloadPrefix + "signal_requests_per_second"
	podsSumName     = workloadPrefix + "pods_sum"
	gpusName        = workloadPrefix + "gpus"
)

// MinuteSeries says which series of /metrics the metrics of the history continue.
type MinuteSeries struct {
	fields map[string]minuteField // by the name of the field
	names  []string
}

// minuteField is a field on /metrics.
type minuteField struct {
	usage.Family
	namespace, workload string // the names of its series
}

// NewMinuteSeries returns the series of all metrics.
func NewMinuteSeries() *MinuteSeries {
	s := &MinuteSeries{fields: map[string]minuteField{}, names: []string{replicasName, signalValueName, requestsName, podsSumName, gpusName}}
	for _, f := range usage.Families() {
		field, ok := gpu.Lookup(f.Field)
		if !ok {
			continue
		}
		x := minuteField{f, f.Name(usage.Namespace), f.Name(usage.Workload)}
		s.fields[field.Name] = x
		s.names = append(s.names, x.namespace, x.workload)
	}
	s.names = append(s.names, usage.Namespace.GPUs(), usage.Workload.GPUs())
	slices.Sort(s.names)
	return s
}

// Names returns the names of all series, sorted.
func (s *MinuteSeries) Names() []string { return s.names }

// Each calls add for each series that a metric of a workload continues, if its name is
// wanted.
func (s *MinuteSeries) Each(w history.Workload, m history.Metric, wants func(name string) bool, add func(history.Series)) {
	if w.Kind == view.AutoscalerKind {
		if x := autoscalerSeries(w, m); x.Name != "" && wants(x.Name) {
			add(x)
		}
		return
	}
	scope, labels := usage.Workload, []string{"namespace", w.Namespace, "kind", w.Kind, "name", w.Name}
	if w.Kind == namespaceKind && w.Name == w.Namespace {
		scope, labels = usage.Namespace, []string{"namespace", w.Namespace}
	}
	with := func(more ...string) []string { return append(labels[:len(labels):len(labels)], more...) }
	if m == minuteActive {
		if name := scope.GPUs(); wants(name) {
			add(history.Series{Name: name, Labels: with("in_use", "active"), Scale: 1})
		}
		return
	}
	group, field := m.Split()
	f, ok := s.fields[field]
	inUse := inUseOf(group)
	if !ok || inUse == "" {
		return
	}
	name := f.workload
	if scope == usage.Namespace {
		name = f.namespace
	}
	if wants(name) {
		for _, x := range usage.Statistics() {
			add(history.Series{Name: name, Labels: with("in_use", inUse, "stat", x.Name), Stat: x.Minute, Scale: f.Scale})
		}
	}
	// /metrics counts the GPUs with a utilization.
	if name := scope.GPUs(); f.Field == gpu.GPUUtil && group == history.GroupGPU && wants(name) {
		add(history.Series{Name: name, Labels: with("in_use", inUse), Stat: history.StatCount, Scale: 1})
	}
}

// inUseOf returns the label in_use of a group of metrics; empty: it has none.
func inUseOf(group string) string {
	switch group {
	case history.GroupGPU:
		return "allocated"
	case history.GroupActive:
		return "active"
	}
	return ""
}

// groupInUse is the inverse of inUseOf.
func groupInUse(inUse string) string {
	for _, group := range []string{history.GroupGPU, history.GroupActive} {
		if inUseOf(group) == inUse {
			return group
		}
	}
	return ""
}

// autoscalerSeries returns the series of a GPUAutoscaler's metric; without a name there is
// none.
func autoscalerSeries(w history.Workload, m history.Metric) history.Series {
	x := history.Series{Labels: []string{"namespace", w.Namespace, "name", w.Name}, Scale: 1}
	add := func(name string, more ...string) {
		x.Name, x.Labels = name, append(x.Labels, more...)
	}
	switch group, name := m.Split(); group {
	case history.GroupReplicas:
		add(replicasName, "state", name)
	case history.GroupSignal:
		if signal, unit, per, ok := m.Signal(); ok {
			add(signalValueName, "signal", signal, "unit", unit, "per", per)
		}
	case history.GroupRequests:
		add(requestsName, "signal", name)
	case history.GroupPods:
		add(podsSumName, "metric", name)
	case history.GroupGPUs:
		if m == minuteAllocated {
			add(gpusName)
		}
	}
	return x
}

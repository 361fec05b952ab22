// SPDX-License-Identifier: Apache-2.0

package usage

import (
	"time"

	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/window/history"
)

// Minutes takes readings of which the history keeps minutes. They are not retained.
type Minutes interface {
	Add(at time.Time, w history.Workload, readings []history.Value)
}

// The values of the label in_use.
const (
	allocatedGPUs = "allocated"
	activeGPUs    = "active"
)

// Recorded are the metrics of which the history keeps minutes: those of workloads and of
// namespaces.
func Recorded() (out []history.Family) {
	inUse := []history.Label{{Name: "in_use", Values: []string{allocatedGPUs, activeGPUs}}}
	for _, x := range []struct {
		scope scope
		of    history.Subject
	}{{ofNamespace, history.Namespaces}, {ofWorkload, history.Workloads}} {
		for _, name := range []string{x.scope.gpus(), x.scope.cost(), x.scope.unpriced()} {
			out = append(out, history.Family{Name: name, Of: x.of, Labels: inUse})
		}
		for _, f := range shownFields() {
			out = append(out, history.Family{Name: f.metric(x.scope), Of: x.of, Labels: inUse, Over: x.scope.gpus()})
		}
	}
	return out
}

// minutes adds aggregates to the minutes of the history.
type minutes struct {
	to     Minutes // nil: there is no history
	fields [scopes]map[gpu.FieldID]recordedField
	gpus   [scopes]inUseMetrics
	priced bool
	// cost and unpriced are as on /metrics.
	cost, unpriced [scopes]inUseMetrics

	readings []history.Value // reused
}

// recordedField is a field in the history. A value times scale is in the unit of the
// metric.
type recordedField struct {
	inUseMetrics
	scale float64
}

// inUseMetrics are a metric of the allocated and of the active GPUs.
type inUseMetrics struct{ allocated, active history.Metric }

func newInUseMetrics(name string) inUseMetrics {
	return inUseMetrics{history.NewMetric(name, "in_use", allocatedGPUs), history.NewMetric(name, "in_use", activeGPUs)}
}

// newMinutes names all fields: as on /metrics, or by the field's own name if it is not
// there.
func newMinutes(to Minutes, priced bool) *minutes {
	m := &minutes{to: to, priced: priced}
	for s := range scopes {
		m.gpus[s], m.cost[s], m.unpriced[s] = newInUseMetrics(s.gpus()), newInUseMetrics(s.cost()), newInUseMetrics(s.unpriced())
		m.fields[s] = map[gpu.FieldID]recordedField{}
		for _, f := range gpu.Fields() {
			m.fields[s][f.ID] = recordedField{newInUseMetrics(f.Name), 1}
		}
		for _, f := range shownFields() {
			m.fields[s][f.Field] = recordedField{newInUseMetrics(f.metric(s)), f.Scale}
		}
	}
	return m
}

// add adds a pass. The items of a group follow one another.
func (m *minutes) add(a *Aggregates) {
	if m.to == nil {
		return
	}
	for i := 0; i < len(a.Items); {
		group, from := a.Items[i].Group, i
		for i < len(a.Items) && a.Items[i].Group == group {
			i++
		}
		if w, ok := group.workload(); ok && a.Shown[group] {
			m.addGroup(a.At, w, a.Items[from:i])
		}
	}
}

// workload returns whose minutes a group's are; ok is false for the cluster, which is not
// in the history. A pod's owner reference may name any kind: it must not take the minutes
// of a GPUAutoscaler or a namespace.
func (g Group) workload() (w history.Workload, ok bool) {
	if g.Name == "" {
		return history.Workload{Namespace: g.Namespace, Kind: history.KindNamespace, Name: g.Namespace}, g.Namespace != ""
	}
	w = history.Workload{Namespace: g.Namespace, Kind: g.Kind, Name: g.Name}
	return w, w.Subject() == history.Workloads
}

func (m *minutes) addGroup(at time.Time, w history.Workload, items []Aggregate) {
	scope, _ := items[0].scope()
	list := m.readings[:0]
	for i := range items {
		x := &items[i]
		if x.Withheld {
			continue
		}
		f := m.fields[scope][x.Field]
		for _, s := range []struct {
			metric history.Metric
			*Stats
		}{{f.allocated, &x.Allocated}, {f.active, &x.Active}} {
			if s.GPUs > 0 {
				list = append(list, history.Value{Metric: s.metric, Mean: s.Mean * f.scale, Max: s.Max * f.scale, Count: float64(s.GPUs)})
			}
		}
		if x.Field == gpu.GPUUtil { // /metrics counts the GPUs with a utilization
			list = append(list, history.Reading(m.gpus[scope].allocated, float64(x.Allocated.GPUs)), history.Reading(m.gpus[scope].active, float64(x.Active.GPUs)))
			if m.priced {
				list = m.addCost(list, scope, &x.Allocated, &x.Active)
			}
		}
	}
	m.to.Add(at, w, list)
	m.readings = list
}

func (m *minutes) addCost(list []history.Value, of scope, allocated, active *Stats) []history.Value {
	list = append(list, history.Reading(m.unpriced[of].allocated, allocated.Unpriced), history.Reading(m.unpriced[of].active, active.Unpriced))
	if usd, ok := allocated.cost(); ok {
		list = append(list, history.Reading(m.cost[of].allocated, usd))
	}
	if usd, ok := active.cost(); ok {
		list = append(list, history.Reading(m.cost[of].active, usd))
	}
	return list
}

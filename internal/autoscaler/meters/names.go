// SPDX-License-Identifier: Apache-2.0

package meters

import (
	"fmt"

	"github.com/gpupilot/gpupilot/internal/base/excerpt"
	"github.com/gpupilot/gpupilot/internal/scale"
	"github.com/gpupilot/gpupilot/internal/window/history"
	"github.com/gpupilot/gpupilot/internal/window/view"
)

// The metrics of GPUAutoscalers of which the history keeps minutes.
const (
	replicasName    = view.ReplicasMetric
	signalValueName = view.SignalMetric
	requestsName    = workloadPrefix + "signal_requests_per_second"
	tokensName      = workloadPrefix + "signal_tokens_per_second"
	podsSumName     = workloadPrefix + "pods_sum"
	gpusName        = workloadPrefix + "gpus"
)

// The readings of each decision.
const (
	currentReplicas       = history.Metric(replicasName + `{state="current"}`)
	desiredReplicas       = history.Metric(replicasName + `{state="desired"}`)
	servingReplicas       = history.Metric(replicasName + `{state="serving"}`)
	startingReplicas      = history.Metric(replicasName + `{state="starting"}`)
	unschedulableReplicas = history.Metric(replicasName + `{state="unschedulable"}`)
)

// Recorded are the metrics of GPUAutoscalers of which the history keeps minutes.
func Recorded() []history.Family {
	return []history.Family{
		{Name: replicasName, Labels: []history.Label{{Name: "state"}}},
		{Name: signalValueName, Labels: []history.Label{{Name: "signal"}, {Name: "unit", Optional: true}, {Name: "per"}}},
		{Name: requestsName, Labels: []history.Label{{Name: "signal"}}},
		{Name: tokensName, Labels: []history.Label{{Name: "signal"}, {Name: "type"}}},
		{Name: podsSumName, Labels: []history.Label{{Name: "metric"}}},
		{Name: gpusName},
	}
}

// MaxSignalName bounds the name of a signal and of a pods' metric on /metrics and in the
// history, in bytes.
const MaxSignalName = history.MaxSignal

// SignalNames are the names of a plan's signal, so that a decision makes none.
type SignalNames struct {
	Name                              string // on /metrics; unique in the plan
	perReplica, perWorkload, requests history.Metric
	Tokens                            []history.Metric // see objective.Recorded
}

// NamesOf names the signals of a policy. Tenants choose the names: if two are
// equal once they are cut, the later one is numbered.
func NamesOf(p *scale.Policy) []SignalNames {
	out := make([]SignalNames, 0, len(p.Signals))
	used := map[string]bool{}
	for i := range p.Signals {
		name := excerpt.Of(p.Signals[i].Name, MaxSignalName)
		for n := 2; used[name]; n++ {
			name = fmt.Sprintf("%s (%d)", excerpt.Of(p.Signals[i].Name, MaxSignalName-len(" (999)")), n)
		}
		used[name] = true
		value := func(total bool) history.Metric {
			return history.NewMetric(signalValueName, "signal", name, "unit", p.Signals[i].Unit, "per", scopeOf(total))
		}
		out = append(out, SignalNames{
			name, value(false), value(true), history.NewMetric(requestsName, "signal", name),
			[]history.Metric{
				history.NewMetric(tokensName, "signal", name, "type", typePrompt),
				history.NewMetric(tokensName, "signal", name, "type", typeOutput),
			},
		})
	}
	return out
}

// Readings appends what the history keeps of a decision, after RecordDecision.
func (s *Workload) Readings(list []history.Value, d *scale.Decision, names []SignalNames) []history.Value {
	for _, x := range []struct {
		m history.Metric
		n int32
	}{
		{currentReplicas, d.Current},
		{desiredReplicas, d.Replicas},
		{servingReplicas, d.Serving},
		{startingReplicas, d.Starting},
		{unschedulableReplicas, d.Unschedulable},
	} {
		list = append(list, history.Reading(x.m, float64(x.n)))
	}
	for i := range s.Signals {
		in, m := &s.Signals[i], &names[i]
		if in.hasValue {
			value := m.perReplica
			if in.valueIsTotal {
				value = m.perWorkload
			}
			list = append(list, history.Reading(value, in.value))
		}
		list = append(list, history.Reading(m.requests, in.Requests), history.Reading(m.Tokens[0], in.Prompt), history.Reading(m.Tokens[1], in.Output))
	}
	return list
}

// SampledReadings returns what the history keeps of the parts that are sampled.
func (s *Workload) SampledReadings() []history.Value {
	list := []history.Value{history.Reading(gpusName, float64(s.Sampled.GPUs))}
	for _, x := range s.Sampled.Sums {
		list = append(list, history.Reading(history.NewMetric(podsSumName, "metric", x.Metric), x.Value))
	}
	return list
}

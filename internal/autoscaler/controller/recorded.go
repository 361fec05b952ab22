// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"fmt"
	"math"
	"time"

	"github.com/gpupilot/gpupilot/internal/autoscaler/objective"
	"github.com/gpupilot/gpupilot/internal/base/excerpt"
	"github.com/gpupilot/gpupilot/internal/scale"
	"github.com/gpupilot/gpupilot/internal/window/history"
	"github.com/gpupilot/gpupilot/internal/window/view"
)

// Minutes takes readings of which the history keeps minutes. They are not retained.
type Minutes interface {
	Add(at time.Time, w history.Workload, readings []history.Value)
}

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

// maxSignalName bounds the name of a signal and of a pods' metric on /metrics and in the
// history, in bytes.
const maxSignalName = history.MaxSignal

// signalMetrics are the names of a plan's signal, so that a decision makes none.
type signalMetrics struct {
	name                              string // on /metrics; unique in the plan
	perReplica, perWorkload, requests history.Metric
	tokens                            []history.Metric // see objective.Recorded
}

// newSignalMetrics names the signals of a policy. Tenants choose the names: if two are
// equal once they are cut, the later one is numbered.
func newSignalMetrics(p *scale.Policy) []signalMetrics {
	out := make([]signalMetrics, 0, len(p.Signals))
	used := map[string]bool{}
	for i := range p.Signals {
		name := excerpt.Of(p.Signals[i].Name, maxSignalName)
		for n := 2; used[name]; n++ {
			name = fmt.Sprintf("%s (%d)", excerpt.Of(p.Signals[i].Name, maxSignalName-len(" (999)")), n)
		}
		used[name] = true
		value := func(total bool) history.Metric {
			return history.NewMetric(signalValueName, "signal", name, "unit", p.Signals[i].Unit, "per", scopeOf(total))
		}
		out = append(out, signalMetrics{
			name, value(false), value(true), history.NewMetric(requestsName, "signal", name),
			[]history.Metric{
				history.NewMetric(tokensName, "signal", name, "type", typePrompt),
				history.NewMetric(tokensName, "signal", name, "type", typeOutput),
			},
		})
	}
	return out
}

// recordMinute adds readings to the current minute. w.mu is held.
func (w *workload) recordMinute(at time.Time, readings []history.Value) {
	if w.shared.deps.Minutes != nil {
		w.shared.deps.Minutes.Add(at, w.recorded(), readings)
	}
}

// recorded is the workload in the history.
func (w *workload) recorded() history.Workload {
	return history.Workload{Namespace: w.key.Namespace, Kind: history.KindAutoscaler, Name: w.key.Name}
}

// past is where the load of a plan's objectives is recorded.
func (w *workload) past(p *plan) objective.Recorded {
	return objective.Recorded{Past: w.shared.deps.Past, Turn: &w.shared.recalls, Workload: w.recorded(), Tokens: func(signal int) []history.Metric { return p.metrics[signal].tokens }}
}

// recordReading adds a decision to the current minute, after w.measures has it. w.mu is
// held.
func (w *workload) recordReading(r *report) {
	d, list := r.decision, w.readings[:0]
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
	for i := range w.measures.signals {
		in, m := &w.measures.signals[i], &r.plan.metrics[i]
		if in.hasValue {
			value := m.perReplica
			if in.valueIsTotal {
				value = m.perWorkload
			}
			list = append(list, history.Reading(value, in.value))
		}
		list = append(list, history.Reading(m.requests, in.requests), history.Reading(m.tokens[0], in.prompt), history.Reading(m.tokens[1], in.output))
	}
	w.recordMinute(r.at, list)
	w.readings = list
}

// requestRates returns the requests/s of each signal at all serving pods. A rate is NaN
// if one of them has none: a partial sum looks like a lower load.
func requestRates(o *scale.Observation) (rates []float64) {
	for i := range o.Pods {
		p := &o.Pods[i]
		if p.Phase != scale.Serving {
			continue
		}
		if rates == nil {
			rates = make([]float64, len(p.Arrivals))
		}
		for j := range rates {
			if j >= len(p.Arrivals) || !p.Arrivals[j].OK {
				rates[j] = math.NaN()
				continue
			}
			rates[j] += p.Arrivals[j].Value
		}
	}
	return rates
}

// SPDX-License-Identifier: Apache-2.0

package contender

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/replay/service"
	"github.com/gpupilot/gpupilot/internal/scale"
	"github.com/gpupilot/gpupilot/internal/scale/policy"
)

// source computes a policy's signal from the simulated signals of a pod: their weighted sum.
type source []term

// term is a simulated signal, and the factor from its unit to the policy's.
type term struct {
	signal service.Signal
	factor float64
}

// value returns a pod's value; ok is false if the pod does not report one of the terms.
func (s source) value(x *service.PodReport) (sum float64, ok bool) {
	for _, t := range s {
		v, ok := x.Value(t.signal)
		if !ok {
			return 0, false
		}
		sum += v * t.factor
	}
	return sum, len(s) > 0
}

func newSource(s policy.Source) (source, error) {
	switch s.Kind {
	case policy.Pods:
		return newServerSource(s.Terms)
	case policy.GPU:
		return newGPUSource(s.Field)
	}
	return nil, fmt.Errorf("queries are not simulated: remove the query %q from the policy to replay it", s.PromQL)
}

// Simulates returns nil if the simulated service reports the metrics of a source, else the
// reason.
func Simulates(s policy.Source) error {
	_, err := newSource(s)
	return err
}

// simulated are the signals of the simulated service that stand for the servers' gauges.
var simulated = map[policy.Quantity]service.Signal{
	policy.RunningRequests: service.Running, policy.WaitingRequests: service.Waiting, policy.KVCacheUse: service.KVUse,
}

// newServerSource looks up each term by any of its metric names.
func newServerSource(terms []policy.Term) (out source, err error) {
	gauges := policy.Gauges(false)
	for _, metrics := range terms {
		i := slices.IndexFunc(metrics, func(m policy.PodMetric) bool { _, ok := gauges[m.Name]; return ok })
		if i < 0 && metrics[0].Optional != "" {
			continue // the simulated server has no such queue
		}
		if i < 0 {
			return nil, fmt.Errorf("the simulated server has no metric %q", metrics[0].Name)
		}
		out = append(out, term{simulated[gauges[metrics[i].Name]], cmp.Or(metrics[i].Factor, 1)})
	}
	return out, nil
}

func newGPUSource(id gpu.FieldID) (source, error) {
	signal, ok := map[gpu.FieldID]service.Signal{
		gpu.GPUUtil: service.GPUUtil, gpu.GREngineActive: service.GPUUtil, gpu.SMActive: service.SMActive, gpu.TensorActive: service.TensorActive,
	}[id]
	if !ok {
		return nil, fmt.Errorf("the simulated GPUs have no field %d", id)
	}
	t := term{signal, 1}
	if f, ok := gpu.Lookup(id); ok && f.Unit == gpu.Ratio {
		t.factor = 0.01
	}
	return source{t}, nil
}

// paceOf returns the token rates that a pod reports.
func paceOf(x *service.PodReport, at time.Time) scale.Pace {
	if x == nil || !x.Serving {
		return scale.Pace{}
	}
	return scale.Pace{
		Batch: float64(x.Batch), TokenSeconds: float64(x.TokenSeconds),
		FirstTokenSeconds: float64(x.FirstTokenSeconds), FirstTokensPerSecond: float64(x.FirstTokensPerSecond), At: at, OK: true,
		Counted: true, PromptTokensPerSecond: float64(x.PromptTokensPerSecond), OutputTokensPerSecond: float64(x.OutputTokensPerSecond),
		EndedPerSecond: float64(x.EndedPerSecond), MissedPerSecond: float64(x.MissedPerSecond),
		CacheUse: float64(x.Values[service.KVUse]), Running: float64(x.Values[service.Running]), Waiting: float64(x.Values[service.Waiting]),
	}
}

// arrivalsOf returns the arrival rate that a pod reports, in requests/s.
func arrivalsOf(x *service.PodReport, at time.Time) scale.Reading {
	if x == nil || !x.Serving {
		return scale.Reading{}
	}
	return scale.Reading{Value: float64(x.ArrivalsPerSecond), At: at, OK: true}
}

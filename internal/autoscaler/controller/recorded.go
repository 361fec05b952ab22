// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"math"
	"time"

	"github.com/gpupilot/gpupilot/internal/scale"
	"github.com/gpupilot/gpupilot/internal/window/history"
)

// Minutes takes readings of which the history keeps minutes. They are not retained.
type Minutes interface {
	Add(at time.Time, w history.Workload, readings []history.Value)
}

// recordMinute adds readings to the current minute. w.mu is held.
func (w *workload) recordMinute(at time.Time, readings []history.Value) {
	if w.shared.deps.Minutes != nil {
		of := history.Workload{Namespace: w.key.Namespace, Kind: history.KindAutoscaler, Name: w.key.Name}
		w.shared.deps.Minutes.Add(at, of, readings)
	}
}

// recordReading adds a decision to the current minute, after w.metered has it. w.mu is
// held.
func (w *workload) recordReading(r *pass) {
	list := w.metered.Readings(w.readings[:0], r.Decision, r.plan.metrics)
	w.recordMinute(r.At, list)
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

// SPDX-License-Identifier: Apache-2.0

package memory

import (
	"encoding/json"
	"slices"
	"time"

	"github.com/gpupilot/gpupilot/internal/scale"
	"github.com/gpupilot/gpupilot/internal/scale/latency"
	"github.com/gpupilot/gpupilot/internal/scale/trend"
)

// lists is the format of earlier versions: one list for each kind of learned
// value, whose entries name their signal.
type lists struct {
	Levels []struct {
		Signal string
		trend.Level
	}
	Trends []struct {
		Signal string
		trend.Trend
	}
	Flows []struct {
		Signal                string
		Since, At             time.Time
		Rate, Target          float64
		Replicas, Came, There float64
		Seconds               float64
	}
	Curves, Firsts []struct {
		Signal string
		latency.Curve
	}
}

// decodeLists returns the signal states of such a memory; nil if there are
// none. Without them an upgraded controller would lose every learned target.
func decodeLists(raw []byte) []scale.SignalState {
	var m lists
	if json.Unmarshal(raw, &m) != nil {
		return nil
	}
	var out []scale.SignalState
	state := func(name string) *scale.SignalState {
		i := slices.IndexFunc(out, func(s scale.SignalState) bool { return s.Name == name })
		if i < 0 {
			i, out = len(out), append(out, scale.SignalState{Name: name})
		}
		return &out[i]
	}
	for _, x := range m.Levels {
		state(x.Signal).Level = x.Level
	}
	for _, x := range m.Trends {
		state(x.Signal).Trend = x.Trend
	}
	for _, x := range m.Flows {
		state(x.Signal).Arrivals = scale.ArrivalModel{
			Since: x.Since, At: x.At, Rate: x.Rate, Target: x.Target,
			ReplicaSum: x.Replicas, ArrivedSum: x.Came, InFlightSum: x.There, Seconds: x.Seconds,
		}
	}
	for _, x := range m.Curves {
		state(x.Signal).TokenLatency = x.Curve
	}
	for _, x := range m.Firsts {
		state(x.Signal).FirstTokenLatency = x.Curve
	}
	return out
}

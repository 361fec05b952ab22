// SPDX-License-Identifier: Apache-2.0

package whatif

import (
	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/scale"
)

// Reading returns the reading that each of some replicas has if a decision's input has this
// value: an equal share of a sum, else the value itself, which is their mean or maximum.
func Reading(s *scale.Signal, value, replicas float64) float64 {
	if s.Type == scale.Value && s.Aggregate == gpu.Sum {
		return value / max(1, replicas)
	}
	return value
}

// Demand returns how many replicas a decision's input asks for while so many serve. query
// is true for the number of a query; else the replicas were read.
func Demand(s *scale.Signal, value, serving float64, query bool) float64 {
	replicas := value / s.Target
	if query && s.Type == scale.AverageValue {
		return replicas // the value is already that of all replicas
	}
	return replicas * serving
}

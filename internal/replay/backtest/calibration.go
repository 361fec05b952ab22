// SPDX-License-Identifier: Apache-2.0

package backtest

import (
	"fmt"

	"github.com/gpupilot/gpupilot/internal/loadgen/calibration"
	"github.com/gpupilot/gpupilot/internal/replay/service"
)

// ReadCurve reads the SM activity of a server over its batch, which gpupilot load server measures; an empty path is the
// assumed curve.
func ReadCurve(path string) (service.SMCurve, error) {
	if path == "" {
		return nil, nil
	}
	batches, err := calibration.Batches(path)
	if err != nil {
		return nil, fmt.Errorf("--calibration: %w", err)
	}
	var points []service.SMPoint
	for _, b := range batches {
		points = append(points, service.SMPoint{Batch: b.Batch, Active: b.SMActive})
	}
	curve, err := service.NewSMCurve(points)
	if err != nil {
		return nil, fmt.Errorf("--calibration %s: %w", path, err)
	}
	return curve, nil
}

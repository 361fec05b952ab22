// SPDX-License-Identifier: Apache-2.0

package service

import (
	"fmt"
	"sort"
)

// SMPoint is the share of the SMs that have a warp while a server decodes Batch sequences.
type SMPoint struct{ Batch, Active float64 }

// SMCurve is the SM activity over the batch, as measured on a server; nil: the assumption of assumedSMActive.
type SMCurve []SMPoint

// maxSMPoints bounds a curve.
const maxSMPoints = 256

// NewSMCurve checks the points of a curve.
func NewSMCurve(points []SMPoint) (SMCurve, error) {
	if len(points) < 2 || len(points) > maxSMPoints {
		return nil, fmt.Errorf("SM activity at %d batches: want 2 to %d", len(points), maxSMPoints)
	}
	for i, p := range points {
		if !(p.Batch > 0) || !(p.Active >= 0 && p.Active <= 1) || i > 0 && !(p.Batch > points[i-1].Batch) {
			return nil, fmt.Errorf("SM activity %v at the batch %v: want 0 to 1, and batches that increase", p.Active, p.Batch)
		}
	}
	return points, nil
}

// at interpolates between the points. Outside of them, the next one counts.
func (c SMCurve) at(batch float64) float64 {
	if c == nil {
		return assumedSMActive(batch)
	}
	i := sort.Search(len(c), func(i int) bool { return c[i].Batch >= batch })
	switch {
	case i == 0:
		return c[0].Active
	case i == len(c):
		return c[i-1].Active
	}
	a, b := c[i-1], c[i]
	return a.Active + (b.Active-a.Active)*(batch-a.Batch)/(b.Batch-a.Batch)
}

// assumedSMActive is the curve of a server that nobody has measured. There is no public measurement over batch sizes. It is
// based on single reports: one request keeps a third to a half of the SMs active, large batches nearly all
// (NVIDIA/dcgm-exporter#301).
func assumedSMActive(batch float64) float64 { return 0.35 + 0.6*batch/(batch+24) }

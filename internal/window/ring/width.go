// SPDX-License-Identifier: Apache-2.0

package ring

import "github.com/gpupilot/gpupilot/internal/gpu"

// Width is the size of a series' values.
type Width uint8

// The widths.
const (
	Short  Width = iota // integers from 0 to 65,534, in two bytes; Widen makes it Narrow
	Narrow              // float32, and rounded back to the decimal number
	Wide                // float64
	widths
)

// WidthOf returns the width with which a field's series begins. Counters need float64, and
// so do gauges that the hardware does not limit to less than 2^24. Units that exporters
// report in whole numbers begin with the short width, and get a wider one with the first
// value that does not fit.
func WidthOf(id gpu.FieldID) Width {
	f, ok := gpu.Lookup(id)
	if !ok || f.Kind == gpu.Counter {
		return Wide
	}
	switch f.Unit {
	case gpu.BytesPerSecond, gpu.MegabytesPerSecond, gpu.Nanosecond, gpu.Millijoule, gpu.Bitmask:
		return Wide
	case gpu.Percent, gpu.Megahertz, gpu.Celsius, gpu.Mebibyte, gpu.None:
		return Short
	}
	return Narrow
}

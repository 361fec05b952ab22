// SPDX-License-Identifier: Apache-2.0

package gpu

import "math"

// Range is the valid values of a field, in the field's unit. A number outside
// is not a value: a decision made from it would be wrong.
type Range struct {
	Min, Max float64
	// Above is the largest number that is read as Max: measured ratios can
	// exceed 1. It equals Max for other fields.
	Above float64
}

// Limit returns v, limited to Max, and whether it is a value. NaN is not a
// value.
func (r *Range) Limit(v float64) (float64, bool) {
	if v >= r.Min && v <= r.Max {
		return v, true
	}
	if v > r.Max && v <= r.Above {
		return r.Max, true
	}
	return math.NaN(), false
}

// The upper bounds of ranges without a physical limit. 2^53 is the largest
// number up to which float64 has every whole number; DCGM's counters are int64.
const (
	maxCount   = 1 << 53
	maxCounter = 1<<63 - 1<<10
)

// unitRanges are the ranges by unit, for fields that are not in fieldRanges.
var unitRanges = map[Unit]Range{
	// nvmlUtilization_t and its like are whole percents. DCGM is known to give
	// 1,000 to 4294967295 now and then (NVIDIA/DCGM#199).
	Percent: {0, 100, 100},
	// Profiling ratios exceed 1: DCGM gave an SM_ACTIVE of 1.294 for a MIG
	// instance under full load (NVIDIA/DCGM#152). Up to 1.5 is full load.
	Ratio: {0, 1, 1.5},
	// The fastest memory has 14,001 MHz (GeForce RTX 5090).
	Megahertz: {0, 100_000, 100_000},
	// -55 °C is the least of military-grade parts, 150 °C the usual absolute
	// maximum of a silicon junction; GPUs shut down near 100 °C.
	Celsius: {-55, 150, 150},
	// A module with one CPU and two GPUs draws 2,700 W (GB200).
	Watt: {0, 10_000, 10_000},
	// 16 TiB; a GPU of 2026 has 288 GB. float32 keeps every MiB up to here.
	Mebibyte: {0, 1 << 24, 1 << 24},
	// 10 TB/s; NVLink 6 has 3.6 TB/s.
	BytesPerSecond:     {0, 1e13, 1e13},
	MegabytesPerSecond: {0, 1e7, 1e7},
	Bitmask:            {0, maxCounter, maxCounter},
	None:               {0, maxCount, maxCount},
}

// fieldRanges are the ranges of fields that differ from their unit's.
var fieldRanges = map[FieldID]Range{
	FanSpeed:  {0, 200, 200},     // nvmlDeviceGetFanSpeed: "this value may exceed 100%"
	PState:    {0, 32, 32},       // nvmlPstates_t: P0 to P15, 32 is unknown
	XIDErrors: {0, 9_999, 9_999}, // NVIDIA's catalog has three digits
}

// ranges are the fields' ranges, by index.
var ranges = func() (all [NumFields]Range) {
	for i := range table {
		f := &table[i]
		r, ok := fieldRanges[f.ID]
		if !ok && f.Kind == Counter {
			r = Range{0, maxCounter, maxCounter}
		} else if !ok {
			r = unitRanges[f.Unit]
		}
		all[i] = r
	}
	return all
}()

// RangeAt returns the range of the field at index i. Callers must not change it.
func RangeAt(i Index) *Range { return &ranges[i] }

// DCGM's blank values of each type (dcgm_structs.h). Each constant is the first of
// four, which say why there is no value: unknown, not found, not supported and
// not permitted.
const (
	BlankInt32 = 0x7ffffff0
	BlankFloat = 1 << 47
	BlankInt64 = 0x7ffffffffffffff0
)

// blanks is the number of blank values of a type.
const blanks = 4

// IsBlank reports whether a number, as an exporter writes DCGM's value, stands
// for a missing value.
func IsBlank(v float64) bool {
	return v >= BlankInt32 &&
		(v < BlankInt32+blanks || v >= BlankFloat && (v < BlankFloat+blanks || v >= BlankInt64))
}

// SPDX-License-Identifier: Apache-2.0

package gpu

import "strings"

// Lack is lines of a collectors file that have no value on a node, by their names in the
// file, and the one reason for that.
type Lack struct {
	Reason string
	Fields []string
}

// The parts of reasons from which NeedsDCGM concludes.
const (
	NoProfilingByNVML = "NVML gives profiling fields from Hopper on"
	UnreadByNVML      = "not read through NVML"
	RefusedByDCGM     = "DCGM does not give it for this device"
	UnaskedOfDCGM     = "DCGM has not been asked yet"
)

// NeedsDCGM reports whether DCGM may give the fields, and could not be asked. What NVML was
// asked for and refused, DCGM does not give either: it asks NVML.
func (l *Lack) NeedsDCGM() bool {
	only := strings.HasPrefix(l.Reason, NoProfilingByNVML) || strings.HasPrefix(l.Reason, UnreadByNVML)
	return only && !strings.Contains(l.Reason, RefusedByDCGM) && !strings.Contains(l.Reason, UnaskedOfDCGM)
}

// Reasons explains why a device lacks wanted fields. The profiling fields may
// have another reason: see Profiler.
type Reasons struct {
	Asked   FieldSet // the fields that the reader can ask its libraries for
	Refused string   // why the device lacks a field in Asked
	Unasked string   // why it lacks another field; empty: unknown
}

// Why returns the reason for the field at index i; empty if unknown.
func (r *Reasons) Why(i Index) string {
	if r.Asked.Has(i) {
		return r.Refused
	}
	return r.Unasked
}

// Explainer is a Reader that can explain why a device lacks fields.
type Explainer interface {
	// Reasons returns why the device lacks fields. It never blocks.
	Reasons(uuid string) Reasons
}

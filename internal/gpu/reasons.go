// SPDX-License-Identifier: Apache-2.0

package gpu

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

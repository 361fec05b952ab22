// SPDX-License-Identifier: Apache-2.0

package gpu

// Reasons are why a device lacks fields that were wanted of it. The profiling
// fields may have a reason of their own: see Profiler.
type Reasons struct {
	Asked   FieldSet // what the reader can ask its libraries for
	Refused string   // why the device lacks one of these
	Unasked string   // why it lacks another field
}

// Why is the reason for the field at index i; empty: it is not known.
func (r *Reasons) Why(i Index) string {
	if r.Asked.Has(i) {
		return r.Refused
	}
	return r.Unasked
}

// Explainer is a Reader that knows why a device lacks fields.
type Explainer interface {
	// Reasons are why the device lacks fields. It never blocks.
	Reasons(uuid string) Reasons
}

// SPDX-License-Identifier: Apache-2.0

package auto

import (
	"cmp"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

// NoProfiling returns why neither reader gives the device's profiling fields.
func (r *Reader) NoProfiling(uuid string) string {
	first := r.First.NoProfiling(uuid)
	if first == "" {
		return ""
	}
	r.mu.Lock()
	s, why := r.second, r.why
	r.mu.Unlock()
	if s != nil {
		why = s.noProfiling(uuid)
	}
	if why == "" {
		return ""
	}
	return first + "; " + why
}

// Reasons returns why neither reader gives fields of the device. It allocates
// only if a reason has changed.
func (r *Reader) Reasons(uuid string) gpu.Reasons {
	first := r.First.Reasons(uuid)
	r.mu.Lock()
	defer r.mu.Unlock()
	n := r.needs[uuid]
	if n == nil { // no field is missing
		return first
	}
	why := r.why
	if r.second != nil {
		why = r.second.noFields(uuid)
	} else {
		why = cmp.Or(why, gpu.UnaskedOfDCGM)
	}
	if inputs := [3]string{first.Refused, first.Unasked, why}; n.inputs != inputs {
		n.inputs = inputs
		n.reasons = gpu.Reasons{Asked: first.Asked, Refused: first.Refused + "; " + why, Unasked: gpu.UnreadByNVML + "; " + why}
	}
	n.reasons.Asked = first.Asked
	return n.reasons
}

// logSource logs the source of a device's fields that the first reader lacks, or why
// they have no source, if that has changed.
func (r *Reader) logSource(uuid string) {
	first, lack := r.First.NoProfiling(uuid), r.NoProfiling(uuid)
	r.mu.Lock()
	defer r.mu.Unlock()
	n := r.needs[uuid]
	if n == nil {
		return
	}
	var given gpu.FieldSet
	if r.second != nil {
		given = r.second.givenOf(uuid)
	}
	if profiling := n.asked.Intersect(r.prof); first != "" && !profiling.Empty() {
		of := given.Intersect(r.prof)
		switch {
		case lack != "" && n.changed("profiling", lack):
			r.cfg.Log.Warn("GPU gives no profiling fields", "uuid", uuid, "reason", lack)
		case lack == "" && !of.Empty() && n.changed("profiling", "given"):
			r.cfg.Log.Info("profiling fields are read through DCGM", "uuid", uuid, "reason", first)
		}
	}
	if others := given.Minus(r.prof); !others.Empty() && n.changed("others", "given") {
		r.cfg.Log.Info("fields that NVML lacks are read through DCGM", "uuid", uuid, "fields", others.Len())
	}
}

// changed reports whether a line differs from the last one of its subject.
func (n *need) changed(what, text string) bool {
	if n.logged == nil {
		n.logged = map[string]string{}
	}
	if n.logged[what] == text {
		return false
	}
	n.logged[what] = text
	return true
}

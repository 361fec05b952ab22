// SPDX-License-Identifier: Apache-2.0

package gpu

import "math"

// Values holds what was read of one device: numbers by field, each in the
// field's unit, and strings for the Label fields. The zero value holds nothing.
type Values struct {
	have   FieldSet
	num    [NumFields]float64
	labels map[FieldID]string
	wrong  uint8 // values that were none
}

// Reset empties v and keeps its memory.
func (v *Values) Reset() {
	v.have = FieldSet{}
	v.wrong = 0
	clear(v.labels)
}

// Set records a value. NaN and infinities are not values: they are left out and
// counted. An id that the table lacks is left out.
func (v *Values) Set(id FieldID, x float64) {
	i, ok := IndexOf(id)
	if !ok {
		return
	}
	if math.IsNaN(x) || math.IsInf(x, 0) {
		v.wrong++
		return
	}
	v.num[i] = x
	v.have.Add(i)
}

// Wrong is how many values were left out because they are no numbers.
func (v *Values) Wrong() int { return int(v.wrong) }

// Add takes over those numbers of o that are of the given fields.
func (v *Values) Add(o *Values, of FieldSet) {
	taken := o.have.Intersect(of)
	for i := range v.num {
		if taken.Has(Index(i)) {
			v.num[i] = o.num[i]
		}
	}
	v.have = v.have.Union(taken)
	v.wrong += o.wrong
}

// Get returns the value of a field and whether there is one.
func (v *Values) Get(id FieldID) (float64, bool) {
	i, ok := IndexOf(id)
	if !ok || !v.have.Has(i) {
		return 0, false
	}
	return v.num[i], true
}

// GetAt is Get by table index.
func (v *Values) GetAt(i Index) (float64, bool) {
	if !v.have.Has(i) {
		return 0, false
	}
	return v.num[i], true
}

// Has says whether the field was read.
func (v *Values) Has(id FieldID) bool { return v.have.HasID(id) }

// SetLabel records the string of a Label field; an empty string is no value.
func (v *Values) SetLabel(id FieldID, s string) {
	if s == "" {
		return
	}
	if v.labels == nil {
		v.labels = make(map[FieldID]string, 4)
	}
	v.labels[id] = s
}

// GetLabel returns the string of a Label field and whether there is one.
func (v *Values) GetLabel(id FieldID) (string, bool) {
	s, ok := v.labels[id]
	return s, ok
}

// Fields is the set of numeric fields that have a value.
func (v *Values) Fields() FieldSet { return v.have }

// Clone returns a copy that shares nothing with v.
func (v *Values) Clone() Values {
	c := *v
	if v.labels != nil {
		c.labels = make(map[FieldID]string, len(v.labels))
		for k, s := range v.labels {
			c.labels[k] = s
		}
	}
	return c
}

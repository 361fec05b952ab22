// SPDX-License-Identifier: Apache-2.0

package gpu

import (
	"iter"
	"math"
	"slices"
)

// Values holds the values read from one device: numbers by field, each in the
// field's unit, and strings for the Label fields. The zero value is empty.
type Values struct {
	have   FieldSet
	whole  FieldSet          // the fields of have whose num is an int64
	num    [NumFields]uint64 // the bits of an int64 or of a float64
	labels map[FieldID]string
	passed []passedNumber // of fields that are not in the table; see Passer
	wrong  uint8          // values that are not numbers
}

// passedNumber is the value of a field that is not in the table.
type passedNumber struct {
	id FieldID
	Number
}

// Number is a value. A float64 has every whole number up to 2^53 only, but
// DCGM's and NVML's counters have 63 bits. If Whole is set, Int is the exact
// value and Float the nearest float64.
type Number struct {
	Float float64
	Int   int64
	Whole bool
}

// Real returns a Number that is not known to be whole.
func Real(x float64) Number { return Number{Float: x} }

// Whole returns a whole Number.
func Whole(n int64) Number { return Number{Float: float64(n), Int: n, Whole: true} }

// Reset empties v and keeps its memory.
func (v *Values) Reset() {
	v.have, v.whole = FieldSet{}, FieldSet{}
	v.wrong = 0
	clear(v.labels)
	v.passed = v.passed[:0]
}

// Set records a value. NaN and infinities are not values: they are counted as
// wrong. An id that is not in the table is ignored.
func (v *Values) Set(id FieldID, x float64) {
	if i, ok := IndexOf(id); ok && v.isNumber(x) {
		v.put(i, Real(x))
	}
}

// SetInt records a whole number, exactly.
func (v *Values) SetInt(id FieldID, n int64) {
	if i, ok := IndexOf(id); ok {
		v.put(i, Whole(n))
	}
}

// Take records a value of a field that need not be in the table. NaN and infinities are
// counted as wrong.
func (v *Values) Take(id FieldID, n Number) {
	switch i, known := IndexOf(id); {
	case !n.Whole && !v.isNumber(n.Float):
	case known:
		v.put(i, n)
	default:
		v.passed = append(v.passed, passedNumber{id, n})
	}
}

// Passed returns the value of a field that is not in the table and whether there is one.
func (v *Values) Passed(id FieldID) (Number, bool) {
	for i := range v.passed {
		if v.passed[i].id == id {
			return v.passed[i].Number, true
		}
	}
	return Number{}, false
}

// AllPassed iterates over the values of the fields that are not in the table.
func (v *Values) AllPassed() iter.Seq2[FieldID, Number] {
	return func(yield func(FieldID, Number) bool) {
		for _, p := range v.passed {
			if !yield(p.id, p.Number) {
				return
			}
		}
	}
}

// isNumber reports whether x is a number, and counts it if not.
func (v *Values) isNumber(x float64) bool {
	if math.IsNaN(x) || math.IsInf(x, 0) {
		v.SetNone()
		return false
	}
	return true
}

// SetUint records a whole number, exactly. A number of more than 63 bits is
// counted as wrong: DCGM's fields cannot hold it.
func (v *Values) SetUint(id FieldID, n uint64) {
	if n > math.MaxInt64 {
		v.SetNone()
		return
	}
	v.SetInt(id, int64(n))
}

// SetNone counts a value that is not a number.
func (v *Values) SetNone() { v.wrong++ }

func (v *Values) put(i Index, n Number) {
	v.have.Add(i)
	if n.Whole {
		v.num[i] = uint64(n.Int)
		v.whole.Add(i)
		return
	}
	v.num[i] = math.Float64bits(n.Float)
	v.whole.Remove(i)
}

// Wrong returns how many values were not numbers.
func (v *Values) Wrong() int { return int(v.wrong) }

// Add copies the numbers and strings of the given fields from o, and those of all
// fields that are not in the table and that v does not have.
func (v *Values) Add(o *Values, of FieldSet) {
	taken := o.have.Intersect(of)
	for i := range v.num {
		if taken.Has(Index(i)) {
			v.num[i] = o.num[i]
		}
	}
	v.have = v.have.Union(taken)
	v.whole = v.whole.Minus(taken).Union(o.whole.Intersect(taken))
	for id, s := range o.labels {
		if _, known := IndexOf(id); !known || of.HasID(id) {
			v.SetLabel(id, s)
		}
	}
	for _, p := range o.passed {
		if _, have := v.Passed(p.id); !have {
			v.passed = append(v.passed, p)
		}
	}
	v.wrong += o.wrong
}

// Get returns the value of a field and whether there is one.
func (v *Values) Get(id FieldID) (float64, bool) {
	i, ok := IndexOf(id)
	if !ok {
		return 0, false
	}
	return v.GetAt(i)
}

// GetAt is Get by table index.
func (v *Values) GetAt(i Index) (float64, bool) {
	n, ok := v.NumberAt(i)
	return n.Float, ok
}

// Number is Get that keeps whole numbers exact.
func (v *Values) Number(id FieldID) (Number, bool) {
	i, ok := IndexOf(id)
	if !ok {
		return Number{}, false
	}
	return v.NumberAt(i)
}

// NumberAt is GetAt that keeps whole numbers exact.
func (v *Values) NumberAt(i Index) (Number, bool) {
	switch {
	case !v.have.Has(i):
		return Number{}, false
	case v.whole.Has(i):
		return Whole(int64(v.num[i])), true
	}
	return Real(math.Float64frombits(v.num[i])), true
}

// Has reports whether the field has a value.
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

// Fields returns the numeric fields that have a value.
func (v *Values) Fields() FieldSet { return v.have }

// Given returns the fields that have a value or a string.
func (v *Values) Given() FieldSet {
	s := v.have
	for id := range v.labels {
		if i, ok := IndexOf(id); ok {
			s.Add(i)
		}
	}
	return s
}

// Clone returns a copy that shares nothing with v.
func (v *Values) Clone() Values {
	c := *v
	c.passed = slices.Clone(v.passed)
	if v.labels != nil {
		c.labels = make(map[FieldID]string, len(v.labels))
		for k, s := range v.labels {
			c.labels[k] = s
		}
	}
	return c
}

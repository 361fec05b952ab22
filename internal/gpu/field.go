// SPDX-License-Identifier: Apache-2.0

package gpu

import (
	"fmt"
	"math/bits"
)

// FieldID identifies a field. It is DCGM's numeric field id, which did not
// change when DCGM renamed fields.
type FieldID uint16

// Unit is the one unit in which a field's values are kept.
type Unit string

// The units of the field table. They are the units of dcgm-exporter 4.8.
const (
	None               Unit = ""      // a count, a state or a flag
	Percent            Unit = "%"     // 0 to 100
	Ratio              Unit = "ratio" // 0 to 1
	Megahertz          Unit = "MHz"
	Celsius            Unit = "C"
	Watt               Unit = "W"
	Millijoule         Unit = "mJ"
	Mebibyte           Unit = "MiB"
	BytesPerSecond     Unit = "B/s"
	MegabytesPerSecond Unit = "MB/s" // 10^6 bytes a second, as DCGM's NVLink bandwidth
	Nanosecond         Unit = "ns"
	Bitmask            Unit = "bits"
)

// Kind is the type of a field's value over time.
type Kind uint8

// The kinds of fields.
const (
	Gauge   Kind = iota // may go up and down
	Counter             // only goes up, until the driver is reloaded
	Label               // a string that goes with the device, not a number
)

// Aggregation is how the values of a field over a pod's GPUs, or a workload's
// pods, are combined.
type Aggregation uint8

// The aggregations. Rate is the sum of the counters' increases per second;
// NoAggregate fields have no meaningful combination (a clock-event bit mask, an
// XID code).
const (
	NoAggregate Aggregation = iota
	Mean
	Sum
	Max
	Rate
)

// String returns the aggregation's name, as in the documentation.
func (a Aggregation) String() string {
	return [...]string{"none", "mean", "sum", "max", "rate"}[a]
}

// Format is the number format of a field's value in an exposition.
type Format uint8

// DCGM's two numeric types: integers are printed without a fraction, floating
// point numbers with six decimals.
const (
	Integer Format = iota
	Float
)

// Field describes one field.
type Field struct {
	ID      FieldID
	Name    string // dcgm-exporter 4.8's name
	Unit    Unit
	Kind    Kind
	Format  Format
	PodAgg  Aggregation // over the GPUs of a pod
	LoadAgg Aggregation // over the pods of a workload
	Help    string      // one sentence for # HELP and the documentation
}

// Ref is a field as some name refers to it: a value under that name times
// Scale is in the field's own unit (the 4.9 ratio of GPU utilisation has
// Scale 100). Offset is never needed: no profile differs by one.
type Ref struct {
	Field FieldID
	Scale float64
}

// Index is a field's position in the table, and the index in Values and
// FieldSet. It differs between versions: do not store it outside the process.
type Index uint8

// Fields returns the fields of GPUs in order of id. Callers must not change it.
func Fields() []Field { return table[:numGPUFields] }

// PartFields returns the fields of parts in order of id; see Part. Their
// indexes follow those of Fields. Callers must not change it.
func PartFields() []Field { return table[numGPUFields:] }

// NumFields is the length of the table, the fields of parts included.
const NumFields = len(table)

// At returns the field at index i.
func At(i Index) *Field { return &table[i] }

// IndexOf finds a field's index by its id.
func IndexOf(id FieldID) (Index, bool) {
	if i, ok := search(0, numGPUFields, id); ok {
		return i, true
	}
	return search(numGPUFields, NumFields, id)
}

// search finds an id in table[lo:hi].
func search(lo, hi int, id FieldID) (Index, bool) {
	end := hi
	for lo < hi {
		mid := (lo + hi) / 2
		if table[mid].ID < id {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	if lo < end && table[lo].ID == id {
		return Index(lo), true
	}
	return 0, false
}

// Lookup finds a field by its id.
func Lookup(id FieldID) (*Field, bool) {
	i, ok := IndexOf(id)
	if !ok {
		return nil, false
	}
	return &table[i], true
}

// String returns the field's name, or its number if it is not in the table.
func (id FieldID) String() string {
	if f, ok := Lookup(id); ok {
		return f.Name
	}
	return fmt.Sprintf("field(%d)", uint16(id))
}

// FieldSet is a set of fields of the table. The zero value is empty.
type FieldSet [(NumFields + 63) / 64]uint64

// SetOf returns a set of fields. It ignores ids that are not in the table.
func SetOf(ids ...FieldID) FieldSet {
	var s FieldSet
	for _, id := range ids {
		if i, ok := IndexOf(id); ok {
			s.Add(i)
		}
	}
	return s
}

// AllFields returns all fields of GPUs.
func AllFields() FieldSet {
	var s FieldSet
	for i := range Fields() {
		s.Add(Index(i))
	}
	return s
}

// AllPartFields returns all fields of parts.
func AllPartFields() FieldSet {
	var s FieldSet
	for i := range PartFields() {
		s.Add(Index(numGPUFields + i))
	}
	return s
}

// Add adds the field at index i to the set.
func (s *FieldSet) Add(i Index) { s[i/64] |= 1 << (i % 64) }

// Remove removes the field at index i from the set.
func (s *FieldSet) Remove(i Index) { s[i/64] &^= 1 << (i % 64) }

// Has reports whether the field at index i is in the set.
func (s *FieldSet) Has(i Index) bool { return s[i/64]&(1<<(i%64)) != 0 }

// HasID reports whether the field with this id is in the set.
func (s *FieldSet) HasID(id FieldID) bool {
	i, ok := IndexOf(id)
	return ok && s.Has(i)
}

// Empty reports whether the set is empty.
func (s *FieldSet) Empty() bool { return *s == FieldSet{} }

// Len returns the number of fields in the set.
func (s *FieldSet) Len() int {
	n := 0
	for _, word := range s {
		n += bits.OnesCount64(word)
	}
	return n
}

// Intersect returns the fields of both sets.
func (s FieldSet) Intersect(o FieldSet) FieldSet {
	for i := range s {
		s[i] &= o[i]
	}
	return s
}

// Minus returns the fields of s that are not in o.
func (s FieldSet) Minus(o FieldSet) FieldSet {
	for i := range s {
		s[i] &^= o[i]
	}
	return s
}

// Union returns the fields of either set.
func (s FieldSet) Union(o FieldSet) FieldSet {
	for i := range s {
		s[i] |= o[i]
	}
	return s
}

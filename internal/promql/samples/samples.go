// SPDX-License-Identifier: Apache-2.0

// Package samples iterates over the samples of a series that a storage has in memory.
package samples

import (
	"sort"

	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
)

// Sample is a value at a time.
type Sample struct {
	T int64 // ms since 1970
	V float64
}

// millis is a time in ms since 1970. go vet takes a method Seek of an int64 for io.Seeker's.
type millis = int64

// Iterator iterates over samples in the order of time. It implements chunkenc.Iterator.
// The zero value has no samples.
type Iterator struct {
	list []Sample
	next int // the current sample is the one before; 0: none yet
	err  error
	own  []Sample // memory of the former series, for the next one
}

// Reuse returns an iterator: reuse, if it is one of this package.
func Reuse(reuse chunkenc.Iterator) *Iterator {
	if it, ok := reuse.(*Iterator); ok {
		return it
	}
	return &Iterator{}
}

// Buffer returns empty memory, to which the samples for Fill are appended.
func (it *Iterator) Buffer() []Sample { return it.own[:0] }

// Fill begins with samples in the memory of Buffer. An error ends the series before its
// first sample.
func (it *Iterator) Fill(list []Sample, err error) {
	it.own = list
	it.View(list)
	it.err = err
}

// View begins with samples that others read, too. It never changes them.
func (it *Iterator) View(list []Sample) { it.list, it.next, it.err = list, 0, nil }

// Next implements chunkenc.Iterator.
func (it *Iterator) Next() chunkenc.ValueType {
	it.next = min(it.next, len(it.list)) + 1
	return it.valueType()
}

// Seek implements chunkenc.Iterator.
func (it *Iterator) Seek(t millis) chunkenc.ValueType {
	it.next = max(it.next, 1)
	if rest := it.list[min(it.next-1, len(it.list)):]; len(rest) > 0 && rest[0].T < t {
		it.next += sort.Search(len(rest), func(i int) bool { return rest[i].T >= t })
	}
	return it.valueType()
}

func (it *Iterator) valueType() chunkenc.ValueType {
	if it.err != nil || it.next > len(it.list) {
		return chunkenc.ValNone
	}
	return chunkenc.ValFloat
}

// At implements chunkenc.Iterator.
func (it *Iterator) At() (int64, float64) { s := it.list[it.next-1]; return s.T, s.V }

// AtHistogram implements chunkenc.Iterator. There are no native histograms.
func (it *Iterator) AtHistogram(*histogram.Histogram) (int64, *histogram.Histogram) { return 0, nil }

// AtFloatHistogram implements chunkenc.Iterator. There are no native histograms.
func (it *Iterator) AtFloatHistogram(*histogram.FloatHistogram) (int64, *histogram.FloatHistogram) {
	return 0, nil
}

// AtT implements chunkenc.Iterator.
func (it *Iterator) AtT() int64 { return it.list[it.next-1].T }

// AtST implements chunkenc.Iterator. Start times are not known.
func (it *Iterator) AtST() int64 { return 0 }

// Err implements chunkenc.Iterator.
func (it *Iterator) Err() error { return it.err }

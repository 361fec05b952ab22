// SPDX-License-Identifier: Apache-2.0

package samples

import (
	"errors"
	"math/rand/v2"
	"testing"

	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"github.com/prometheus/prometheus/tsdb/chunks"
)

// theirs are samples for Prometheus's own iterator.
type theirs []Sample

func (l theirs) Get(i int) chunks.Sample { return float{l[i]} }
func (l theirs) Len() int                { return len(l) }

type float struct{ s Sample }

func (p float) T() int64                      { return p.s.T }
func (p float) ST() int64                     { return 0 }
func (p float) F() float64                    { return p.s.V }
func (p float) H() *histogram.Histogram       { return nil }
func (p float) FH() *histogram.FloatHistogram { return nil }
func (p float) Type() chunkenc.ValueType      { return chunkenc.ValFloat }
func (p float) Copy() chunks.Sample           { return p }

// Whatever is called in which order, the answers are those of Prometheus's iterator, also
// in the memory of a former series.
func TestAsPrometheusIterator(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	it := &Iterator{}
	for range 2000 {
		list := make([]Sample, r.IntN(12))
		at := int64(-5)
		for i := range list {
			at += 1 + r.Int64N(4)
			list[i] = Sample{at, r.Float64()}
		}
		it = Reuse(it)
		if r.IntN(2) == 0 {
			it.View(list)
		} else {
			it.Fill(append(it.Buffer(), list...), nil)
		}
		want := storage.NewListSeriesIterator(theirs(list))
		for range 20 {
			var got, wants chunkenc.ValueType
			if r.IntN(2) == 0 {
				got, wants = it.Next(), want.Next()
			} else {
				to := r.Int64N(40) - 10
				got, wants = it.Seek(to), want.Seek(to)
			}
			if got != wants {
				t.Fatalf("%v: type %v, want %v", list, got, wants)
			}
			if got == chunkenc.ValNone {
				break
			}
			gotT, gotV := it.At()
			if wantT, wantV := want.At(); gotT != wantT || gotV != wantV || it.AtT() != wantT {
				t.Fatalf("%v: %d=%g, want %d=%g", list, gotT, gotV, wantT, wantV)
			}
		}
	}
}

// The samples of View belong to others: a later Fill does not write into them.
func TestViewIsNeverChanged(t *testing.T) {
	shared := []Sample{{1, 1}, {2, 2}, {3, 3}}
	it := Reuse(nil)
	it.View(shared[:1])
	it = Reuse(it)
	it.Fill(append(it.Buffer(), Sample{7, 7}, Sample{8, 8}), nil)
	if shared[0] != (Sample{1, 1}) || shared[1] != (Sample{2, 2}) {
		t.Errorf("the samples are now %v", shared)
	}
}

func TestAnErrorEndsTheSeries(t *testing.T) {
	it, failed := Reuse(nil), errors.New("failed")
	it.Fill([]Sample{{1, 1}}, failed)
	if it.Next() != chunkenc.ValNone || it.Seek(0) != chunkenc.ValNone || !errors.Is(it.Err(), failed) {
		t.Errorf("a series with an error has samples; error %v", it.Err())
	}
	it.View([]Sample{{1, 1}})
	if it.Next() != chunkenc.ValFloat || it.Err() != nil {
		t.Errorf("the next series has the error %v", it.Err())
	}
}

// There are no native histograms and no times of a start.
func TestThereAreFloatsAlone(t *testing.T) {
	it := Reuse(nil)
	it.View([]Sample{{1, 1}})
	it.Next()
	_, h := it.AtHistogram(nil)
	_, fh := it.AtFloatHistogram(nil)
	if h != nil || fh != nil || it.AtST() != 0 || it.AtT() != 1 {
		t.Errorf("%v, %v, start %d", h, fh, it.AtST())
	}
}

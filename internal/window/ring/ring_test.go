// SPDX-License-Identifier: Apache-2.0

package ring

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
)

func TestNarrowGivesBackTheDecimals(t *testing.T) {
	for range 100_000 {
		for _, c := range []struct {
			most     int64
			decimals float64
		}{{8_000_000, 1e6}, {8_192_000, 1e3}, {1 << 24, 1}} {
			want := float64(rand.Int64N(c.most)) / c.decimals
			if got := narrow(float32(want)); got != want {
				t.Fatalf("%v came back as %v", want, got)
			}
		}
	}
}

// A window grows block by block: what is there is neither copied nor left as garbage.
func TestWindowsGrowInPlace(t *testing.T) {
	r := Ring{}
	for range 32 {
		r.AddColumn(Narrow)
	}
	r.AddColumn(Wide)
	for stamp := int64(1); stamp <= 301; stamp++ {
		if r.Full() {
			want := min(r.Slots()+max(8, min(r.Slots(), BlockSlots)), 301)
			if c := r.CostWith(want); r.Slots() >= 2*BlockSlots && c.Peak > 16<<10 {
				t.Errorf("from %d to %d slots: %d bytes at most, %d for good", r.Slots(), want, c.Peak, c.Net)
			}
			var first *float32
			if r.Slots() >= BlockSlots {
				first = &r.narrow.blocks[0][0]
			}
			r.Resize(want)
			if first != nil && first != &r.narrow.blocks[0][0] {
				t.Errorf("from %d slots the first block was copied", r.Slots())
			}
		}
		r.Advance(stamp)
		r.Set(Column{Index: 31, Width: Narrow}, float64(stamp))
		r.Set(Column{Width: Wide}, float64(-stamp))
	}
	if r.Slots() != 301 || r.Bytes() > 301*(8+4*32+8)+4096 {
		t.Errorf("%d slots in %d bytes", r.Slots(), r.Bytes())
	}
	for i := range 301 {
		v, _ := r.At(Column{Index: 31, Width: Narrow}, r.Slot(i))
		w, _ := r.At(Column{Width: Wide}, r.Slot(i))
		if _, ok := r.At(Column{Width: Narrow}, r.Slot(i)); ok || v != float64(i+1) || w != -v {
			t.Fatalf("slot %d has %v and %v", i, v, w)
		}
	}
}

// Bytes is what the ring's arrays hold, and a cost is never less than the increase.
func TestBytesAreCounted(t *testing.T) {
	for seed := range uint64(20) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		var r Ring
		var columns []Column
		for stamp := int64(1); stamp < 200; stamp++ {
			before := r.Bytes()
			most := before
			switch {
			case rnd.IntN(8) == 0 && len(columns) > 0 && columns[0].Width == Short:
				most += r.CostOfColumn(Narrow).Net
				columns[0] = r.Widen(columns[0])
			case r.Full():
				most += r.CostWith(r.Slots() + 8).Net
				r.Resize(r.Slots() + 8)
			case rnd.IntN(8) == 0 && len(columns) > 0:
				i := rnd.IntN(len(columns))
				r.FreeColumn(columns[i])
				columns = append(columns[:i], columns[i+1:]...)
			case rnd.IntN(3) == 0:
				w := Width(rnd.IntN(int(widths)))
				most += r.CostOfColumn(w).Net
				columns = append(columns, r.AddColumn(w))
			}
			r.Advance(stamp)
			if r.Bytes() > most {
				t.Fatalf("seed %d: from %d to %d bytes, announced %d", seed, before, r.Bytes(), most)
			}
			if n := recount(t, &r); n != r.Bytes() {
				t.Fatalf("seed %d: %d bytes, counted %d", seed, n, r.Bytes())
			}
		}
	}
}

// TestAWiderColumnTakesNoMore: the window becomes as short as the wider column asks for.
func TestAWiderColumnTakesNoMore(t *testing.T) {
	for shape := range 20 * 8 * 4 * 40 {
		short, narrow, wide, slots := 1+shape%20, shape/20%8, shape/160%4, 8+shape/640
		var r Ring
		r.Resize(slots)
		var keep Columns
		for w, n := range map[Width]int{Short: short, Narrow: narrow, Wide: wide} {
			for range n {
				keep.Keep(r.AddColumn(w))
			}
		}
		before, widened := r.Bytes(), r.SlotsWidened()
		r.Rebuild(widened, &keep)
		r.Widen(Column{Width: Short})
		if got := r.Bytes(); got > before && widened > 0 {
			t.Fatalf("%d slots of %d, %d and %d columns: %d bytes, then %d in %d slots", slots, short, narrow, wide, before, got, r.Slots())
		}
	}
}

func recount(t *testing.T, r *Ring) int64 {
	t.Helper()
	if cap(r.short.free) > r.short.stride || cap(r.narrow.free) > r.narrow.stride || cap(r.wide.free) > r.wide.stride {
		t.Fatal("a list of free columns has more than its room")
	}
	n := int64(8 * cap(r.stamps))
	n += blockBytes(r.short.blocks, 2) + blockBytes(r.narrow.blocks, 4) + blockBytes(r.wide.blocks, 8)
	return n + int64(4*r.short.stride+4*r.narrow.stride+4*r.wide.stride) // room for the lists of free columns
}

func blockBytes[T number](blocks [][]T, size int) (n int64) {
	for _, b := range blocks {
		n += int64(cap(b) * size)
	}
	return n + int64(cap(blocks))*24
}

// A column that begins short gives back what a narrow one does, whatever values come.
func FuzzShort(f *testing.F) {
	add := func(values ...float64) {
		var b []byte
		for _, v := range values {
			b = binary.LittleEndian.AppendUint64(b, math.Float64bits(v))
		}
		f.Add(b, byte(3))
	}
	add(0, 1, 100, 65534, 65535, 65536, 70000)
	add(1, 0.5, 2)
	add(1, -1, 2)
	add(1, math.NaN(), 2, math.Inf(1), math.Inf(-1))
	add(28.999999999999996, math.Copysign(0, -1), 65534.6, 65534.4)
	add(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12.5, 13, 14, 15, 16)
	f.Fuzz(func(t *testing.T, b []byte, step byte) {
		var r Ring
		plain, column := r.AddColumn(Narrow), r.AddColumn(Short)
		others := make([]Column, 5)
		for i := range others {
			others[i] = r.AddColumn(Width(i % int(widths)))
		}
		for stamp := int64(1); len(b) >= 8; stamp, b = stamp+1, b[8:] {
			v := math.Float64frombits(binary.LittleEndian.Uint64(b))
			if r.Full() && r.Slots() < 40 {
				r.Resize(r.Slots() + 1 + int(step)%50)
			}
			r.Advance(stamp)
			r.Set(plain, v)
			for i, c := range others {
				r.Set(c, float64(i))
			}
			if !r.Set(column, v) {
				column = r.Widen(column)
				if column.Width != Narrow || !r.Set(column, v) {
					t.Fatalf("%v has no place in %v", v, column)
				}
			}
			if step > 0 && stamp%int64(step) == 0 {
				var keep Columns
				plain, column = keep.Keep(plain), keep.Keep(column)
				for i, c := range others {
					others[i] = keep.Keep(c)
				}
				r.Rebuild(r.Slots(), &keep)
			}
			for i := range r.Len() {
				slot := r.Slot(i)
				want, has := r.At(plain, slot)
				if got, ok := r.At(column, slot); ok != has || ok && got != want {
					t.Fatalf("stamp %d: %v, %v; a narrow column has %v, %v", r.Stamp(slot), got, ok, want, has)
				}
				for i, c := range others {
					if got, ok := r.At(c, slot); !ok || got != float64(i) {
						t.Fatalf("another column has %v, %v instead of %d", got, ok, i)
					}
				}
			}
			if n := recount(t, &r); n != r.Bytes() {
				t.Fatalf("%d bytes, counted %d", r.Bytes(), n)
			}
		}
	})
}

func BenchmarkSet(b *testing.B) {
	eachWidth(b, func(r *Ring, c Column, i int) { r.Set(c, float64(i%100)) })
}

func BenchmarkAt(b *testing.B) {
	var sum float64
	eachWidth(b, func(r *Ring, c Column, i int) {
		v, _ := r.At(c, i%r.Slots())
		sum += v
	})
}

func eachWidth(b *testing.B, f func(r *Ring, c Column, i int)) {
	for w := range widths {
		b.Run(fmt.Sprint(8>>(widths-1-w), "bytes"), func(b *testing.B) {
			var r Ring
			var columns [32]Column
			for i := range columns {
				columns[i] = r.AddColumn(w)
			}
			r.Resize(256)
			for stamp := range int64(256) {
				r.Advance(stamp)
				for i, c := range columns {
					r.Set(c, float64(i))
				}
			}
			for i := range b.N {
				f(&r, columns[i%len(columns)], i)
			}
		})
	}
}

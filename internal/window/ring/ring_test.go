// SPDX-License-Identifier: Apache-2.0

package ring

import (
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
		r.AddColumn(false)
	}
	r.AddColumn(true)
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
		r.Set(Column{Index: 31}, float64(stamp))
		r.Set(Column{Wide: true}, float64(-stamp))
	}
	if r.Slots() != 301 || r.Bytes() > 301*(8+4*32+8)+4096 {
		t.Errorf("%d slots in %d bytes", r.Slots(), r.Bytes())
	}
	for i := range 301 {
		v, _ := r.At(Column{Index: 31}, r.Slot(i))
		w, _ := r.At(Column{Wide: true}, r.Slot(i))
		if _, ok := r.At(Column{}, r.Slot(i)); ok || v != float64(i+1) || w != -v {
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
			case r.Full():
				most += r.CostWith(r.Slots() + 8).Net
				r.Resize(r.Slots() + 8)
			case rnd.IntN(8) == 0 && len(columns) > 0:
				i := rnd.IntN(len(columns))
				r.FreeColumn(columns[i])
				columns = append(columns[:i], columns[i+1:]...)
			case rnd.IntN(3) == 0:
				wide := rnd.IntN(2) == 0
				most += r.CostOfColumn(wide).Net
				columns = append(columns, r.AddColumn(wide))
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

func recount(t *testing.T, r *Ring) int64 {
	t.Helper()
	if cap(r.narrow.free) > r.narrow.stride || cap(r.wide.free) > r.wide.stride {
		t.Fatal("a list of free columns has more than its room")
	}
	n := int64(8 * cap(r.stamps))
	n += blockBytes(r.narrow.blocks, 4) + blockBytes(r.wide.blocks, 8)
	return n + int64(4*r.narrow.stride+4*r.wide.stride) // room for the lists of free columns
}

func blockBytes[T float32 | float64](blocks [][]T, size int) (n int64) {
	for _, b := range blocks {
		n += int64(cap(b) * size)
	}
	return n + int64(cap(blocks))*24
}

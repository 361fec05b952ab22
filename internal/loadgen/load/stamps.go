// SPDX-License-Identifier: Apache-2.0

package load

import (
	"encoding/binary"
	"math"
)

// The record area of a launch, as kernels.ptx.tmpl describes it.
const (
	recordHeader = 64
	recordBlock  = 64
)

func recordBytes(blocks int) uint64 { return uint64(recordHeader + recordBlock*blocks) }

// measured is what one slice of a load did, by the device's clocks. Times are ns of the device's timer.
type measured struct {
	first, end float64 // of the slice's work

	busy  float64 // ns in which the device worked: see kernelWork.busy
	work  float64 // multiply-adds, or bytes
	hertz float64 // mean SM clock; 0 if it was not counted
	// hertzSpread is the relative half-width of the blocks' clocks.
	hertzSpread float64
	distinctSMs int
}

// block is a block's record.
type block struct {
	sm, warps          uint32
	start, end, cycles float64
	work, worked       float64
}

// blocks reads the records of a launch. A block that wrote none is left out.
func blocks(area []byte) []block {
	var out []block
	for at := recordHeader; at+recordBlock <= len(area); at += recordBlock {
		r := area[at:]
		u64 := func(offset int) float64 { return float64(binary.LittleEndian.Uint64(r[offset:])) }
		b := block{
			sm: binary.LittleEndian.Uint32(r), warps: binary.LittleEndian.Uint32(r[4:]),
			start: u64(8), end: u64(16), cycles: u64(24), work: u64(32), worked: u64(40),
		}
		if b.start > 0 && b.end >= b.start {
			out = append(out, b)
		}
	}
	return out
}

// summary is what the records of a launch have in common, whatever the kind.
type summary struct {
	measured
	blockNS, warpNS, smNS, worked float64 // sums over blocks, blocks' warps and SMs; worked over warps
	warps                         float64
}

func summarize(list []block) summary {
	s := summary{measured: measured{first: math.Inf(1)}}
	type span struct{ start, end float64 }
	sms := map[uint32]span{}
	low, high, cycles := math.Inf(1), 0.0, 0.0
	for _, b := range list {
		ns := b.end - b.start
		s.first, s.end = min(s.first, b.start), max(s.end, b.end)
		s.blockNS += ns
		s.warpNS += ns * float64(b.warps)
		s.warps += float64(b.warps)
		s.work += b.work
		s.worked += b.worked
		if sm, ok := sms[b.sm]; ok {
			sms[b.sm] = span{min(sm.start, b.start), max(sm.end, b.end)}
		} else {
			sms[b.sm] = span{b.start, b.end}
		}
		if ns > clockNS {
			cycles += b.cycles
			s.hertz += ns
			low, high = min(low, b.cycles/ns), max(high, b.cycles/ns)
		}
	}
	for _, sm := range sms {
		s.smNS += sm.end - sm.start
	}
	s.distinctSMs = len(sms)
	if s.hertz > 0 {
		s.hertz = cycles / s.hertz * 1e9
		s.hertzSpread = (high - low) / 2 / (s.hertz / 1e9)
	}
	return s
}

// clockNS is the shortest run of a block that its clock is computed from: the timer's step would weigh too much.
const clockNS = 1e6

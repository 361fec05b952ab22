// SPDX-License-Identifier: Apache-2.0

package history

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// written is the rows of a segment as text.
type written []string

func rowText(w Workload, minute int64, values []Value) string {
	return fmt.Sprint(w, minute, values)
}

// segmentOf encodes a segment with some workloads and minutes, and returns its rows as
// they are read back.
func segmentOf(seed uint64) (file []byte, rows written) {
	r := rand.New(rand.NewPCG(seed, 1))
	first := minuteOf(epoch)
	s, file := newSegment(first)
	for minute := first; minute < first+20; minute++ {
		for i := range 3 {
			if r.IntN(4) == 0 {
				continue // a missing minute
			}
			values := load(r, 1+r.IntN(4))
			if r.IntN(3) == 0 {
				values[0].Mean = math.NaN()
			}
			w := workload(fmt.Sprint("ns", i%2), fmt.Sprint(i))
			s.add(w, minute, values)
			values = slices.DeleteFunc(values, func(v Value) bool { return math.IsNaN(v.Mean) })
			for j := range values {
				v := &values[j]
				v.Mean, v.Max, v.Count = widen(narrow(v.Mean)), widen(narrow(v.Max)), widen(narrow(v.Count))
			}
			if len(values) > 0 {
				rows = append(rows, rowText(w, minute, values))
			}
		}
		file = append(file, s.finish()...)
	}
	return file, rows
}

func read(file []byte) (rows written, good int64, err error) {
	good, err = readSegment(bytes.NewReader(file), func(w Workload, minute int64, values []Value) {
		rows = append(rows, rowText(w, minute, values))
	})
	return rows, good, err
}

func TestASegmentIsReadAsWritten(t *testing.T) {
	for seed := range uint64(50) {
		file, want := segmentOf(seed)
		got, good, err := read(file)
		if err != nil || good != int64(len(file)) || !slices.Equal(got, want) {
			t.Fatalf("seed %d: %v, %d of %d bytes\n%q\nwant\n%q", seed, err, good, len(file), got, want)
		}
	}
}

// Each truncation and each flipped bit costs the rows after it, and no others.
func TestDamageCostsTheTailOnly(t *testing.T) {
	file, want := segmentOf(7)
	for n := range file {
		got, good, _ := read(file[:n])
		if len(got) > len(want) || !slices.Equal(got, want[:len(got)]) || good > int64(n) {
			t.Fatalf("cut at %d: %d rows, %d good bytes", n, len(got), good)
		}
		flipped := bytes.Clone(file)
		flipped[n] ^= 1 << (n % 8)
		got, good, err := read(flipped)
		if err == nil || good > int64(n) || len(got) > len(want) || !slices.Equal(got, want[:len(got)]) {
			t.Fatalf("flipped at %d: %v, %d rows, %d good bytes", n, err, len(got), good)
		}
	}
}

// A frame at another place is damage, although its bytes are right.
func TestFramesAreReadInTheirOrderOnly(t *testing.T) {
	file, want := segmentOf(7)
	first := headerSize + frameHeader + int(binary.BigEndian.Uint32(file[headerSize:]))
	repeated := slices.Concat(file[:first], file[headerSize:first], file[first:])
	got, good, err := read(repeated)
	if err == nil || good != int64(first) || !slices.Equal(got, want[:len(got)]) {
		t.Errorf("a repeated frame: %v after %d bytes, %d rows", err, good, len(got))
	}
}

func TestAnotherVersionIsSaid(t *testing.T) {
	for _, version := range []uint16{0, 1, segmentVersion + 1} {
		file, _ := segmentOf(1)
		binary.BigEndian.PutUint16(file[len(magic):], version)
		binary.BigEndian.PutUint32(file[headerSize-4:], crc32.Checksum(file[:headerSize-4], castagnoli))
		if _, _, err := read(file); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("the segment has version %d, want %d", version, segmentVersion)) {
			t.Errorf("version %d: %v", version, err)
		}
	}
}

// FuzzDamagedSegment: whatever is overwritten, inserted or cut, the rows that are read are
// the first ones of those that were written.
func FuzzDamagedSegment(f *testing.F) {
	f.Add(uint64(1), 40, 0, []byte{1, 2, 3})
	f.Add(uint64(2), 500, 10, []byte{})
	f.Fuzz(func(t *testing.T, seed uint64, at, drop int, insert []byte) {
		file, want := segmentOf(seed % 64)
		if at < 0 || drop < 0 || at > len(file) || drop > len(file)-at || len(insert) > 1<<16 {
			t.Skip()
		}
		damaged := slices.Concat(file[:at], insert, file[at+drop:])
		got, good, _ := read(damaged)
		if len(got) > len(want) || !slices.Equal(got, want[:len(got)]) {
			t.Fatalf("read %q, written were %q", got, want)
		}
		if good > int64(len(damaged)) {
			t.Fatalf("%d good bytes of %d", good, len(damaged))
		}
	})
}

// FuzzReadSegment: no file makes the reader panic, return a value that is no number, a
// name that is too long, or more rows than the file has bytes. The fuzzer's frames get
// right checksums, so that it reaches the entries.
func FuzzReadSegment(f *testing.F) {
	file, _ := segmentOf(3)
	f.Add(file[headerSize+frameHeader : headerSize+frameHeader+200])
	f.Add([]byte{entryWorkload, 1, 'a', 1, 'b', 1, 'c', entryMetric, 0, 1, 'm', entryRow, 0, 0, 1, 0})
	f.Fuzz(func(t *testing.T, entries []byte) {
		_, header := newSegment(minuteOf(epoch))
		sum := binary.BigEndian.Uint32(header[headerSize-4:])
		frame := binary.BigEndian.AppendUint32(nil, uint32(len(entries)))
		frame = binary.BigEndian.AppendUint32(frame, frameSum(sum, frame, entries))
		n := 0
		_, _ = readSegment(bytes.NewReader(slices.Concat(header, frame, entries)), func(w Workload, minute int64, values []Value) {
			if n++; n > len(entries) || w.check() != nil || minute < 0 || minute > maxMinute || len(values) > MaxMetrics {
				t.Fatalf("row %d of %v at %d has %d values", n, w, minute, len(values))
			}
			for _, v := range values {
				if math.IsNaN(v.Mean) || math.IsInf(v.Max, 0) || math.IsInf(v.Count, 0) || !v.Metric.valid() {
					t.Fatalf("%v has %v", w, v)
				}
			}
		})
		_, _ = readSegment(bytes.NewReader(entries), func(Workload, int64, []Value) { t.Fatal("a row without a header") })
	})
}

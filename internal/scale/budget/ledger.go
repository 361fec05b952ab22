// SPDX-License-Identifier: Apache-2.0

package budget

import (
	"bytes"
	"compress/flate"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"math/bits"
	"sync"
	"time"
)

// tiers are the lengths of buckets, and how many are kept: an hour and the current bucket
// in steps of 5 minutes, 3 days in hours, and 28 days in days.
var tiers = [...]struct {
	step    time.Duration
	buckets int
}{{5 * time.Minute, 13}, {time.Hour, 73}, {24 * time.Hour, 29}}

// Ledger keeps the requests of 28 days. The zero Ledger is empty.
type Ledger struct {
	since time.Time // of the first count; zero: there is none
	tiers [len(tiers)]tier
}

// tier is a ring of buckets. A bucket has the number of steps since 1970 as its index.
type tier struct {
	newest int64
	ring   []Count
}

// at returns the bucket of an index; nil: it is not kept.
func (t *tier) at(index int64) *Count {
	n := int64(len(t.ring))
	if n == 0 || index < 0 || index > t.newest || index <= t.newest-n {
		return nil
	}
	return &t.ring[index%n]
}

// reach makes a bucket the newest one, unless it is older.
func (t *tier) reach(index int64, buckets int) {
	if t.ring == nil || index <= t.newest-int64(buckets) { // the clock was set back
		t.newest, t.ring = index, make([]Count, buckets)
	}
	for i := max(t.newest, index-int64(buckets)) + 1; i <= index; i++ {
		t.ring[i%int64(buckets)] = Count{}
	}
	t.newest = max(t.newest, index)
}

// Add adds requests that were counted at a time.
func (l *Ledger) Add(at time.Time, c Count) {
	if c == (Count{}) || at.Unix() < 0 {
		return
	}
	if l.since.IsZero() || at.Before(l.since) {
		l.since = at
	}
	for i := range tiers {
		t, index := &l.tiers[i], indexOf(at, i)
		t.reach(index, tiers[i].buckets)
		if x := t.at(index); x != nil {
			*x = x.plus(&c, 1)
		}
	}
}

// indexOf returns the index of the bucket of a time.
func indexOf(at time.Time, tier int) int64 { return at.Unix() / int64(tiers[tier].step.Seconds()) }

// Since is when the first request was counted; zero: none was.
func (l *Ledger) Since() time.Time { return l.since }

// Sum returns the requests of a window until now. The oldest bucket counts in part.
func (l *Ledger) Sum(now time.Time, window time.Duration) (sum Count) {
	i := 0
	for i+1 < len(tiers) && window > time.Duration(tiers[i].buckets-1)*tiers[i].step {
		i++
	}
	from, step := now.Add(-window), tiers[i].step
	t := &l.tiers[i]
	for index := indexOf(from, i); index <= indexOf(now, i); index++ {
		x := t.at(index)
		if x == nil {
			continue
		}
		share, begin := 1.0, time.Unix(index*int64(step.Seconds()), 0)
		if begin.Before(from) {
			share = 1 - float64(from.Sub(begin))/float64(step)
		}
		sum = sum.plus(x, share)
	}
	return sum
}

// Merge adds what another ledger of the same objective has and this one lacks. Of each
// bucket the count with more requests stays: both replicas of a controller count the same
// servers. It reports whether anything was taken.
func (l *Ledger) Merge(o *Ledger) (changed bool) {
	if o.since.IsZero() {
		return false
	}
	if l.since.IsZero() || o.since.Before(l.since) {
		l.since, changed = o.since, true
	}
	for i := range tiers {
		from, to := &o.tiers[i], &l.tiers[i]
		if from.ring == nil {
			continue
		}
		if to.ring == nil || from.newest > to.newest {
			to.reach(from.newest, tiers[i].buckets)
		}
		for index := from.newest - int64(tiers[i].buckets) + 1; index <= from.newest; index++ {
			if x, mine := from.at(index), to.at(index); x != nil && mine != nil && x.Ended > mine.Ended {
				*mine, changed = *x, true
			}
		}
	}
	return changed
}

// The stored form: a version, the time of the first count, and the tiers, each with the
// index of its newest bucket and its buckets, the newest first. Requests that ended are
// whole, the others are in tenths; numbers from 2,048 on are rounded to 0.05 %.
const (
	version = 1
	// maxEncoded and maxDecoded bound the stored form, before and after it is unpacked.
	maxEncoded, maxDecoded = 2 << 10, 8 << 10
)

// mantissa is how many bits of a number are stored; the other five are its exponent.
const mantissa = 11

// short returns the stored form of a number.
func short(x float64) uint16 {
	const most = (1<<mantissa - 1) << 31
	n := uint64(math.Round(min(max(0, x), most)))
	exponent := max(0, bits.Len64(n)-mantissa)
	if exponent > 0 {
		n = min(n+1<<(exponent-1), most)
		exponent = max(exponent, bits.Len64(n)-mantissa)
	}
	return uint16(exponent<<mantissa) | uint16(n>>exponent)
}

// long is the inverse of short.
func long(x uint16) float64 { return float64(uint64(x&(1<<mantissa-1)) << (x >> mantissa)) }

// writers are reused: one takes hundreds of KB.
var writers = sync.Pool{New: func() any {
	w, _ := flate.NewWriter(nil, flate.BestCompression) // the level is valid
	return w
}}

// Encode returns the stored form; nil if the ledger is empty, or if it takes too much.
func (l *Ledger) Encode() []byte {
	if l.since.IsZero() {
		return nil
	}
	b := binary.AppendUvarint([]byte{version}, uint64(l.since.Unix()))
	for i := range tiers {
		t := &l.tiers[i]
		b = binary.AppendUvarint(b, uint64(t.newest))
		for k := range int64(tiers[i].buckets) {
			var c Count
			if x := t.at(t.newest - k); x != nil {
				c = *x
			}
			for _, x := range []float64{c.Ended, 10 * c.Aborted, 10 * c.First, 10 * (c.FirstMost - c.First), 10 * c.Token, 10 * (c.TokenMost - c.Token)} {
				b = binary.LittleEndian.AppendUint16(b, short(x))
			}
		}
	}
	var out bytes.Buffer
	w := writers.Get().(*flate.Writer)
	defer writers.Put(w)
	w.Reset(&out)
	if _, err := w.Write(b); err != nil || w.Close() != nil || out.Len() > maxEncoded {
		return nil
	}
	return out.Bytes()
}

var (
	errForm   = errors.New("not a ledger")
	errFuture = errors.New("a ledger from the future")
)

// Decode returns what Encode stored before now. Anyone may have written it.
func Decode(stored []byte, now time.Time) (*Ledger, error) {
	if len(stored) > maxEncoded {
		return nil, fmt.Errorf("%w: %d bytes", errForm, len(stored))
	}
	b, err := io.ReadAll(io.LimitReader(flate.NewReader(bytes.NewReader(stored)), maxDecoded))
	if err != nil || len(b) == 0 || b[0] != version {
		return nil, errForm
	}
	r := bytes.NewReader(b[1:])
	whole := func() int64 {
		x, e := binary.ReadUvarint(r)
		if e != nil || x > math.MaxInt32*8 {
			err, x = errForm, 0
		}
		return int64(x)
	}
	next := func() float64 {
		var x [2]byte
		if _, e := io.ReadFull(r, x[:]); e != nil {
			err = errForm
		}
		return long(binary.LittleEndian.Uint16(x[:]))
	}
	l := &Ledger{since: time.Unix(whole(), 0)}
	for i := range tiers {
		newest := whole()
		if newest > indexOf(now, i)+1 || l.since.After(now.Add(tiers[0].step)) {
			return nil, errFuture
		}
		t := &l.tiers[i]
		t.reach(newest, tiers[i].buckets)
		for k := range int64(tiers[i].buckets) {
			c := Count{Ended: next(), Aborted: next() / 10}
			c.First = next() / 10
			c.FirstMost = c.First + next()/10
			c.Token = next() / 10
			c.TokenMost = c.Token + next()/10
			if x := t.at(newest - k); x != nil {
				*x = c
			}
		}
	}
	if err != nil || r.Len() > 0 {
		return nil, errForm
	}
	return l, nil
}

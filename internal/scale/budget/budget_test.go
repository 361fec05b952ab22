// SPDX-License-Identifier: Apache-2.0

package budget

import (
	"bytes"
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

var t0 = time.Date(2026, 3, 1, 10, 2, 0, 0, time.UTC)

func latencyOf(count, below, above float64) Latency {
	return Latency{Limited: true, Count: count, Below: below, Above: above}
}

func sample(at time.Time, ended, aborted float64, first Latency) Sample {
	return Sample{At: at, Ended: ended, Aborted: aborted, First: first}
}

func TestMeterCountsWhatServersAdd(t *testing.T) {
	var m Meter
	f := func(what string, s Sample, want Count) {
		t.Helper()
		if got := m.Add("a", s); got != want {
			t.Errorf("%s: %+v, want %+v", what, got, want)
		}
	}
	f("the first sample may have been counted before", sample(t0, 100, 3, latencyOf(90, 80, 85)), Count{})
	f("ten more, two aborted, between one and three late", sample(t0.Add(time.Second), 110, 5, latencyOf(100, 87, 94)),
		Count{Ended: 10, Aborted: 2, First: 1, FirstMost: 3})
	f("the same page again", sample(t0.Add(time.Second), 110, 5, latencyOf(100, 87, 94)), Count{})
	f("after a gap all of it counts", sample(t0.Add(time.Hour), 210, 5, latencyOf(200, 187, 194)), Count{Ended: 100})
	f("a restarted server begins at zero", sample(t0.Add(2*time.Hour), 4, 1, latencyOf(4, 2, 3)), Count{Ended: 4, Aborted: 1, First: 1, FirstMost: 2})
	f("more than any server answers", sample(t0.Add(2*time.Hour+time.Second), 1e9, 1, latencyOf(4, 2, 3)), Count{})
	f("and goes on from there", sample(t0.Add(2*time.Hour+2*time.Second), 1e9+5, 1, latencyOf(4, 2, 3)), Count{Ended: 5})
	f("not a number", sample(t0.Add(3*time.Hour), math.NaN(), 1, latencyOf(4, 2, 3)), Count{})
	m.Keep(0, func(string) bool { return false })
	f("a server that is new again", sample(t0.Add(4*time.Hour), 100, 0, latencyOf(4, 2, 3)), Count{})
}

// Where tokens are observed, their share counts as that of the requests.
func TestMeterOfTokens(t *testing.T) {
	var m Meter
	tokens := func(count, above float64) Latency {
		return Latency{Limited: true, Count: count, Below: above, Above: above, OfTokens: true}
	}
	m.Add("a", Sample{At: t0, Ended: 10, Token: tokens(1000, 1000)})
	c := m.Add("a", Sample{At: t0.Add(time.Minute), Ended: 20, Token: tokens(2000, 1900)})
	if least, most := c.Missed(); math.Abs(least-1) > 1e-9 || math.Abs(most-1) > 1e-9 {
		t.Errorf("100 of 1,000 tokens of 10 requests: %v to %v, want 1", least, most)
	}
}

func TestMissedIsARange(t *testing.T) {
	f := func(c Count, least, most float64) {
		t.Helper()
		if l, m := c.Missed(); l != least || m != most {
			t.Errorf("%+v: %v to %v, want %v to %v", c, l, m, least, most)
		}
	}
	f(Count{Ended: 100, First: 3, FirstMost: 3, Token: 2, TokenMost: 2}, 3, 5)
	f(Count{Ended: 100, First: 3, FirstMost: 30, Token: 2, TokenMost: 2}, 3, 32)
	f(Count{Ended: 100, First: 3, FirstMost: 3, Aborted: 7}, 7, 10)
	f(Count{Ended: 4, First: 3, FirstMost: 3, Aborted: 7}, 4, 4)
	f(Count{}, 0, 0)
}

// each adds the same requests every minute.
func each(l *Ledger, from time.Time, d time.Duration, c Count) {
	for at := from; at.Before(from.Add(d)); at = at.Add(time.Minute) {
		l.Add(at, c)
	}
}

func TestBurnRates(t *testing.T) {
	var l Ledger
	// 99 % over 28 days; 1 % of the requests miss for 5 days: the budget burns at 1.
	each(&l, t0, 5*24*time.Hour, Count{Ended: 100, First: 1, FirstMost: 1})
	end := t0.Add(5 * 24 * time.Hour)
	r := l.Report(end, 0.99, 28*24*time.Hour)
	for i, b := range r.Burns {
		if math.Abs(b.Rate-1) > 1e-9 {
			t.Errorf("in %s it burns at %v, want 1", Windows[i].Name, b.Rate)
		}
	}
	if r.Ended != 720000 || math.Abs(r.Attained-0.99) > 1e-9 || math.Abs(r.BudgetLeft) > 1e-9 {
		t.Errorf("%+v", r)
	}
	// Then a fifth of them misses for an hour: fast, and soon slow.
	each(&l, end, time.Hour, Count{Ended: 100, First: 20, FirstMost: 20})
	r = l.Report(end.Add(time.Hour), 0.99, 28*24*time.Hour)
	if !Fast.Fires(&r) || Slow.Fires(&r) {
		t.Errorf("after an hour at 20: %+v", r.Burns)
	}
	// Ten minutes without misses end the fast alert, though the hour's rate is high.
	each(&l, end.Add(time.Hour), 10*time.Minute, Count{Ended: 100})
	if r = l.Report(end.Add(70*time.Minute), 0.99, 28*24*time.Hour); Fast.Fires(&r) || r.Burns[Fast.Long].Rate < 14.4 {
		t.Errorf("after ten calm minutes: %+v", r.Burns)
	}
	// Nothing ended for an hour: the rates of its windows are unknown, and nothing fires.
	r = l.Report(end.Add(3*time.Hour), 0.99, 28*24*time.Hour)
	if r.Burns[0].Requests != 0 || r.Burns[2].Requests != 0 || Fast.Fires(&r) {
		t.Errorf("without requests: %+v", r.Burns)
	}
}

// Of any window within the time that is kept, the requests are those that were added, up to
// what the oldest bucket has in part.
func TestWindows(t *testing.T) {
	var l Ledger
	random := rand.New(rand.NewPCG(1, 2))
	const days = 40
	n := make([]float64, days*24*60) // by minute
	for i := range n {
		n[i] = float64(random.IntN(50))
		l.Add(t0.Add(time.Duration(i)*time.Minute), Count{Ended: n[i]})
	}
	end := t0.Add(days * 24 * time.Hour)
	for _, window := range []time.Duration{5 * time.Minute, 30 * time.Minute, time.Hour, 6 * time.Hour, 24 * time.Hour, 72 * time.Hour, 7 * 24 * time.Hour, 28 * 24 * time.Hour} {
		want := 0.0
		for _, x := range n[len(n)-int(window/time.Minute):] {
			want += x
		}
		if got := l.Sum(end, window).Ended; math.Abs(got/want-1) > 0.25 || window > time.Hour && math.Abs(got/want-1) > 0.03 {
			t.Errorf("%v: %v requests, want %v", window, got, want)
		}
	}
}

// The other replica of a controller, and the one after a restart, continue with the record,
// and count no request twice.
func TestMerge(t *testing.T) {
	var truth, a Ledger
	c := Count{Ended: 60, Aborted: 1, First: 2, FirstMost: 3, Token: 1, TokenMost: 1}
	each(&truth, t0, 100*time.Hour, c)
	each(&a, t0, 50*time.Hour, c)
	// b starts with a's record, and both count for 30 hours. Then a ends; b reads what a has
	// written meanwhile, again and again.
	b, err := Decode(a.Encode(), t0.Add(50*time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	each(&a, t0.Add(50*time.Hour), 30*time.Hour, c)
	each(b, t0.Add(50*time.Hour), 30*time.Hour, c)
	for range 3 {
		stored, err := Decode(a.Encode(), t0.Add(80*time.Hour))
		if err != nil {
			t.Fatal(err)
		}
		b.Merge(stored)
	}
	each(b, t0.Add(80*time.Hour), 20*time.Hour, c)
	end := t0.Add(100 * time.Hour)
	for _, window := range []time.Duration{time.Hour, 72 * time.Hour, 28 * 24 * time.Hour} {
		got, want := b.Sum(end, window), truth.Sum(end, window)
		if math.Abs(got.Ended-want.Ended) > 1e-4*want.Ended || math.Abs(got.FirstMost-want.FirstMost) > 1e-4*want.Ended {
			t.Errorf("%v: %+v, want %+v", window, got, want)
		}
	}
	// A replica that starts late has what the other one has counted before.
	var late Ledger
	late.Add(end, c)
	late.Merge(&truth)
	if got, want := late.Sum(end, 72*time.Hour).Ended, truth.Sum(end, 72*time.Hour).Ended; got < want || got > want+c.Ended {
		t.Errorf("a late replica has %v requests, want %v", got, want)
	}
	if !late.Since().Equal(t0) {
		t.Errorf("since %v, want %v", late.Since(), t0)
	}
}

// A clock that was far in the future for a moment does not end the record.
func TestClockIsSetBack(t *testing.T) {
	var l Ledger
	l.Add(t0.Add(20*365*24*time.Hour), Count{Ended: 1})
	l.Add(t0, Count{Ended: 5})
	if got := l.Sum(t0.Add(time.Second), time.Hour).Ended; got != 5 {
		t.Errorf("%v requests, want 5", got)
	}
}

func TestShortNumbers(t *testing.T) {
	for _, x := range []float64{0, 1, 2047, 2048, 2049, 4095, 4096, 123456, 1e6 - 1, 1<<22 - 1, 1e9, 4e12} {
		if got := long(short(x)); math.Abs(got-x) > 0.0005*x || x < 2048 && got != x || short(got) != short(x) {
			t.Errorf("%v is stored as %v", x, got)
		}
	}
	if short(-1) != 0 || long(short(math.Inf(1))) < 4e12 {
		t.Error("numbers out of range are not bounded")
	}
}

func TestRecordIsSmall(t *testing.T) {
	var l Ledger
	random := rand.New(rand.NewPCG(1, 2))
	for at := t0; at.Before(t0.Add(30 * 24 * time.Hour)); at = at.Add(time.Minute) {
		n := float64(random.IntN(60000))
		first, token := n*random.Float64()*0.02, n*random.Float64()*0.02
		l.Add(at, Count{Ended: n, Aborted: n * 0.001, First: first, FirstMost: 2 * first, Token: token, TokenMost: token})
	}
	b := l.Encode()
	if b == nil || len(b) > 1400 {
		t.Errorf("a busy record takes %d bytes", len(b))
	}
	t.Logf("a busy record takes %d bytes", len(b))
	for i := range l.tiers {
		for k := range l.tiers[i].ring {
			x := func() float64 { return math.Exp(30 * random.Float64()) }
			l.tiers[i].ring[k] = Count{x(), x(), x(), x(), x(), x()}
		}
	}
	if l.Encode() == nil {
		t.Error("a record of any numbers is not stored")
	}
	if (&Ledger{}).Encode() != nil {
		t.Error("a record of nothing")
	}
}

// Whatever is in a status, a decoded record is bounded, and is stored as it is.
func FuzzDecode(f *testing.F) {
	var l Ledger
	each(&l, t0, 3*time.Hour, Count{Ended: 60, Aborted: 1, First: 2, FirstMost: 3, Token: 1, TokenMost: 1})
	stored := l.Encode()
	f.Add(stored)
	f.Add([]byte(nil))
	f.Add(bytes.Repeat([]byte{0xff}, 100))
	for i := range stored {
		b := bytes.Clone(stored)
		b[i] ^= 0x55
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		now := t0.Add(3 * time.Hour)
		l, err := Decode(b, now)
		if err != nil {
			return
		}
		l.Add(now, Count{Ended: 1})
		r := l.Report(now, 0.99, 28*24*time.Hour)
		for _, x := range []float64{r.Ended, r.Missed, r.MissedMost, r.Attained, r.BudgetLeft, r.Burns[4].Rate} {
			if math.IsNaN(x) || math.IsInf(x, 0) {
				t.Fatalf("%+v", r)
			}
		}
		if r.Missed > r.MissedMost || r.MissedMost > r.Ended || r.Attained < 0 || r.AttainedMost > 1 {
			t.Fatalf("%+v", r)
		}
		if e := l.Encode(); e != nil {
			again, err := Decode(e, now)
			if err != nil || !bytes.Equal(again.Encode(), e) {
				t.Fatalf("stored and read: %v", err)
			}
		}
	})
}

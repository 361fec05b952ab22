// SPDX-License-Identifier: Apache-2.0

package page

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
)

func show(l *line) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s", l.name)
	for _, x := range l.labels {
		fmt.Fprintf(&b, " %s=%q", x.name, x.value)
	}
	fmt.Fprintf(&b, " %v", l.value)
	if l.stamp != 0 {
		fmt.Fprintf(&b, " @%d", l.stamp)
	}
	return b.String()
}

func TestLines(t *testing.T) {
	f := func(in, want string) {
		t.Helper()
		var l line
		if err := l.parse([]byte(in)); err != nil {
			t.Errorf("%s: %v", in, err)
		} else if got := show(&l); got != want {
			t.Errorf("%s\n got %s\nwant %s", in, got, want)
		}
	}
	f(`up 1`, `up 1`)
	f(`a:b_c9 -1.5e3`, `a:b_c9 -1500`)
	f("\tup \t 1 ", `up 1`)
	f(`up{} 1`, `up 1`)
	f(`up{a="b"} 1`, `up a="b" 1`)
	f(`up { a = "b" , c="d", } 1`, `up a="b" c="d" 1`)
	f(`up{a="}{,\"\\\n\t"} 0.25`, `up a="}{,\"\\\n\\t" 0.25`)
	f(`up{a=""} +Inf`, `up a="" +Inf`)
	f(`up NaN`, `up NaN`)
	f(`up 1 1700000000123`, `up 1 @1700000000123`)
	f(`up 1 1700000000.123`, `up 1 @1700000000123`)
	f(`up{a="b"} 1 # {trace="x}"} 0.5`, `up a="b" 1`)
	f(`up 1 1700000000.5 # {t="x"} 0.5 1700000000`, `up 1 @1700000000500`)
	f(`{"a name", b="c"} 1`, `a name b="c" 1`)
	f(`DCGM_FI_DEV_POWER_USAGE{gpu="0"} 378.461000`, `DCGM_FI_DEV_POWER_USAGE gpu="0" 378.461`)
}

func TestBadLines(t *testing.T) {
	f := func(in string, want error) {
		t.Helper()
		var l line
		if err := l.parse([]byte(in)); err != want {
			t.Errorf("%s: error %v, want %v", in, err, want)
		}
	}
	f(`9up 1`, errName)
	f(`<html>`, errName)
	f(`{a="b"} 1`, errName)
	f(`up`, errValue)
	f(`up `, errValue)
	f(`up{a="b"}`, errValue)
	f(`up{a="b"}1`, errValue)
	f(`up one`, errValue)
	f(`up 1 soon`, errStamp)
	f(`up 1 1e40`, errStamp)
	f(`up 1 2 3`, errStamp)
	f(`up{a="b" 1`, errLabels)
	f(`up{a="b`, errLabels)
	f(`up{a=b} 1`, errLabels)
	f(`up{a} 1`, errLabels)
	f(`up{a="b"c="d"} 1`, errLabels)
	f(`up{`, errLabels)
	f(`{"a":1}`, errLabels)
	f(`x{modelName="NVIDIA "Q" A\100"} 1`, errLabels) // dcgm-exporter before 4.8.3
}

func TestFloatsAreAsStrconvReadsThem(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 200_000 {
		s := strconv.FormatFloat(math.Float64frombits(r.Uint64()), 'g', -1, 64)
		if r.IntN(2) == 0 {
			s = strconv.FormatFloat(r.Float64()*math.Pow10(r.IntN(12)), 'f', r.IntN(7), 64)
		}
		want, err := strconv.ParseFloat(s, 64)
		got, ok := parseFloat([]byte(s))
		if ok != (err == nil) || math.Float64bits(got) != math.Float64bits(want) && !math.IsNaN(want) {
			t.Fatalf("%s: got %v, %v; want %v, %v", s, got, ok, want, err)
		}
		tail, _, err := parseTail([]byte(" " + s))
		if ok != (err == nil) || math.Float64bits(tail) != math.Float64bits(got) {
			t.Fatalf("a line's tail %q: %v, %v; want %v, %v", s, tail, err, got, ok)
		}
	}
	for _, s := range []string{"", ".", "-", "1..2", "1.2.3", "0x", "1e", "1_0"} {
		if v, ok := parseFloat([]byte(s)); ok {
			t.Errorf("%q is %v", s, v)
		}
		if v, _, err := parseTail([]byte(" " + s)); err == nil {
			t.Errorf("a line's tail %q is %v", s, v)
		}
	}
	for _, digits := range []string{"999999999999999", "1000000000000001", "12345678901234567", "1.23456789012345", "1.234567890123456", "5.", ".5", "00000000000000001"} {
		want, _ := strconv.ParseFloat(digits, 64)
		if got, _, err := parseTail([]byte(" " + digits)); got != want || err != nil {
			t.Errorf("a line's tail %q is %v, %v", digits, got, err)
		}
	}
}

// randomLine is a well-formed line and what it says.
func randomLine(r *rand.Rand) (text, want string) {
	const alphabet = `ab{}",=\ #` + "\n\tüλ"
	var b, w strings.Builder
	name := fmt.Sprintf("m_%d:x", r.IntN(100))
	b.WriteString(name)
	w.WriteString(name)
	if n := r.IntN(4); n > 0 {
		b.WriteByte('{')
		for i := range n {
			var v strings.Builder
			for range r.IntN(12) {
				v.WriteRune([]rune(alphabet)[r.IntN(len([]rune(alphabet)))])
			}
			esc := strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`).Replace(v.String())
			fmt.Fprintf(&b, `l%d="%s"`, i, esc)
			fmt.Fprintf(&w, ` l%d=%q`, i, v.String())
			if i < n-1 || r.IntN(5) == 0 {
				b.WriteByte(',')
			}
		}
		b.WriteByte('}')
	}
	v := math.Float64frombits(r.Uint64())
	if r.IntN(2) == 0 {
		v = float64(r.IntN(1e6)) / 1000
	}
	fmt.Fprintf(&b, " %s", strconv.FormatFloat(v, 'g', -1, 64))
	fmt.Fprintf(&w, " %v", v)
	if r.IntN(3) == 0 {
		ms := 1_600_000_000_000 + r.Int64N(1e12)
		fmt.Fprintf(&b, " %d", ms)
		fmt.Fprintf(&w, " @%d", ms)
	}
	return b.String(), w.String()
}

// recorder is an identifier that takes every line and says what it read.
type recorder struct {
	series []string
}

func (r *recorder) identify(l *line, _ *labelMemo) entry {
	l.get("") // takes labels apart that the memo knows
	l2 := *l
	l2.value, l2.stamp = 0, 0
	text := strings.TrimSuffix(show(&l2), " 0")
	r.series = append(r.series, text)
	return entry{use: part, slot: int32(len(r.series) - 1), scale: 1}
}

func (r *recorder) success(int32, float64) {}

func (r *recorder) observe(int32, evidence, float64, bool) {}
func (r *recorder) size() int64                            { return 0 }

func (r *recorder) said(p *Reader) string {
	var b strings.Builder
	for _, x := range p.points {
		fmt.Fprintf(&b, "%s %v", r.series[x.slot], x.value)
		if x.stamp != 0 {
			fmt.Fprintf(&b, " @%d", x.stamp)
		}
		b.WriteByte('\n')
	}
	return b.String()
}

// FuzzWellFormed: a page made of random labels and values parses back exactly,
// the first time and from memory, whatever lines come and go in between.
func FuzzWellFormed(f *testing.F) {
	for i := range uint64(100) {
		f.Add(i, i)
	}
	f.Fuzz(func(t *testing.T, a, b uint64) {
		r := rand.New(rand.NewPCG(a, b))
		var lines, wants []string
		for range 1 + r.IntN(30) {
			text, want := randomLine(r)
			lines, wants = append(lines, text), append(wants, want)
		}
		rec := &recorder{}
		p := newReader(rec)
		for range 6 {
			var text, want strings.Builder
			for i := range lines {
				if r.IntN(8) == 0 {
					continue
				}
				j := i
				if r.IntN(20) == 0 {
					j = r.IntN(len(lines))
				}
				if r.IntN(10) == 0 {
					text.WriteString("# HELP x y {} \"\n\n")
				}
				text.WriteString(lines[j] + "\n")
				want.WriteString(wants[j] + "\n")
			}
			if err := p.Read([]byte(text.String())); err != nil || p.Bad != 0 {
				t.Fatalf("%v, %d bad lines in\n%s", err, p.Bad, text.String())
			}
			if got := rec.said(p); got != want.String() {
				t.Fatalf("page\n%s\n got %s\nwant %s", text.String(), got, want.String())
			}
		}
	})
}

// FuzzAnything: no page panics, and a page read from memory says what it said
// the first time.
func FuzzAnything(f *testing.F) {
	f.Add([]byte("a 1\nb{c=\"d\"} 2 3 # {x=\"y\"} 1\n# EOF\nz"))
	f.Add([]byte("a{b=\"}\"} 1\na{b=\"\\\"}\n{\"q\"} 1\r\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		rec := &recorder{}
		p := newReader(rec)
		err := p.Read(b)
		first, lines, bad := rec.said(p), p.Lines, p.Bad
		err2 := p.Read(b)
		if again := rec.said(p); again != first || p.Lines != lines || p.Bad != bad || (err == nil) != (err2 == nil) {
			t.Fatalf("first\n%s%d, %d, %v\nagain\n%s%d, %d, %v", first, lines, bad, err, again, p.Lines, p.Bad, err2)
		}
		fresh := newReader(&recorder{})
		if fresh.Read(b); fresh.Lines != lines {
			t.Fatalf("%d lines, then %d", lines, fresh.Lines)
		}
	})
}

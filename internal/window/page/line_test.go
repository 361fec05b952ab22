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
	l.Get("") // takes labels apart that the memo knows
	l2 := *l
	l2.Value, l2.Stamp = 0, 0
	text := strings.TrimSuffix(l2.String(), " 0")
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

// SPDX-License-Identifier: Apache-2.0

package exposition

import (
	"math"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

// appendInteger writes v as %d writes integers, rounded to the nearest one.
func appendInteger(b []byte, v float64) []byte {
	v = math.Round(v)
	if math.Abs(v) < 1<<63 {
		return strconv.AppendInt(b, int64(v), 10)
	}
	return strconv.AppendFloat(b, v, 'f', 0, 64)
}

// appendFixed writes v as %f does: six decimals, correctly rounded.
func appendFixed(b []byte, v float64) []byte {
	a := math.Abs(v)
	micros := a * 1e6
	whole := math.Floor(micros)
	// Below 1e12 the error of the product is less than 1e-3. Only a value about
	// half way between two decimals needs the exact conversion.
	if micros >= 1e12 || math.Abs(micros-whole-0.5) < 0.01 {
		return strconv.AppendFloat(b, v, 'f', 6, 64)
	}
	n := uint64(micros + 0.5)
	if math.Signbit(v) {
		b = append(b, '-')
	}
	b = strconv.AppendUint(b, n/1_000_000, 10)
	frac := n % 1_000_000
	var d [7]byte
	d[0] = '.'
	for i := 6; i > 0; i-- {
		d[i] = '0' + byte(frac%10)
		frac /= 10
	}
	return append(b, d[:]...)
}

// exactFloat is the largest number up to which float64 has every whole number.
const exactFloat = 1 << 53

// appendQuotient writes n/per rounded to the nearest, as %d or, with six
// decimals, as %f does. A float64 does not hold an n above exactFloat.
func appendQuotient(b []byte, n, per uint64, f gpu.Format) []byte {
	if f == gpu.Integer {
		return strconv.AppendUint(b, n/per+(n%per+per/2)/per, 10)
	}
	// per is at most 1e9, so that a million times the rest fits.
	whole, micros := n/per, (n%per*1_000_000+per/2)/per
	if micros == 1_000_000 {
		whole, micros = whole+1, 0
	}
	b = append(strconv.AppendUint(b, whole, 10), '.')
	for unit := uint64(100_000); unit > 0; unit /= 10 {
		b = append(b, '0'+byte(micros/unit%10))
	}
	return b
}

// appendPer writes v/per with six decimals.
func appendPer(b []byte, v gpu.Number, per uint64) []byte {
	if v.Whole && v.Int > exactFloat {
		return appendQuotient(b, uint64(v.Int), per, gpu.Float)
	}
	return appendFixed(b, v.Float/float64(per))
}

// appendTime writes t as seconds since 1970 with milliseconds.
func appendTime(b []byte, t time.Time) []byte {
	return appendMillis(b, t.UnixMilli())
}

// appendSeconds writes d as seconds with microseconds.
func appendSeconds(b []byte, d time.Duration) []byte {
	return appendFixed(b, d.Seconds())
}

func appendMillis(b []byte, ms int64) []byte {
	b = strconv.AppendInt(b, ms/1000, 10)
	rest := ms % 1000
	return append(b, '.', '0'+byte(rest/100), '0'+byte(rest/10%10), '0'+byte(rest%10))
}

func appendBool(b []byte, v bool) []byte {
	if v {
		return append(b, '1')
	}
	return append(b, '0')
}

// appendLabel writes name="value" with the value escaped. Bytes that are not
// UTF-8 become U+FFFD: a scrape must not fail for one bad name.
func appendLabel(b []byte, name, value string) []byte {
	b = append(b, name...)
	b = append(b, '=', '"')
	b = appendEscaped(b, value, true)
	return append(b, '"')
}

// appendDashed is appendLabel with one dash for each run of spaces, and no
// spaces at the ends.
func appendDashed(b []byte, name, value string) []byte {
	b = append(append(b, name...), '=', '"')
	first := true
	for word := range strings.FieldsSeq(value) {
		if !first {
			b = append(b, '-')
		}
		first = false
		b = appendEscaped(b, word, true)
	}
	return append(b, '"')
}

// appendEscaped escapes backslash, line feed and, if quotes is set, quotes, as
// both exposition formats require.
func appendEscaped(b []byte, s string, quotes bool) []byte {
	for i := 0; i < len(s); {
		c := s[i]
		switch {
		case c == '\\':
			b = append(b, '\\', '\\')
		case c == '\n':
			b = append(b, '\\', 'n')
		case c == '"' && quotes:
			b = append(b, '\\', '"')
		case c < utf8.RuneSelf:
			b = append(b, c)
		default:
			r, n := utf8.DecodeRuneInString(s[i:])
			b = utf8.AppendRune(b, r)
			i += n
			continue
		}
		i++
	}
	return b
}

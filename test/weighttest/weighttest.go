// SPDX-License-Identifier: Apache-2.0

//go:build linux

// Package weighttest measures what programs of tenants cost, for tests: in bytes, and in processor time as a multiple
// of that of a simple program in the same run.
package weighttest

import (
	"math"
	"math/rand/v2"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"
)

// The most that weighing, compiling and running one program once may cost. They are far above what honest programs
// need, and far below what stops others.
const (
	mostBytes = 48 << 20
	mostUnits = 300 // of about a millisecond each
)

// Check fails if f costs too much. name says what it does.
func Check(t testing.TB, name string, f func()) {
	t.Helper()
	bytes, units := int64(math.MaxInt64), math.Inf(1)
	for range 3 { // the machine may be busy
		b, u := cost(f)
		if bytes, units = min(bytes, b), min(units, u/unit()); bytes <= mostBytes && units <= slower*mostUnits {
			return
		}
	}
	if len(name) > 300 {
		name = name[:200] + "…" + name[len(name)-80:]
	}
	t.Errorf("%s: %.1f MiB and %.0f units of time", name, float64(bytes)/(1<<20), units)
}

// unit returns the processor time of a simple program: a hash of a MiB.
func unit() float64 {
	least := math.Inf(1)
	for range 3 {
		_, used := cost(func() {
			h := uint64(1)
			for i := range uint64(1 << 20) {
				h = (h ^ i&0xff) * 1099511628211
			}
			runtime.KeepAlive(h)
		})
		least = min(least, used)
	}
	return max(least, float64(200*time.Microsecond))
}

// cost returns the bytes that a function allocates, and the processor time of its thread in ns.
func cost(f func()) (bytes int64, used float64) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	began := thread()
	f()
	used = thread() - began
	runtime.ReadMemStats(&after)
	return int64(after.TotalAlloc - before.TotalAlloc), used
}

func thread() float64 {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_THREAD, &u); err != nil {
		panic(err)
	}
	return float64(u.Utime.Nano() + u.Stime.Nano())
}

// Regexp makes a dear regular expression of about so many bytes.
func Regexp(r *rand.Rand, size int) string {
	atoms := []string{`a`, `.`, `\pL`, `\PN`, `[^\pL]`, `[\pL\pN\pS]`, `(?i)[\pL\pM]`, `(?i)k`, `[a-z]`, `\w`, `[[:^alpha:]]`, `ab|cd`, ``, `^`, `\b`, `(?s).`, `é`}
	var make func(depth int) string
	make = func(depth int) string {
		if depth == 0 {
			return atoms[r.IntN(len(atoms))]
		}
		x := make(depth - 1)
		switch r.IntN(9) {
		case 0:
			return "(" + x + ")"
		case 1:
			return "(?:" + x + ")" + []string{"*", "+", "?", "*?", "{2,}"}[r.IntN(5)]
		case 2:
			return "(?:" + x + "){" + []string{"1000", "31", "0,1000", "9,99", "2"}[r.IntN(5)] + "}"
		case 3:
			return "(?:" + x + "|" + make(depth-1) + ")"
		case 4:
			return "(" + x + ")*"
		case 5:
			return strings.Repeat(x, 1+r.IntN(20))
		case 6:
			return "(?i:" + x + ")"
		default:
			return x + make(depth-1)
		}
	}
	x := make(r.IntN(6))
	if r.IntN(4) == 0 { // one class
		return "(?i)[" + strings.Repeat(`\pL`, size/3) + "]"
	}
	return strings.Repeat(x, max(1, size/max(1, len(x))))
}

// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// referenceMachine is the name of the reference of CPU figures.
const referenceMachine = "the bar"

// referenceLoop is the CPU time of calibrationLoop on the machine on which the bars of
// CPU figures were set. That machine is gone. Its bare handler sent the page of 8 GPUs in
// 0.074 ms; where the loop took 8.4 ms, in the same run, the handler took 0.088 ms.
const referenceLoop = 7 * time.Millisecond

const (
	calibrationRuns = 15
	loopNumbers     = 1 << 17 // numbers that one loop writes and reads as text
	loopWords       = 1 << 18 // words of 8 bytes that it visits in an unpredictable order
	loopVisits      = 1 << 21
)

// calibrationLoop does a fixed amount of work of the kinds that our programs do:
// numbers become text and are parsed again, text is hashed, and memory that does not
// fit the first-level cache is visited in an unpredictable order. It returns a sum of
// the results, so that no part of it can be left out.
func calibrationLoop(words []uint64, text []byte) uint64 {
	state, sum := uint64(1), uint64(0)
	next := func() uint64 { // xorshift64
		state ^= state << 13
		state ^= state >> 7
		state ^= state << 17
		return state
	}
	text = text[:0]
	for range loopNumbers {
		text = strconv.AppendUint(text, next()%1_000_000, 10)
		text = append(text, '\n')
	}
	number, hash := uint64(0), uint64(14695981039346656037) // FNV-1a
	for _, c := range text {
		if hash = (hash ^ uint64(c)) * 1099511628211; c == '\n' {
			sum, number = sum+number, 0
			continue
		}
		number = number*10 + uint64(c-'0')
	}
	for range loopVisits {
		w := &words[next()%loopWords]
		*w += hash
		sum += *w
	}
	return sum
}

// calibrate returns the median CPU time of calibrationLoop on one thread.
func calibrate() (time.Duration, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	words, text := make([]uint64, loopWords), make([]byte, 0, 8*loopNumbers)
	times := make([]time.Duration, calibrationRuns)
	sum := uint64(0)
	for i := range times {
		before, err := threadCPU()
		if err != nil {
			return 0, err
		}
		clear(words)
		sum += calibrationLoop(words, text)
		after, err := threadCPU()
		if err != nil {
			return 0, err
		}
		times[i] = after - before
	}
	if sum == 0 {
		return 0, errors.New("the calibration loop has a wrong result")
	}
	slices.Sort(times)
	return times[len(times)/2], nil
}

// threadCPU is the CPU time of the calling thread, user and system.
func threadCPU() (time.Duration, error) {
	const clockThreadCPU = 3 // CLOCK_THREAD_CPUTIME_ID of clock_gettime(2)
	var t unix.Timespec
	err := unix.ClockGettime(clockThreadCPU, &t)
	return time.Duration(t.Nano()), err
}

// calibrated is a row of CPU time, whose bar is that of the reference machine. measure
// corrects it for this machine.
func calibrated(name string, value float64, unit string, bar float64) Row {
	return Row{Name: name, Value: value, Unit: unit, Reference: bar, Of: referenceMachine, Bar: "≤ 1"}
}

// measure runs a part between two calibrations, by whose mean the bars of its CPU
// figures are corrected.
func (p part) measure(ctx context.Context, cfg config, out io.Writer) ([]Row, error) {
	before, err := calibrate()
	if err != nil {
		return nil, err
	}
	rows, err := p.run(ctx, cfg, out)
	if err != nil {
		return nil, err
	}
	after, err := calibrate()
	if err != nil {
		return nil, err
	}
	factor := float64(before+after) / 2 / float64(referenceLoop)
	fmt.Fprintf(out, "%s: the calibration loop took %.1f ms before and %.1f ms after, %.2f times the reference machine's\n", p.name, ms(before), ms(after), factor)
	for i := range rows {
		if r := &rows[i]; r.Of == referenceMachine {
			r.Reference *= factor
			r.Ratio = r.Value / r.Reference
			r.OK = r.Ratio <= 1
		}
	}
	return rows, nil
}

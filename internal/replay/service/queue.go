// SPDX-License-Identifier: Apache-2.0

package service

import (
	"slices"

	"github.com/gpupilot/gpupilot/internal/replay/trace"
)

// queue is a first-in-first-out queue of requests that reuses its memory.
type queue struct {
	q     []trace.Request
	start int
}

func (f *queue) len() int             { return len(f.q) - f.start }
func (f *queue) head() *trace.Request { return &f.q[f.start] }

func (f *queue) push(r trace.Request) {
	if f.start > 64 && f.start*2 > len(f.q) {
		f.q = f.q[:copy(f.q, f.q[f.start:])]
		f.start = 0
	}
	f.q = append(f.q, r)
}

func (f *queue) pop() trace.Request {
	r := f.q[f.start]
	f.start++
	if f.start == len(f.q) {
		f.q, f.start = f.q[:0], 0
	}
	return r
}

func (f *queue) clone() queue { return queue{q: slices.Clone(f.q[f.start:])} }

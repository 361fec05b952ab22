// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"time"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

// worker is what the loop knows of one device. A read of a device that answers
// quickly is one of a sweep; others are made by a goroutine of their own.
type worker struct {
	uuid   string
	reader gpu.Reader
	linker gpu.LinkReader   // nil: there are no NVLinks
	judge  gpu.HealthReader // nil: the library does not judge the GPU's health

	snap   gpu.DeviceSnapshot // what is known; XIDs and owners are added when published
	ask    chan question      // each asks the own goroutine for one read
	cancel context.CancelFunc

	linked time.Time // when NVLinks were last asked for
	asked  time.Time // when the read that has not returned was asked for; zero: none
	took   time.Duration
	known  bool      // took is of a read
	gone   time.Time // since when it is not enumerated any more; zero: it is
	ended  bool      // it is listed no more
	silent bool      // it was logged that it does not answer
}

// question asks for one read.
type question struct {
	at     time.Time // of the tick
	want   gpu.FieldSet
	links  bool // the GPU's NVLinks, too
	health bool // the library's verdicts, too
}

// linksEvery is the time between two reads of a GPU's NVLinks, which are many
// calls for what seldom changes.
const linksEvery = 10 * time.Second

// reading is the result of one read.
type reading struct {
	worker *worker
	values *gpu.Values // nobody writes to it any more
	asked  time.Time
	links  *gpu.Links // nil: they were not asked for
	health *gpu.Verdicts
	took   time.Duration
	err    error
}

func startWorker(ctx context.Context, d gpu.Device, r gpu.Reader, out chan<- reading) *worker {
	ctx, cancel := context.WithCancel(ctx)
	w := &worker{uuid: d.UUID, reader: r, snap: gpu.DeviceSnapshot{Device: d}, ask: make(chan question, 1), cancel: cancel}
	if d.MIG == nil {
		w.linker, _ = r.(gpu.LinkReader)
		w.judge, _ = r.(gpu.HealthReader)
	}
	go func() {
		for {
			select {
			case <-ctx.Done():
				return
			case q := <-w.ask:
				res := w.perform(q)
				select {
				case out <- res:
				case <-ctx.Done():
					return
				}
			}
		}
	}()
	return w
}

// perform makes one read. It uses nothing of the worker that the loop changes.
func (w *worker) perform(q question) reading {
	res := reading{worker: w, asked: q.at, values: &gpu.Values{}}
	start := time.Now()
	res.err = w.reader.Read(w.uuid, q.want, res.values)
	res.took = time.Since(start)
	if q.links && res.err == nil {
		l, _ := w.linker.Links(w.uuid) // what is not known is left out
		res.links = &l
	}
	if q.health && res.err == nil {
		res.health, _ = w.judge.Health(w.uuid) // without verdicts, it is judged by its values
	}
	return res
}

// question is what to ask at a tick, unless a read is under way.
func (w *worker) question(now time.Time, want gpu.FieldSet, health bool) (q question, ok bool) {
	if !w.asked.IsZero() {
		return question{}, false
	}
	w.asked = now
	q = question{at: now, want: want, links: w.linker != nil && now.Sub(w.linked) >= linksEvery, health: w.judge != nil && health}
	if q.links {
		w.linked = now
	}
	return q, true
}

// end stops the own goroutine.
func (w *worker) end() {
	w.ended = true
	w.cancel()
}

// accept takes a read's result in. A failed read leaves the last good values,
// which age.
func (w *worker) accept(r reading) {
	w.asked, w.took, w.known, w.silent = time.Time{}, r.took, true, false
	w.snap.Err = r.err
	if r.err != nil {
		w.snap.Failures++
		return
	}
	w.snap.Values, w.snap.Collected, w.snap.Took = *r.values, r.asked, r.took
	w.snap.Verdicts = r.health
	if r.links != nil {
		w.snap.Links = *r.links
	}
}

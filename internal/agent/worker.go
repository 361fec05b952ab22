// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"time"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

// worker owns the blocking reads of one device. Its goroutine only reads;
// everything else here belongs to the loop.
type worker struct {
	snap   gpu.DeviceSnapshot // what is known; XIDs and owners are added when published
	ask    chan question      // each asks for one read
	cancel context.CancelFunc

	links  bool      // there may be NVLinks
	linked time.Time // when they were last asked for
	asked  time.Time // when the read that has not returned was asked for; zero: none
	took   time.Duration
	gone   time.Time // since when it is not enumerated any more; zero: it is
	silent bool      // it was logged that it does not answer

	judge       gpu.HealthReader // of a whole GPU whose library judges it; its goroutine uses it, too
	wantsHealth func() bool      // nil: verdicts are not wanted
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
	w := &worker{snap: gpu.DeviceSnapshot{Device: d}, ask: make(chan question, 1), cancel: cancel}
	uuid := d.UUID
	links, ok := r.(gpu.LinkReader)
	w.links = ok && d.MIG == nil
	if judge, ok := r.(gpu.HealthReader); ok && d.MIG == nil {
		w.judge = judge
	}
	go func() {
		for {
			select {
			case <-ctx.Done():
				return
			case q := <-w.ask:
				res := reading{worker: w, asked: q.at, values: &gpu.Values{}}
				start := time.Now()
				res.err = r.Read(uuid, q.want, res.values)
				res.took = time.Since(start)
				if q.links && res.err == nil {
					l, _ := links.Links(uuid) // what is not known is left out
					res.links = &l
				}
				if q.health && res.err == nil {
					res.health, _ = w.judge.Health(uuid) // without verdicts, it is judged by its values
				}
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

// start asks for a read unless one is under way, and says whether it did.
func (w *worker) start(now time.Time, want gpu.FieldSet) bool {
	if !w.asked.IsZero() {
		return false
	}
	w.asked = now
	q := question{at: now, want: want, links: w.links && now.Sub(w.linked) >= linksEvery, health: w.judge != nil && w.wantsHealth != nil && w.wantsHealth()}
	if q.links {
		w.linked = now
	}
	w.ask <- q // has room: the last one was taken before its result came
	return true
}

// accept takes a read's result in. A failed read leaves the last good values,
// which age.
func (w *worker) accept(r reading) {
	w.asked, w.took, w.silent = time.Time{}, r.took, false
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

// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"time"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

// worker is the loop's state of one device. Fast devices are read in sweeps;
// the worker's own goroutine reads a slow one.
type worker struct {
	uuid   string
	reader gpu.Reader
	linker gpu.LinkReader   // nil: NVLinks are not read
	judge  gpu.HealthReader // nil: the library gives no verdicts on health

	snap   gpu.DeviceSnapshot // the published state, without XIDs and owners
	ask    chan question      // each makes the worker's goroutine read once
	cancel context.CancelFunc

	linked time.Time // when NVLinks were last read
	judged time.Time // when the library was last asked for its verdicts
	asked  time.Time // when the pending read was requested; zero: no pending read
	took   time.Duration
	known  bool      // took is set
	gone   time.Time // since when the device is no longer enumerated; zero: it is enumerated
	ended  bool      // it is no longer listed
	silent bool      // that the device does not answer has been logged
}

// question describes one read.
type question struct {
	at     time.Time // of the tick
	want   gpu.FieldSet
	links  bool // read the GPU's NVLinks too
	health bool // read the library's verdicts too
}

// linksEvery is the time between two reads of a GPU's NVLinks: they take many
// calls, and change seldom.
const linksEvery = 10 * time.Second

// judgeEvery is the time between two questions for the library's verdicts while no page shows
// them. The health of a GPU in the API needs them too.
const judgeEvery = 10 * time.Second

// reading is the result of one read.
type reading struct {
	worker *worker
	values *gpu.Values // not written to any more
	asked  time.Time
	links  *gpu.Links    // nil: not read
	health *gpu.Verdicts // nil: not known
	judged bool          // the library was asked for verdicts
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

// perform makes one read. It does not use the fields of the worker that the
// loop changes.
func (w *worker) perform(q question) reading {
	res := reading{worker: w, asked: q.at, values: &gpu.Values{}}
	start := time.Now()
	res.err = w.reader.Read(w.uuid, q.want, res.values)
	res.took = time.Since(start)
	if q.links && res.err == nil {
		l, _ := w.linker.Links(w.uuid) // unknown links are left out
		res.links = &l
	}
	if res.judged = q.health && (res.err == nil || errors.Is(res.err, gpu.ErrLost)); res.judged {
		res.health, _ = w.judge.Health(w.uuid) // without verdicts, its values decide
	}
	return res
}

// question returns the read to make at a tick. ok is false while a read is
// pending.
func (w *worker) question(now time.Time, want gpu.FieldSet, health bool) (q question, ok bool) {
	if !w.asked.IsZero() {
		return question{}, false
	}
	w.asked = now
	q = question{at: now, want: want, links: w.linker != nil && now.Sub(w.linked) >= linksEvery, health: w.judge != nil && (health || now.Sub(w.judged) >= judgeEvery)}
	if q.health {
		w.judged = now
	}
	if q.links {
		w.linked = now
	}
	return q, true
}

// end stops the worker's goroutine.
func (w *worker) end() {
	w.ended = true
	w.cancel()
}

// accept stores a read's result. After a failed read the last good values and verdicts
// stay, and age.
func (w *worker) accept(r reading) {
	w.asked, w.took, w.known, w.silent = time.Time{}, r.took, true, false
	w.snap.Err = r.err
	if r.err != nil {
		w.snap.Failures++
		if r.health != nil { // a library can judge a GPU that it has lost
			w.snap.Verdicts = r.health
		}
		return
	}
	w.snap.Values, w.snap.Collected, w.snap.Took = *r.values, r.asked, r.took
	if r.judged {
		w.snap.Verdicts = r.health
	}
	if r.links != nil {
		w.snap.Links = *r.links
	}
}

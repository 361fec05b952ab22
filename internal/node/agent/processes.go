// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"slices"
	"time"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

// processesEvery is about the shortest time between two reads of a device's
// processes: drivers do not sample their utilisation more often.
const processesEvery = time.Second

// processBudget limits the delay of a tick by processes: a tick waits for a
// device's processes only if their last read took no longer.
const processBudget = 20 * time.Millisecond

// processReads are the reads of devices' processes. They have their own
// goroutines, because reading lists and files must not delay the fields.
type processReads struct {
	read    func(uuid string) (gpu.Processes, error) // nil: processes are not read
	workers map[string]*processWorker                // by UUID
	answers chan processReading
	blind   bool // that no process is visible has been logged
}

// processWorker owns the blocking reads of one device's processes. Its
// goroutine only reads; the loop owns the other fields.
type processWorker struct {
	uuid   string
	ask    chan struct{} // each makes the goroutine read once
	cancel context.CancelFunc

	began time.Time // when the last read was asked for
	busy  bool      // the last read has not returned
	took  time.Duration
	list  gpu.Processes
	at    time.Time // when list was asked for; zero: never read
	err   error     // why the last read failed
}

// processReading is the result of one read.
type processReading struct {
	worker *processWorker
	list   gpu.Processes
	err    error
}

// askProcesses starts the reads of the devices' processes, unless one is
// pending, and returns the workers to wait for.
func (l *loop) askProcesses(ctx context.Context, now time.Time) (asked []*processWorker) {
	r := &l.processes
	if r.read == nil {
		return nil
	}
	for uuid, w := range r.workers {
		if !l.lists(uuid) {
			w.cancel()
			delete(r.workers, uuid)
		}
	}
	for _, d := range l.workers {
		w := r.workers[d.snap.UUID]
		if w == nil {
			w = r.start(ctx, d.snap.UUID)
		}
		if w.busy || now.Sub(w.began) < processesEvery-l.Interval()/2 {
			continue
		}
		w.busy, w.began = true, now
		w.ask <- struct{}{} // does not block: the last question was received before its result
		if w.took <= processBudget {
			asked = append(asked, w)
		}
	}
	return asked
}

// lists reports whether the device is collected.
func (l *loop) lists(uuid string) bool {
	for _, w := range l.workers {
		if w.snap.UUID == uuid {
			return true
		}
	}
	return false
}

func (r *processReads) start(ctx context.Context, uuid string) *processWorker {
	ctx, cancel := context.WithCancel(ctx)
	w := &processWorker{uuid: uuid, ask: make(chan struct{}, 1), cancel: cancel}
	r.workers[uuid] = w
	go func() {
		for {
			select {
			case <-ctx.Done():
				return
			case <-w.ask:
			}
			res := processReading{worker: w}
			res.list, res.err = r.read(uuid)
			select {
			case <-ctx.Done():
				return
			case r.answers <- res:
			}
		}
	}()
	return w
}

// processesAnswered handles a read's result. After a failed read the last good
// list stays, and ages.
func (l *loop) processesAnswered(r processReading) {
	w := r.worker
	was := w.err
	w.busy, w.took, w.err = false, time.Since(w.began), r.err
	if r.err == nil {
		w.list, w.at = r.list, w.began
	}
	switch {
	case was == nil && r.err != nil:
		l.deps.Log.Warn("processes of a device cannot be listed", "uuid", w.uuid, "err", r.err)
	case was != nil && r.err == nil:
		l.deps.Log.Info("processes of a device are listed again", "uuid", w.uuid)
	}
}

// addProcesses adds to the snapshot's devices their processes and the use by
// them.
func (l *loop) addProcesses(s *gpu.Snapshot) {
	podOf := l.podOf(s)
	seen, unseen := 0, 0
	for i := range s.Devices {
		d := &s.Devices[i]
		w := l.processes.workers[d.UUID]
		if w == nil {
			continue
		}
		d.ProcessesErr = w.err
		if w.at.IsZero() || s.Time.Sub(w.at) > gpu.MaxAge(s.Interval) {
			continue
		}
		d.Processes, d.ProcessesRead = w.list, w.at
		d.Processes.List = slices.Clone(w.list.List) // the last snapshot shares it
		gpu.AttributeProcesses(d, podOf)
		unseen += d.Others[gpu.Unseen].Processes
		seen += len(d.Processes.List) - d.Others[gpu.Unseen].Processes
	}
	if blind := seen == 0 && unseen > 0; blind != l.processes.blind {
		l.processes.blind = blind
		if blind {
			l.deps.Log.Warn("no process on the GPUs is visible: set hostPID: true in the pod", "processes", unseen)
		}
	}
}

// podOf finds pods' names by UID: in the API server's pods, else in PodNames.
func (l *loop) podOf(s *gpu.Snapshot) gpu.PodOf {
	var told map[string]gpu.PodName // built at the first call
	return func(uid string) (gpu.PodName, bool) {
		if told == nil {
			told = make(map[string]gpu.PodName, len(s.Pods))
			for name, p := range s.Pods {
				told[p.UID] = name
			}
		}
		name, ok := told[uid]
		if !ok && l.deps.PodNames != nil {
			name, ok = l.deps.PodNames()[uid]
		}
		return name, ok
	}
}

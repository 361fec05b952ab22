// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"slices"
	"time"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

// processesEvery is about the shortest time between two looks at a device's
// processes: drivers sample their utilisation no faster.
const processesEvery = time.Second

// processBudget is how long a list of processes may have taken the last time for
// a tick to wait for it: fields are not published later than that for it.
const processBudget = 20 * time.Millisecond

// processReads are the reads of devices' processes. They have goroutines of
// their own: they go through lists and files, and must hold up no field.
type processReads struct {
	read    func(uuid string) (gpu.Processes, error) // nil: nobody wants them
	workers map[string]*processWorker                // by UUID
	answers chan processReading
	blind   bool // it was logged that none of them is seen
}

// processWorker owns the blocking reads of one device's processes. Its
// goroutine only reads; everything else here belongs to the loop.
type processWorker struct {
	uuid   string
	ask    chan struct{} // each asks for one read
	cancel context.CancelFunc

	began time.Time // when the last read was asked for
	busy  bool      // it has not returned
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

// askProcesses asks for the processes of every device of which none are being
// read, and says who is worth waiting for.
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
		w.ask <- struct{}{} // has room: the last one was taken before its result came
		if w.took <= processBudget {
			asked = append(asked, w)
		}
	}
	return asked
}

// lists says whether the device is one of those that are collected.
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

// processesAnswered takes a read's result in. A failed one leaves the last good
// list, which ages.
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

// addProcesses gives the snapshot's devices their processes and what these use.
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
		d.Processes.List = slices.Clone(w.list.List) // the last snapshot has it, too
		gpu.AttributeProcesses(d, podOf)
		unseen += d.Others[gpu.Unseen].Processes
		seen += len(d.Processes.List) - d.Others[gpu.Unseen].Processes
	}
	if blind := seen == 0 && unseen > 0; blind != l.processes.blind {
		l.processes.blind = blind
		if blind {
			l.deps.Log.Warn("none of the processes on the GPUs is seen: does the pod have hostPID?", "processes", unseen)
		}
	}
}

// podOf finds pods' names by UID: among those that the API server told of, else
// those that the node itself knows.
func (l *loop) podOf(s *gpu.Snapshot) gpu.PodOf {
	var told map[string]gpu.PodName // made when it is needed
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

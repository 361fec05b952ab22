// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"slices"
	"time"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

// topologyEvery is the time between two reads of the topology while the list of
// GPUs stays the same. Reading it takes many calls, and it changes seldom.
const topologyEvery = 10 * time.Minute

// topologyReads are the reads of the topology, one at a time, in their own
// goroutine.
type topologyReads struct {
	answers chan topologyRead
	busy    bool
	next    time.Time // time of the next read, unless the GPUs change
	of      []string  // the GPUs' UUIDs at the last read
	err     error     // of the last read
}

type topologyRead struct {
	topology gpu.Topology
	err      error
}

// askTopology starts a read of the topology if one is due, or if the list of
// GPUs has changed.
func (l *loop) askTopology(now time.Time) {
	r, t := l.deps.Reader.(gpu.TopologyReader)
	if !t || l.topology.busy || len(l.workers) == 0 {
		return
	}
	var of []string
	for _, w := range l.workers {
		of = append(of, w.snap.UUID)
	}
	if now.Before(l.topology.next) && slices.Equal(of, l.topology.of) {
		return
	}
	l.topology.busy, l.topology.next, l.topology.of = true, now.Add(topologyEvery), of
	go func() {
		t, err := r.Topology()
		l.topology.answers <- topologyRead{t, err} // buffered
	}()
}

// topologyAnswered handles a read's result. It stores an incomplete topology
// too.
func (l *loop) topologyAnswered(t topologyRead) {
	l.topology.busy = false
	if t.err != nil && (l.topology.err == nil || l.topology.err.Error() != t.err.Error()) {
		l.deps.Log.Warn("topology of the GPUs is incomplete", "err", t.err)
	}
	l.topology.err = t.err
	if t.err == nil || len(t.topology.GPUs) > 0 {
		l.lastTopology.Store(&t.topology)
	}
}

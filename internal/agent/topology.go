// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"slices"
	"time"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

// topologyEvery is how often the topology is read while the GPUs are the same
// ones: links fail and are mended seldom, and reading them takes many calls.
const topologyEvery = 10 * time.Minute

// topologyReads are the reads of the topology, one at a time, in a goroutine of
// their own.
type topologyReads struct {
	answers chan topologyRead
	busy    bool
	next    time.Time // not before, unless the GPUs change
	of      []string  // the GPUs' UUIDs at the last read
	err     error     // of the last read
}

type topologyRead struct {
	topology gpu.Topology
	err      error
}

// askTopology reads the topology if it is time to, or if there are other GPUs
// than the last time.
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

// topologyAnswered takes a read in. A part is better than nothing.
func (l *loop) topologyAnswered(t topologyRead) {
	l.topology.busy = false
	if t.err != nil && (l.topology.err == nil || l.topology.err.Error() != t.err.Error()) {
		l.deps.Log.Warn("topology of the GPUs is not known whole", "err", t.err)
	}
	l.topology.err = t.err
	if t.err == nil || len(t.topology.GPUs) > 0 {
		l.lastTopology.Store(&t.topology)
	}
}

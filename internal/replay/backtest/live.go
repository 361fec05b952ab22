// SPDX-License-Identifier: Apache-2.0

package backtest

import (
	"github.com/gpupilot/gpupilot/internal/replay/contender"
	"github.com/gpupilot/gpupilot/internal/replay/service"
	"github.com/gpupilot/gpupilot/internal/replay/trace"
	"github.com/gpupilot/gpupilot/internal/scale"
)

// Live is a replay that is advanced second by second and can be looked at meanwhile. Each
// entry has a service of its own.
type Live struct {
	replay  *replay
	entries []*service.Deployment
	pending []trace.Request // drawn, and not simulated yet
	until   float64         // the end of what was drawn
}

// NewLive prepares a replay.
func NewLive(cfg Config, entries []contender.Entry) (*Live, error) {
	r, err := newReplay(cfg)
	if err != nil {
		return nil, err
	}
	l := &Live{replay: r}
	for i := range entries {
		d, err := r.deployments(entries[i : i+1])
		if err != nil {
			return nil, err
		}
		l.entries = append(l.entries, d...)
	}
	return l, nil
}

// Seconds is the duration of the replay.
func (l *Live) Seconds() int { return int(l.replay.service.Seconds) }

// Advance simulates the replay up to a second, which is not before that of the last call.
func (l *Live) Advance(second int) {
	for l.until < float64(second) {
		q, until, ok := l.replay.arrivals.Next()
		if !ok {
			l.until = float64(second)
			break
		}
		l.pending, l.until = append(l.pending, q...), until
	}
	n := 0
	for n < len(l.pending) && l.pending[n].At < float64(second) {
		n++
	}
	for _, d := range l.entries {
		d.Run(l.pending[:n], float64(second))
	}
	l.pending = append(l.pending[:0], l.pending[n:]...)
}

// Need returns the replicas that the load of a second needs, as a fraction.
func (l *Live) Need(second int) float64 {
	need := l.replay.service.Need
	return need[min(max(0, second/service.NeedSeconds), len(need)-1)]
}

// Service returns the service of an entry.
func (l *Live) Service(entry int) *service.Deployment { return l.entries[entry] }

// Decision returns the last decision of an entry that is GPUPilot; ok is false for others.
func (l *Live) Decision(entry int) (d scale.Decision, ok bool) {
	return contender.LastDecision(l.entries[entry].Autoscalers()[0].(autoscaler).Autoscaler)
}

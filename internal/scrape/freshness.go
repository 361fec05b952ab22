// SPDX-License-Identifier: Apache-2.0

package scrape

import (
	"math"
	"slices"
	"time"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

// An exporter that does not say when it collected goes on showing its last
// values when it, its host engine or a GPU hangs. What is known of their age is
// when they changed. docs/controller.md has the rules.

// evidence is what a device's lines can tell of the age of its values.
type evidence uint8

const (
	noEvidence  evidence = iota
	anyValue             // it moves, or the GPU is idle
	powerDrawn           // it moves, but may stand still for minutes
	energyTotal          // it moves at each collection: no GPU draws nothing
)

// The ways in which a target's values are known to be new, as State has them.
const (
	FreshByTimestamp = "timestamp" // the page says when it was collected
	FreshByEnergy    = "energy"    // the energy counters move
	FreshByPower     = "power"     // something moves within powerMaxAge
	FreshUnknown     = "unknown"   // nothing tells: the values may be of any age
)

func (e evidence) String() string {
	switch e {
	case energyTotal:
		return FreshByEnergy
	case powerDrawn:
		return FreshByPower
	}
	return FreshUnknown
}

const (
	// powerMaxAge is how long all values of a device without an energy counter
	// may stand still. Power has three decimals and varies even on idle GPUs.
	powerMaxAge = 5 * time.Minute
	// usualInterval is dcgm-exporter's --collect-interval by default, which holds
	// until enough is learned.
	usualInterval = 30 * time.Second
	// slowestInterval is the longest time between two changes that is taken for
	// an interval, and not for a pause.
	slowestInterval = 2 * time.Minute
	// enoughGaps is how many changes make an interval.
	enoughGaps = 4
)

// evidenceOf says what a field's line tells. The copies of a shared device's
// utilisation and memory are read at the scrape, whatever DCGM does.
func evidenceOf(f gpu.FieldID, isCopy bool) evidence {
	switch {
	case f == gpu.TotalEnergy:
		return energyTotal
	case f == gpu.PowerUsage, f == gpu.PowerUsageInstant:
		return powerDrawn
	case isCopy && (f == gpu.GPUUtil || f == gpu.FBUsed):
		return noEvidence
	}
	return anyValue
}

// digest is what is kept of a value to see it change; never 0.
func digest(v float64) uint32 {
	return uint32(math.Float64bits(v)*0x9e3779b97f4a7c15>>32) | 1
}

// pulse is what is known of the age of a device's values.
type pulse struct {
	first   time.Time // the first scrape that showed it
	changed time.Time // the scrape at which a value last changed; zero: none has
	best    evidence  // of this page
	here    bool      // it is on this page
	moved   bool      // a value is not the last page's
	held    bool      // its values are not new
}

// since is since when its values have been as they are.
func (p *pulse) since() time.Time {
	if p.changed.IsZero() {
		return p.first
	}
	return p.changed
}

// beat takes note of a line's value.
func (p *pulse) beat(e evidence, v float64, moved bool) {
	p.here = true
	p.moved = p.moved || moved
	if e > p.best && (e != energyTotal || v > 0) { // 0 where a GPU has no counter
		p.best = e
	}
}

// pace learns how often an exporter collects from when its values change.
type pace struct {
	last time.Time
	gaps [enoughGaps]time.Duration // the newest
	n    int
}

func (p *pace) add(at time.Time) {
	if gap := at.Sub(p.last); !p.last.IsZero() && gap <= slowestInterval {
		p.gaps[p.n%enoughGaps] = gap
		p.n++
	}
	p.last = at
}

// interval is the longest of the newest gaps: a collection may arrive in two
// pages, and a page may have no new one.
func (p *pace) interval() time.Duration {
	if p.n < enoughGaps {
		return max(usualInterval, slices.Max(p.gaps[:]))
	}
	return slices.Max(p.gaps[:])
}

// freshness is what a page's devices are worth.
type freshness struct {
	method              evidence // of the device of which least is known
	fresh, held, frozen int      // devices; the frozen are among the held
	waits               bool     // no value of those held has ever changed
	since               time.Time
}

// judge says which devices of a page, of which only the time of its scrape is
// known, have new values, and begins the next page.
func (g *gpus) judge(at time.Time, learned *pace) (f freshness) {
	moved := false
	for i := range g.pulses {
		p := &g.pulses[i]
		if p.here && p.first.IsZero() {
			p.first = at
		}
		if p.here && p.moved {
			p.changed = at
			moved = moved || p.best == energyTotal
		}
	}
	if moved {
		learned.add(at)
	}
	f.waits, f.method = true, energyTotal
	for i := range g.pulses {
		p := &g.pulses[i]
		if !p.here {
			continue
		}
		f.take(p, at, learned.interval())
		p.here, p.moved, p.best = false, false, noEvidence
	}
	if f.fresh+f.held == 0 {
		f.method = noEvidence
	}
	return f
}

// take judges one device.
func (f *freshness) take(p *pulse, at time.Time, interval time.Duration) {
	f.method = min(f.method, p.best)
	age, most := at.Sub(p.since()), gpu.MaxAge(interval)
	switch p.best {
	case energyTotal:
		p.held = !p.moved
	case powerDrawn:
		most = powerMaxAge
		p.held = age > most
	default:
		p.held = false
	}
	if !p.held {
		f.fresh++
		return
	}
	f.held++
	f.waits = f.waits && p.changed.IsZero()
	if age > most {
		f.frozen++
	}
	if p.since().After(f.since) {
		f.since = p.since()
	}
}

// believe takes all values of a page for new, which says when they were collected.
func (g *gpus) believe() {
	for i := range g.pulses {
		g.pulses[i].here, g.pulses[i].moved, g.pulses[i].held, g.pulses[i].best = false, false, false, noEvidence
	}
}

// beat is the page's.
func (g *gpus) beat(slot int32, e evidence, v float64, moved bool) {
	for int(slot) >= len(g.pulses) {
		g.pulses = append(g.pulses, pulse{})
	}
	g.pulses[slot].beat(e, v, moved)
}

// holds says whether the device's values are not new.
func (g *gpus) holds(slot int32) bool { return int(slot) < len(g.pulses) && g.pulses[slot].held }

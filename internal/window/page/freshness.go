// SPDX-License-Identifier: Apache-2.0

package page

import (
	"math"
	"slices"
	"time"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

// An exporter without collection timestamps keeps showing its last values when it,
// its host engine or a GPU hangs. Their age is then estimated from the times at
// which they changed. docs/sources.md#how-old-a-value-may-be has the rules.

// evidence is a kind of value, ordered by how well its changes show that a device's
// values are new.
type evidence uint8

const (
	noEvidence  evidence = iota
	anyValue             // constant while the GPU is idle
	powerDrawn           // can be constant for minutes
	energyTotal          // changes with each collection: a GPU always draws power
)

// The values of Freshness.Method: how the age of a target's values is known.
const (
	FreshByTimestamp = "timestamp" // the page has the time of collection
	FreshByEnergy    = "energy"    // the energy counters change
	FreshByPower     = "power"     // some value changes within powerMaxAge
	FreshUnknown     = "unknown"   // the values may be of any age
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
	// powerMaxAge is how long all values of a device without an energy counter may
	// stay the same. Power has three decimals and varies even on idle GPUs.
	powerMaxAge = 5 * time.Minute
	// usualInterval is the default of dcgm-exporter's --collect-interval. It is
	// assumed until there are enoughGaps.
	usualInterval = 30 * time.Second
	// SlowestInterval is the longest time between two changes that counts as an
	// interval. A longer one is a pause.
	SlowestInterval = 2 * time.Minute
	// enoughGaps is the number of changes from which an interval is estimated.
	enoughGaps = 4
	// mostPower is more than a GPU draws, in mW. A counter that rose faster is not the
	// exporter's.
	mostPower = 4e6
	// steady is how often another energy counter must rise before it is used. No page in
	// between continues the present one.
	steady = 5
)

// evidenceOf returns the evidence that a field's value is. The copies of a shared
// device's utilisation and memory are none: dcgm-exporter reads them at the scrape,
// also while DCGM hangs.
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

// digest returns a hash of a value, to detect changes. It is never 0.
func digest(v float64) uint32 {
	return uint32(math.Float64bits(v)*0x9e3779b97f4a7c15>>32) | 1
}

// ageState is the state of a device from which the age of its values is estimated.
type ageState struct {
	first     time.Time // the first scrape that showed the device
	changed   time.Time // the scrape at which a value last changed; zero: never
	best      evidence  // the best evidence on this page
	onPage    bool      // this page has the device
	moved     bool      // a value differs from the last page
	unchanged bool      // the values are those of an earlier collection
	energy    energyState
}

// energyState orders the pages of a device by its energy counter. A page with a lower
// counter than an earlier one is an old one, which a cache shows, or the counter began
// again: it then stays lower.
type energyState struct {
	seen   float64         // on this page, in mJ; 0: none
	newest float64         // on the newest page; 0: none
	others [2]otherCounter // two, because old pages may be between new ones
	isOld  bool            // this page is an old one
}

// otherCounter is a counter that pages show instead of the present one.
type otherCounter struct {
	newest float64
	pages  int // that continue it, less those of neither counter; 0: it is unused
}

// order compares the counter on this page with the newest one, and returns whether it is
// newer than on all pages before. The newest arrived age ago.
func (e *energyState) order(age, interval time.Duration) (rose bool) {
	v := e.seen
	e.seen, e.isOld = 0, false
	if v == e.newest {
		return false
	}
	most := mostPower * (age + interval).Seconds() // up to one interval passed before the newest page
	if e.newest == 0 || v > e.newest && v-e.newest <= most || e.stays(v, mostPower*2*interval.Seconds()) {
		e.newest, e.others = v, [2]otherCounter{}
		return true
	}
	e.isOld = true
	return false
}

// stays counts a page of another counter, and reports whether that has stayed long enough.
// most is how much it can rise from one page to the next.
func (e *energyState) stays(v, most float64) bool {
	var free *otherCounter
	for i := range e.others {
		x := &e.others[i]
		if x.pages > 0 && v >= x.newest && v-x.newest <= most {
			if v > x.newest {
				x.newest = v
				x.pages++
			}
			return x.pages > steady
		}
		if x.pages == 0 {
			free = x
		}
	}
	if free != nil {
		*free = otherCounter{v, 1}
		return false
	}
	for i := range e.others {
		e.others[i].pages--
	}
	return false
}

// since returns the time since which the device has had its present values.
func (p *ageState) since() time.Time {
	if p.changed.IsZero() {
		return p.first
	}
	return p.changed
}

// observe records the value of a line, in its field's unit.
func (p *ageState) observe(e evidence, v float64, moved bool) {
	p.onPage = true
	p.moved = p.moved || moved
	if e == energyTotal {
		if !(v > 0) {
			return // the GPU has no energy counter
		}
		p.energy.seen = v
	}
	p.best = max(p.best, e)
}

// judge determines whether the device's values on this page are new.
func (p *ageState) judge(at time.Time, interval time.Duration) {
	if p.first.IsZero() {
		p.first = at
	}
	if p.best == energyTotal {
		wasOld := p.energy.isOld
		rose := p.energy.order(at.Sub(p.since()), interval)
		if wasOld || p.energy.isOld {
			p.moved = rose // the values differ from those of another page
		}
	}
	if p.moved {
		p.changed = at
	}
}

// IntervalEstimate estimates an exporter's collection interval from the times at
// which its values change.
type IntervalEstimate struct {
	last time.Time                 // of the last change
	gaps [enoughGaps]time.Duration // between the newest changes
	n    int                       // gaps so far
}

func (p *IntervalEstimate) add(at time.Time) {
	if gap := at.Sub(p.last); !p.last.IsZero() && gap <= SlowestInterval {
		p.gaps[p.n%enoughGaps] = gap
		p.n++
	}
	p.last = at
}

// Interval returns the estimate. ok is false before the first change.
func (p *IntervalEstimate) Interval() (d time.Duration, ok bool) {
	return p.interval(), !p.last.IsZero()
}

// interval returns the longest of the newest gaps. The shorter ones can be wrong,
// because one collection can arrive in two pages.
func (p *IntervalEstimate) interval() time.Duration {
	if p.n < enoughGaps {
		return max(usualInterval, slices.Max(p.gaps[:]))
	}
	return slices.Max(p.gaps[:])
}

// Freshness says how many of a page's devices have new values.
type Freshness struct {
	Method                   string    // such as FreshByEnergy, of the device with the least evidence
	Fresh, Unchanged, Frozen int       // devices; a frozen one counts as unchanged too
	Waits                    bool      // the values of the unchanged devices have never changed
	Since                    time.Time // the last change of an unchanged device

	least evidence
	old   int // devices whose values are older than earlier ones
}

// IsOld reports whether the page is older than an earlier one.
func (f *Freshness) IsOld() bool { return f.old > 0 && f.Fresh == 0 }

// assess determines which devices of a page without a timestamp have new values, and
// prepares for the next page.
func (g *gpus) assess(at time.Time, learned *IntervalEstimate) (f Freshness) {
	moved := false
	for i := range g.ages {
		if p := &g.ages[i]; p.onPage {
			p.judge(at, learned.interval())
			moved = moved || p.moved && p.best == energyTotal
		}
	}
	if moved {
		learned.add(at)
	}
	f.Waits, f.least = true, energyTotal
	for i := range g.ages {
		p := &g.ages[i]
		if !p.onPage {
			continue
		}
		f.take(p, at, learned.interval())
		p.onPage, p.moved, p.best = false, false, noEvidence
	}
	if f.Fresh+f.Unchanged == 0 {
		f.least = noEvidence
	}
	f.Method = f.least.String()
	return f
}

// take adds one device to the result.
func (f *Freshness) take(p *ageState, at time.Time, interval time.Duration) {
	f.least = min(f.least, p.best)
	age, most := at.Sub(p.since()), gpu.MaxAge(interval)
	switch p.best {
	case energyTotal:
		if p.unchanged = !p.moved; p.energy.isOld {
			f.old++
		}
	case powerDrawn:
		most = powerMaxAge
		p.unchanged = age > most
	default:
		p.unchanged = false
	}
	if !p.unchanged {
		f.Fresh++
		return
	}
	f.Unchanged++
	f.Waits = f.Waits && p.changed.IsZero()
	if age > most {
		f.Frozen++
	}
	if p.since().After(f.Since) {
		f.Since = p.since()
	}
}

// acceptAll treats all values of a page with a timestamp as new.
func (g *gpus) acceptAll() {
	for i := range g.ages {
		g.ages[i].onPage, g.ages[i].moved, g.ages[i].unchanged, g.ages[i].best = false, false, false, noEvidence
	}
}

// observe implements identifier.
func (g *gpus) observe(slot int32, e evidence, v float64, moved bool) {
	for int(slot) >= len(g.ages) {
		g.ages = append(g.ages, ageState{})
	}
	g.ages[slot].observe(e, v, moved)
}

// isUnchanged reports whether the device's values are those of an earlier collection.
func (g *gpus) isUnchanged(slot int32) bool { return int(slot) < len(g.ages) && g.ages[slot].unchanged }

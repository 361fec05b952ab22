// SPDX-License-Identifier: Apache-2.0

package scrape

import (
	"hash/fnv"
	"math"
	"math/rand/v2"
	"time"
)

const (
	// retryEarly is how soon a page that came before the agent's tick is asked
	// for again, and retries how often.
	retryEarly = 25 * time.Millisecond
	retries    = 4
	// clockAhead is how far in the future a collection may be for its clock
	// to be taken as it is: what NTP leaves.
	clockAhead = 100 * time.Millisecond
)

// phase says when a target is to be scraped next. It knows no clock.
type phase struct {
	every time.Duration // Config.Interval
	guard time.Duration // after an agent's collection
	most  time.Duration // of a back-off
	name  uint64        // spreads the targets that do not say when they tick

	slow   time.Duration // how long the agent's slower collections took lately
	extra  time.Duration // learned: what it needs beyond that and the guard
	early  int           // pages in a row that came before the tick
	failed int           // scrapes in a row
}

func newPhase(cfg *Config, name string) phase {
	h := fnv.New64a()
	h.Write([]byte(name))
	return phase{every: cfg.Interval, guard: cfg.Guard, most: cfg.MaxBackoff, name: h.Sum64()}
}

// spread is the next time on the target's own grid of intervals.
func (p *phase) spread(now time.Time) time.Time {
	offset := time.Duration(p.name % uint64(p.every))
	next := now.Truncate(p.every).Add(offset)
	for !next.After(now) {
		next = next.Add(p.every)
	}
	return next
}

// afterTick is when to ask again an agent that collected at tick (our clock):
// when one of its next collections, the guard and what was learned are over.
// An agent that ticks faster than we ask is asked at each n-th tick.
func (p *phase) afterTick(tick time.Time, m meta, now time.Time) time.Time {
	p.failed, p.early = 0, 0
	p.slow = max(seconds(m.took), p.slow-p.slow/8)
	p.extra -= p.extra / 32
	step := max(seconds(m.interval), time.Millisecond)
	if n := math.Round(float64(p.every) / float64(step)); n > 1 {
		step = time.Duration(n) * step
	}
	ready := tick.Add(step + min(p.slow, step/2) + p.guard + p.extra)
	if behind := now.Sub(ready); behind >= 0 {
		ready = ready.Add(behind - behind%step + step)
	}
	return ready
}

// tooEarly is when to ask again an agent that had not collected anew.
func (p *phase) tooEarly(m meta, now time.Time) time.Time {
	p.failed = 0
	if p.early++; p.early > retries {
		return now.Add(p.every) // it is stuck, or slower than it says
	}
	if p.early == 1 {
		p.extra = min(p.extra+retryEarly/2, seconds(m.interval)/4)
	}
	return now.Add(retryEarly)
}

// success is when to ask again a target that does not say when it ticks.
func (p *phase) success(now time.Time) time.Time {
	p.failed = 0
	return p.spread(now)
}

// podRate is how many bytes of a pod's own exposition are read per interval. An
// inference server's page has 100 to 500 KB; one of 16 MiB is read every 16th time.
const podRate = 1 << 20

// paced is when to ask again a pod whose page had so many bytes.
func (p *phase) paced(next time.Time, bytes int64, now time.Time) time.Time {
	if earliest := now.Add(time.Duration(bytes/podRate) * p.every); earliest.After(next) {
		return earliest
	}
	return next
}

// failure is when to try again: twice as late each time, up to most, with a
// fifth of jitter either way.
func (p *phase) failure(now time.Time) time.Time {
	wait := p.most
	if p.failed < 8 {
		wait = min(p.every<<p.failed, p.most)
	}
	p.failed++
	return now.Add(time.Duration(float64(wait) * (0.8 + 0.4*rand.Float64())))
}

// seconds is a time that a target said, within reason.
func seconds(s float64) time.Duration {
	switch {
	case !(s > 0):
		return 0
	case s > 3600:
		return time.Hour
	}
	return time.Duration(s * float64(time.Second))
}

// clock turns an agent's times into ours. Its times are used as they are while
// they can be true. Where they lie in the future, or move and yet stay far in
// the past, its clock is off, and the difference is measured: the samples then
// count as collected when they arrived, which may be an interval too late.
type clock struct {
	last   time.Time     // the agent's time at the last page
	offset time.Duration // what is added to its times
}

func (c *clock) local(raw, arrived time.Time, m meta) time.Time {
	moved := !c.last.IsZero() && !raw.Equal(c.last)
	c.last = raw
	age := arrived.Sub(raw.Add(c.offset))
	believed := age >= -clockAhead && age <= 2*seconds(m.interval)+seconds(m.took)+5*time.Second
	if !believed && (age < 0 || moved) {
		c.offset += age
		if c.offset.Abs() < clockAhead {
			c.offset = 0
		}
	}
	return raw.Add(c.offset)
}

// maxUnix is a time in seconds since 1970 (2255) that nanoseconds in an int64
// can still tell.
const maxUnix = 9e9

// unixSeconds is the time of a float of seconds since 1970, which holds
// microseconds.
func unixSeconds(s float64) time.Time {
	whole, part := math.Modf(s)
	return time.Unix(int64(whole), int64(math.Round(part*1e6))*1000)
}

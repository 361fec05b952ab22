// SPDX-License-Identifier: Apache-2.0

package scrape

import (
	"hash/fnv"
	"math"
	"math/rand/v2"
	"time"

	"github.com/gpupilot/gpupilot/internal/window/page"
)

const (
	// retryEarly is the delay of the next scrape after one that was before the
	// agent's tick. retries is the number of such scrapes in a row.
	retryEarly = 25 * time.Millisecond
	retries    = 4
)

// phase computes the time of a target's next scrape. Its methods get the time as an
// argument.
type phase struct {
	every time.Duration // Config.Interval
	guard time.Duration // after an agent's collection
	most  time.Duration // the limit of a back-off
	name  uint64        // a hash of the name, the offset of targets without a known tick

	slow   time.Duration // the duration of the agent's slower collections of late
	extra  time.Duration // learned: the delay needed in addition to slow and guard
	early  int           // consecutive pages from before the tick
	failed int           // consecutive failed scrapes
}

// newPhase returns the phase of a target.
func newPhase(cfg *Config, name string) phase {
	h := fnv.New64a()
	h.Write([]byte(name))
	return phase{every: cfg.Interval, guard: cfg.Guard, most: cfg.MaxBackoff, name: h.Sum64()}
}

// spread returns the next time of the target's fixed offset within the interval.
func (p *phase) spread(now time.Time) time.Time {
	offset := time.Duration(p.name % uint64(p.every))
	next := now.Truncate(p.every).Add(offset)
	for !next.After(now) {
		next = next.Add(p.every)
	}
	return next
}

// afterTick returns the next scrape of an agent that collected at tick (our clock):
// after one of its next collections, the guard and the learned delay. An agent with
// a shorter interval than ours is scraped at each n-th tick.
func (p *phase) afterTick(tick time.Time, m page.Meta, now time.Time) time.Time {
	p.failed, p.early = 0, 0
	p.slow = max(seconds(m.Took), p.slow-p.slow/8)
	p.extra -= p.extra / 32
	step := max(seconds(m.Interval), time.Millisecond)
	if n := math.Round(float64(p.every) / float64(step)); n > 1 {
		step = time.Duration(n) * step
	}
	ready := tick.Add(step + min(p.slow, step/2) + p.guard + p.extra)
	if behind := now.Sub(ready); behind >= 0 {
		ready = ready.Add(behind - behind%step + step)
	}
	return ready
}

// tooEarly returns the next scrape of an agent whose last page was not new.
func (p *phase) tooEarly(m page.Meta, now time.Time) time.Time {
	p.failed = 0
	if p.early++; p.early > retries {
		return now.Add(p.every) // the agent hangs, or its interval is longer than its page says
	}
	if p.early == 1 {
		p.extra = min(p.extra+retryEarly/2, seconds(m.Interval)/4)
	}
	return now.Add(retryEarly)
}

// success returns the next scrape of a target without a known tick.
func (p *phase) success(now time.Time) time.Time {
	p.failed = 0
	return p.spread(now)
}

// podRate is the limit of bytes per interval from a pod's own metrics. An inference
// server's page has 100 to 500 KB. A page of 16 MiB is read every 16th interval.
const podRate = 1 << 20

// paced returns the next scrape of a pod after a page of so many bytes: next, or
// later for podRate.
func (p *phase) paced(next time.Time, bytes int64, now time.Time) time.Time {
	if earliest := now.Add(time.Duration(bytes/podRate) * p.every); earliest.After(next) {
		return earliest
	}
	return next
}

// failure returns the next scrape after a failure. The delay doubles each time, up
// to most, with a jitter of ±20 %.
func (p *phase) failure(now time.Time) time.Time {
	wait := p.most
	if p.failed < 8 {
		wait = min(p.every<<p.failed, p.most)
	}
	p.failed++
	return now.Add(time.Duration(float64(wait) * (0.8 + 0.4*rand.Float64())))
}

// seconds converts a duration from a page, limited to one hour. NaN and negative
// numbers are 0.
func seconds(s float64) time.Duration {
	switch {
	case !(s > 0):
		return 0
	case s > 3600:
		return time.Hour
	}
	return time.Duration(s * float64(time.Second))
}

// SPDX-License-Identifier: Apache-2.0

package scrape

import (
	"testing"
	"time"
)

// A target with a longer interval is scraped that often, after failures as well.
func TestTargetInterval(t *testing.T) {
	cfg := Config{Interval: time.Second}.withDefaults()
	f := func(every, want time.Duration) {
		t.Helper()
		p := newPhase(&cfg, "t", every)
		now := p.success(time.Unix(1_800_000_000, 0))
		if got := p.success(now).Sub(now); got != want {
			t.Errorf("interval %s: the next scrape after %s, want %s", every, got, want)
		}
		if got := p.failure(now).Sub(now); got > want+want/4 || got < want/2 {
			t.Errorf("interval %s: the next scrape after a failure after %s", every, got)
		}
		for range 10 {
			p.failure(now)
		}
		if got, most := p.failure(now).Sub(now), max(want, cfg.MaxBackoff)*5/4; got > most || got < want/2 {
			t.Errorf("interval %s: the next scrape after many failures after %s, want %s at most", every, got, most)
		}
	}
	f(0, time.Second)
	f(100*time.Millisecond, time.Second)
	f(30*time.Second, 30*time.Second)
}

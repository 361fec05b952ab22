// SPDX-License-Identifier: Apache-2.0

package scrape

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/window/page"
	"github.com/gpupilot/gpupilot/internal/window/series"
)

// cached is an exporter behind a cache. Each page has another utilisation, its number, and
// an owner and a series of its own. The cache has all pages.
type cached struct {
	*reader
	write func(c *cached) string
	clock time.Duration // how far the exporter's clock is ahead
	began time.Time     // when its energy counters were at 0
	pages []string
}

func newCached(t *testing.T, kind Kind, write func(c *cached) string) *cached {
	x := newReader(t, Target{Kind: kind, Labels: series.TargetLabels{Node: "n"}})
	return &cached{reader: x, write: write, began: x.now.Add(-time.Hour)}
}

// values are those of a page, with lines for the number of the page.
func (c *cached) values(stamp string) string {
	n := len(c.pages) + 1
	return fmt.Sprintf("DCGM_FI_DEV_GPU_UTIL{UUID=\"G0\",namespace=\"ns\",pod=\"p\",container=\"c%d\"} %g%s\n", n%2, float64(n)/64, stamp)
}

func agentPage(c *cached) string {
	at := c.now.Add(-20 * time.Millisecond).Add(c.clock)
	return fmt.Sprintf("gpupilot_collection_timestamp_seconds %.6f\ngpupilot_collection_interval_seconds 1\n", float64(at.UnixMicro())/1e6) +
		"gpupilot_gpu_allocation_info{uuid=\"G0\",namespace=\"ns\",pod=\"p\",container=\"c\",replica=\"\"} 1\n" +
		fmt.Sprintf("gpupilot_gpu_allocation_info{uuid=\"G1\",namespace=\"ns\",pod=\"p%d\",container=\"c\",replica=\"\"} 1\n", len(c.pages)+1) + c.values("")
}

func stampedPage(c *cached) string {
	return c.values(fmt.Sprintf(" %d", c.now.Add(-20*time.Millisecond).Add(c.clock).UnixMilli()))
}

func energyPage(c *cached) string {
	return c.values("") + fmt.Sprintf("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{UUID=\"G0\"} %d\n", 300*c.now.Sub(c.began).Milliseconds())
}

// show answers a scrape with a page.
func (c *cached) show(text string) {
	c.t.Helper()
	if err := c.r.prepare(c.now); err != nil {
		c.t.Fatal(err)
	}
	c.r.keep([]byte(text), c.now, c.now)
}

// fresh answers with a new page.
func (c *cached) fresh() {
	c.t.Helper()
	text := c.write(c)
	c.pages = append(c.pages, text)
	c.show(text)
}

// newest is the number of the page whose value counts now; 0: none does.
func (c *cached) newest() int {
	v, ok := c.store.Pod("ns", "p", gpu.GPUUtil, c.now, time.Hour)
	if !ok {
		return 0
	}
	return int(math.Round(v.Value * 64))
}

// Pages from the past are no news, in any order with new ones, failures and steps of the
// exporter's clock, and change neither values, owners nor series. After a step, values come
// back within a bounded number of new pages.
func TestOldPagesAreNoNews(t *testing.T) {
	steps := []time.Duration{-time.Second, time.Second, -time.Hour, time.Hour, -365 * 24 * time.Hour, 365 * 24 * time.Hour}
	f := func(seed uint64, kind Kind, write func(*cached) string) {
		t.Helper()
		rnd := rand.New(rand.NewPCG(seed, 0))
		c := newCached(t, kind, write)
		log := &strings.Builder{}
		accepted, waited, skipped, old := 0, 0, 0, 0
		for range 600 {
			c.now = c.now.Add(time.Second)
			switch p := rnd.IntN(100); {
			case p < 40 && len(c.pages) > 1 && old < steady: // more in a row may look like another clock
				old++
				n := rnd.IntN(len(c.pages) - 1)
				before, devices, samples := c.newest(), c.holders(), c.store.Stats().Samples
				c.show(c.pages[n])
				fmt.Fprintf(log, " old %d", n+1)
				if got := c.newest(); got != before || c.holders() != devices || c.store.Stats().Samples != samples {
					t.Fatalf("seed %d: the old page %d was stored: value of page %d, was %d; holders %s, were %s;%s", seed, n+1, got, before, c.holders(), devices, log)
				}
				continue
			case p < 45:
				c.r.failed(fail(Unreachable, "refused"))
				fmt.Fprint(log, " fail")
				continue
			case p < 48 && waited == 0:
				d := steps[rnd.IntN(len(steps))]
				c.clock += d
				if c.began.Before(t0) { // the counters begin again; soon after, an old page looks like that
					c.began = c.now.Add(-time.Second)
				}
				fmt.Fprintf(log, " clock %v", d)
			}
			c.fresh()
			old = 0
			if c.newest() == len(c.pages) {
				accepted++
				waited = 0
				continue
			}
			waited++
			skipped++
			fmt.Fprintf(log, " wait %d", len(c.pages))
			if waited > 4*steady {
				t.Fatalf("seed %d: no value of the last %d new pages:%s", seed, waited, log)
			}
		}
		if accepted < 100 {
			t.Errorf("seed %d: only %d new pages were stored, %d not", seed, accepted, skipped)
		}
	}
	for seed := range uint64(40) {
		f(seed, Agent, agentPage)
		f(seed, DCGM, stampedPage)
		f(seed, DCGM, energyPage)
	}
}

// Whatever the step of its clock, an exporter's values come back within a few pages.
func TestValuesComeBackAfterAStep(t *testing.T) {
	f := func(step time.Duration, write func(*cached) string) {
		t.Helper()
		c := newCached(t, Agent, write)
		next := func() bool {
			c.now = c.now.Add(time.Second)
			c.fresh()
			v, ok := c.store.Pod("ns", "p", gpu.GPUUtil, c.now, gpu.MaxAge(0))
			return ok && int(math.Round(v.Value*64)) == len(c.pages)
		}
		for range 10 {
			if !next() {
				t.Fatalf("no value of page %d", len(c.pages))
			}
		}
		for _, d := range []time.Duration{step, -step} {
			c.clock += d
			waited := 0
			for ; !next(); waited++ {
				if waited > 2*steady {
					t.Fatalf("clock set by %v: no value of %d pages", d, waited)
				}
			}
			for range 20 {
				if !next() {
					t.Fatalf("clock set by %v: no value of page %d, %d after it was believed", d, len(c.pages), len(c.pages)-waited)
				}
			}
		}
	}
	for d := time.Duration(0); d < 12*time.Second; d += 130 * time.Millisecond {
		f(d, agentPage)
		f(-d, agentPage)
		f(-d, stampedPage)
	}
	for _, d := range []time.Duration{time.Minute, time.Hour, 365 * 24 * time.Hour} {
		f(d, agentPage)
		f(-d, agentPage)
		f(d, stampedPage)
	}
}

// A page from the far future does not hide the pages after it, neither once nor with each
// other scrape, and also not after a step of the clock.
func TestPagesFromTheFuture(t *testing.T) {
	f := func(kind Kind, write func(*cached) string, forge func(*cached) string) {
		t.Helper()
		c := newCached(t, kind, write)
		forged := func() {
			c.now = c.now.Add(time.Second)
			before := c.newest()
			c.show(forge(c))
			if got := c.newest(); got != before {
				t.Fatalf("a forged page was stored, with the value of page %d, was %d", got, before)
			}
		}
		stored := func(pages int) (n int) {
			for range pages {
				c.now = c.now.Add(time.Second)
				c.fresh()
				if c.newest() == len(c.pages) {
					n++
				}
				forged()
			}
			return n
		}
		c.fresh()
		c.now = c.now.Add(time.Second)
		c.fresh()
		if n := stored(20); n != 20 {
			t.Errorf("%d of 20 pages between forged ones were stored", n)
		}
		if kind == DCGM {
			return
		}
		c.clock = -time.Hour
		if n := stored(20); n < 20-2*steady {
			t.Errorf("%d of 20 pages between forged ones were stored after the clock was set back", n)
		}
	}
	far := int64(8e9)
	f(Agent, agentPage, func(*cached) string {
		far += 7
		return fmt.Sprintf("gpupilot_collection_timestamp_seconds %d\nDCGM_FI_DEV_GPU_UTIL{UUID=\"G0\"} 99\n", far)
	})
	f(DCGM, energyPage, func(*cached) string {
		far += 7
		return fmt.Sprintf("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{UUID=\"G0\"} %d\nDCGM_FI_DEV_GPU_UTIL{UUID=\"G0\"} 99\n", far<<20)
	})
}

// A cache that answers with one old page for long makes the target stale.
func TestOneOldPageForLong(t *testing.T) {
	f := func(kind Kind, write func(*cached) string) {
		t.Helper()
		c := newCached(t, kind, write)
		for range 10 {
			c.now = c.now.Add(time.Second)
			c.fresh()
		}
		for range 300 {
			c.now = c.now.Add(time.Second)
			c.show(c.pages[4])
		}
		if _, ok := c.store.Pod("ns", "p", gpu.GPUUtil, c.now, gpu.MaxAge(0)); ok || c.newest() != 10 {
			t.Errorf("the value of page %d is in use", c.newest())
		}
		if err := c.r.state.Err; err == nil {
			t.Error("the target is not stale")
		}
		c.now = c.now.Add(time.Second)
		c.fresh()
		if c.newest() != 11 || c.r.state.Err != nil {
			t.Errorf("the newest page is %d, %v, want the new one", c.newest(), c.r.state.Err)
		}
	}
	f(Agent, agentPage)
	f(DCGM, stampedPage)
	f(DCGM, energyPage)
}

// Old pages of a pod are those with a lower counter. Three in a row are a restarted server.
func TestOldPagesOfPods(t *testing.T) {
	f := func(seed uint64) {
		rnd := rand.New(rand.NewPCG(seed, 0))
		x := newReader(t, Target{
			Kind: Pod, Labels: series.TargetLabels{Namespace: "ns", Pod: "p"},
			Metrics: []page.Metric{{Key: "queue", Name: "queue"}, {Key: "done", Name: "done_total", Counter: true}},
		})
		var pages []string
		done, low, waited := 0, 0, 0
		newest := func() int {
			v, ok := x.store.PodMetric("ns", "p", "queue", x.now, time.Hour)
			if !ok {
				return 0
			}
			return int(v.Value)
		}
		show := func(text string) {
			if err := x.r.prepare(x.now); err != nil {
				t.Fatal(err)
			}
			x.r.keep([]byte(text), x.now, x.now)
		}
		for range 300 {
			x.now = x.now.Add(time.Second)
			switch n := rnd.IntN(100); {
			case n < 40 && len(pages) > 1 && low < 2:
				before := newest()
				low++
				if show(pages[rnd.IntN(len(pages)-1)]); newest() != before {
					t.Fatalf("seed %d: an old page was stored, with the queue %d instead of %d", seed, newest(), before)
				}
				continue
			case n < 43 && low == 0 && waited == 0:
				done, pages, low = 0, nil, 2 // the server restarts; without old pages until it is noticed
			}
			done += 1 + rnd.IntN(9)
			text := fmt.Sprintf("queue %d\ndone_total %d\n", x.now.Unix()-t0.Unix(), done)
			pages = append(pages, text)
			if show(text); newest() == int(x.now.Unix()-t0.Unix()) {
				low, waited = 0, 0
				continue
			}
			if waited++; waited > 2 {
				t.Fatalf("seed %d: no value of %d new pages", seed, waited)
			}
		}
	}
	for seed := range uint64(40) {
		f(seed)
	}
}

// A series and an owner that appeared on an old page's successor are not lost.
func TestChangesAfterAnOldPage(t *testing.T) {
	c := newCached(t, Agent, agentPage)
	for range 3 {
		c.now = c.now.Add(time.Second)
		c.fresh()
	}
	c.now = c.now.Add(time.Second)
	next := agentPage(c)
	early := strings.Replace(next, fmt.Sprint(c.now.Unix()-1), fmt.Sprint(c.now.Unix()-3), 1)
	if early == next {
		t.Fatal(next)
	}
	c.show(early) // the lines of the next page, with an old time
	c.show(next)
	if want := "G1:ns/p4/c"; !strings.Contains(c.holders(), want) {
		t.Errorf("holders %s, want %s", c.holders(), want)
	}
}

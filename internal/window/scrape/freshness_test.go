// SPDX-License-Identifier: Apache-2.0

package scrape

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/window/page"
	"github.com/gpupilot/gpupilot/internal/window/series"
)

// fakeDCGM answers as dcgm-exporter does, which shows the values of its last
// collection without saying when that was. It is a Doer.
type fakeDCGM struct {
	interval time.Duration
	phase    time.Duration
	gpus     int
	noEnergy bool
	noPower  bool
	steady   bool // power does not vary
	util     func(gpu, n int) int
	labels   func(now time.Time) string // beside a pod's, of GPU 0

	mu     sync.Mutex
	frozen map[int]time.Time // GPUs that are not collected any more, since
	down   bool
	reset  time.Time // when the driver was loaded; zero: at the beginning
}

func (d *fakeDCGM) Do(*http.Request) (*http.Response, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.down {
		return nil, fmt.Errorf("connection refused")
	}
	body := d.page(time.Now())
	return &http.Response{
		StatusCode: 200, Status: "200 OK", ContentLength: int64(len(body)), Body: io.NopCloser(strings.NewReader(body)),
	}, nil
}

func (d *fakeDCGM) page(now time.Time) string {
	var lines [4][]string
	for g := range d.gpus {
		at := now
		if f, ok := d.frozen[g]; ok && f.Before(at) {
			at = f
		}
		n := int(at.Sub(t0.Add(d.phase)) / d.interval) // collections
		born := t0.Add(-time.Hour)
		if d.reset.After(born) {
			born = d.reset
		}
		energy := at.Truncate(d.interval).Sub(born).Milliseconds() * 60
		labels := fmt.Sprintf(`{gpu="%d",UUID="G%d",namespace="ns",pod="p%d",container="c"`, g, g, g)
		if g == 0 && d.labels != nil {
			labels += d.labels(now)
		}
		power := 60000
		if !d.steady {
			power += n * 7919 % 97
		}
		util := 0
		if d.util != nil {
			util = d.util(g, n)
		}
		line := func(i int, name, value string) { lines[i] = append(lines[i], name+labels+"} "+value) }
		line(0, "DCGM_FI_DEV_SM_CLOCK", "345")
		if !d.noPower {
			line(1, "DCGM_FI_DEV_POWER_USAGE", fmt.Sprintf("%d.%03d000", power/1000, power%1000))
		}
		if !d.noEnergy {
			line(2, "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", fmt.Sprint(energy))
		}
		line(3, "DCGM_FI_DEV_GPU_UTIL", fmt.Sprint(util))
	}
	var b strings.Builder
	for _, family := range lines {
		for _, l := range family {
			b.WriteString(l + "\n")
		}
	}
	return b.String()
}

func (d *fakeDCGM) set(f func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	f()
}

// dcgmRig is a scraper of one dcgm-exporter within a synctest bubble.
type dcgmRig struct {
	t     *testing.T
	s     *Scraper
	store *series.Store
}

// within runs f beside a scraper of d.
func within(t *testing.T, d *fakeDCGM, f func(*dcgmRig)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(time.Until(t0))
		store := series.New(series.Config{})
		s := New(Config{}, Deps{Client: d, Store: store, Log: slog.New(slog.DiscardHandler)})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { s.Run(ctx); close(done) }()
		// Only the utilisation is in use: the rest of the page tells its age.
		s.Sync([]Target{{
			Name: "dcgm", URL: parse("http://10.0.0.1:9400/metrics"), Kind: DCGM, Fields: gpu.SetOf(gpu.GPUUtil),
			Labels: series.TargetLabels{Node: "n"},
		}})
		f(&dcgmRig{t, s, store})
		cancel()
		<-done
	})
}

func (x *dcgmRig) state() State { synctest.Wait(); return x.s.States()[0] }

// age is how old the utilisation of a pod is that a decision would go by; -1:
// there is none.
func (x *dcgmRig) age(g int) time.Duration {
	synctest.Wait()
	r, ok := x.store.PodOn(series.Holder{Node: "n", Namespace: "ns", Pod: fmt.Sprint("p", g), Devices: -1}, gpu.GPUUtil, time.Now(), 5*time.Second)
	if !ok {
		return -1
	}
	if age := time.Since(r.At); age <= r.MaxAge {
		return age
	}
	x.t.Errorf("a value of %v that counts for %v", time.Since(r.At), r.MaxAge)
	return -1
}

// sees checks for some time, each second, that the pods' values are there and
// no older than most, or that there are none.
func (x *dcgmRig) sees(what string, d, most time.Duration, gpus ...int) {
	x.t.Helper()
	for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(time.Second) {
		for _, g := range gpus {
			if age := x.age(g); age > most || age < 0 && most >= 0 {
				x.t.Errorf("%s: after %v GPU %d has a value of %v, want %v at the most", what, time.Since(t0), g, age, most)
				return
			}
		}
	}
}

const absent = -1 * time.Nanosecond

// The values carry the time at which they changed, and count for three of the
// exporter's intervals, which are learned.
func TestValuesAreAsOldAsTheirChange(t *testing.T) {
	for _, interval := range []time.Duration{time.Second, 5 * time.Second, 15 * time.Second, 30 * time.Second, time.Minute} {
		d := &fakeDCGM{interval: interval, phase: 300 * time.Millisecond, gpus: 2}
		within(t, d, func(x *dcgmRig) {
			time.Sleep(interval + 3*time.Second)
			x.sees(interval.String(), 10*interval, interval+2*time.Second, 0, 1)
			st := x.state()
			if st.Freshness != page.FreshByEnergy || st.Err != nil || st.Waiting || st.Frozen != 0 || (st.Interval-interval).Abs() > time.Second+time.Millisecond {
				t.Errorf("%v: state %+v", interval, st)
			}
			// It hangs: after three intervals its values do not count.
			d.set(func() { d.frozen = map[int]time.Time{0: time.Now(), 1: time.Now()} })
			time.Sleep(max(3*(interval+time.Second), 5*time.Second) + 2*time.Second)
			x.sees(interval.String()+", frozen", 30*time.Minute, absent, 0, 1)
			st = x.state()
			if st.Err == nil || st.Frozen != 2 || !strings.Contains(st.Err.Error(), "values have not changed since 2027-") || x.s.Stats().Failures["stale"] == 0 {
				t.Errorf("%v: frozen: state %+v", interval, st)
			}
			// It comes back.
			d.set(func() { d.frozen = nil })
			time.Sleep(interval + 2*time.Second)
			x.sees(interval.String()+", back", 5*interval, interval+2*time.Second, 0, 1)
			if st := x.state(); st.Err != nil || st.Frozen != 0 {
				t.Errorf("%v: back: state %+v", interval, st)
			}
		})
	}
}

// A page of which nothing has changed yet may be of any age: it counts for
// nothing until something does.
func TestFrozenFromTheBeginning(t *testing.T) {
	d := &fakeDCGM{interval: time.Second, gpus: 1, frozen: map[int]time.Time{0: t0.Add(-time.Minute)}}
	within(t, d, func(x *dcgmRig) {
		x.sees("frozen", 30*time.Second, absent, 0)
		if st := x.state(); !st.Waiting || st.Err != nil || !st.LastSuccess.IsZero() {
			t.Errorf("state %+v", st)
		}
		x.sees("frozen", 10*time.Minute, absent, 0)
		if st := x.state(); st.Err == nil || st.Frozen != 1 {
			t.Errorf("state %+v", st)
		}
	})
}

// One of two GPUs has fallen off the bus, and its last values go on being
// shown: they age, and the other GPU's do not.
func TestOneFrozenGPU(t *testing.T) {
	d := &fakeDCGM{interval: 5 * time.Second, gpus: 2, util: func(g, n int) int { return 90 }}
	within(t, d, func(x *dcgmRig) {
		time.Sleep(time.Minute)
		d.set(func() { d.frozen = map[int]time.Time{1: time.Now()} })
		time.Sleep(25 * time.Second)
		x.sees("dead", 30*time.Minute, absent, 1)
		x.sees("alive", time.Minute, 7*time.Second, 0)
		if st := x.state(); st.Err != nil || st.Frozen != 1 || st.Freshness != page.FreshByEnergy {
			t.Errorf("state %+v", st)
		}
	})
}

// An idle GPU draws power: its energy counter moves though nothing else does.
func TestIdleGPUIsFresh(t *testing.T) {
	d := &fakeDCGM{interval: 30 * time.Second, gpus: 1, steady: true}
	within(t, d, func(x *dcgmRig) {
		time.Sleep(35 * time.Second)
		x.sees("idle", time.Hour, 32*time.Second, 0)
	})
}

// Without the counter, power varies now and then.
func TestPowerTellsLess(t *testing.T) {
	d := &fakeDCGM{interval: 30 * time.Second, gpus: 1, noEnergy: true}
	within(t, d, func(x *dcgmRig) {
		time.Sleep(2 * time.Second)
		x.sees("idle", time.Hour, 2*time.Second, 0)
		if st := x.state(); st.Freshness != page.FreshByPower || st.Err != nil {
			t.Errorf("state %+v", st)
		}
		d.set(func() { d.frozen = map[int]time.Time{0: time.Now()} })
		time.Sleep(5*time.Minute + 10*time.Second)
		x.sees("frozen", 30*time.Minute, absent, 0)
		if st := x.state(); st.Err == nil || st.Frozen != 1 {
			t.Errorf("frozen: state %+v", st)
		}
	})
}

// Where nothing tells, that is said, and the values are believed.
func TestNothingTells(t *testing.T) {
	d := &fakeDCGM{interval: 30 * time.Second, gpus: 1, noEnergy: true, noPower: true}
	within(t, d, func(x *dcgmRig) {
		time.Sleep(2 * time.Second)
		x.sees("unknown", time.Hour, 2*time.Second, 0)
		if st := x.state(); st.Freshness != page.FreshUnknown || st.Err != nil {
			t.Errorf("state %+v", st)
		}
		if n := x.s.Stats().Freshness[page.FreshUnknown]; n != 1 {
			t.Errorf("%d targets of unknown freshness are counted", n)
		}
	})
}

// An exporter that was away and an interval that is changed are followed within an
// interval, a counter that begins again within six.
func TestFreshAfterRestarts(t *testing.T) {
	d := &fakeDCGM{interval: 5 * time.Second, gpus: 1}
	within(t, d, func(x *dcgmRig) {
		time.Sleep(time.Minute)
		d.set(func() { d.down = true })
		time.Sleep(70 * time.Second)
		x.sees("down", 10*time.Second, absent, 0)
		d.set(func() { d.down = false })
		time.Sleep(12 * time.Second) // the back-off is 5 s
		x.sees("up", time.Minute, 7*time.Second, 0)
		d.set(func() { d.reset = time.Now() })
		time.Sleep(31 * time.Second) // a lower counter is believed after six collections
		x.sees("reset", time.Minute, 7*time.Second, 0)
		d.set(func() { d.interval = 30 * time.Second })
		time.Sleep(65 * time.Second)
		x.sees("slower", 10*time.Minute, 32*time.Second, 0)
		d.set(func() { d.interval = time.Second })
		time.Sleep(35 * time.Second)
		x.sees("faster", time.Minute, 3*time.Second, 0)
		if st := x.state(); st.Interval > 2*time.Second {
			t.Errorf("interval %v", st.Interval)
		}
	})
}

// Labels that a tenant changes each second are no sign of life, and take
// nobody else's away.
func TestLabelsAreNoEvidence(t *testing.T) {
	d := &fakeDCGM{interval: 5 * time.Second, gpus: 2, labels: func(now time.Time) string { return fmt.Sprintf(`,app="%d"`, now.Unix()) }}
	within(t, d, func(x *dcgmRig) {
		time.Sleep(20 * time.Second)
		x.sees("another's labels change", 10*time.Minute, 7*time.Second, 1)
		d.set(func() { d.frozen = map[int]time.Time{0: time.Now(), 1: time.Now()} })
		time.Sleep(30 * time.Second)
		x.sees("frozen", 10*time.Minute, absent, 0, 1)
	})
}

// Devices that a page invents anew each time are never believed, and the memory for them
// is bounded.
func TestInventedDevicesAreNotBelieved(t *testing.T) {
	x := newReader(t, Target{Kind: DCGM})
	most := int64(0)
	for i := range 1000 {
		x.read(fmt.Sprintf("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{UUID=\"G%d\"} %[1]d\nDCGM_FI_DEV_GPU_UTIL{UUID=\"G%[1]d\"} 7\n", i+1))
		most = max(most, x.r.page.Size())
	}
	if st := x.store.Stats(); most > 40<<10 || st.Samples != 0 {
		t.Errorf("%d bytes are remembered, %d samples", most, st.Samples)
	}
}

// A page that says when it was collected is believed, as it was before.
func TestOwnStampsGoBefore(t *testing.T) {
	x := newReader(t, Target{Kind: DCGM})
	for range 60 {
		x.read(fmt.Sprintf("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{UUID=\"G0\",namespace=\"ns\",pod=\"p\"} 5 %d\nDCGM_FI_DEV_GPU_UTIL{UUID=\"G0\",namespace=\"ns\",pod=\"p\"} 7 %[1]d\n",
			x.now.Add(time.Second).UnixMilli()))
		x.want("p", gpu.GPUUtil, 7)
	}
	if st := x.r.state; st.Freshness != page.FreshByTimestamp {
		t.Errorf("state %+v", st)
	}
}

// Pages of real dcgm-exporters have an energy counter, or at least the power.
// GPUPILOT_CAPTURES names a folder with recorded ones.
func TestRealPagesTellTheirAge(t *testing.T) {
	dir := os.Getenv("GPUPILOT_CAPTURES")
	if dir == "" {
		t.Skip("GPUPILOT_CAPTURES is not set")
	}
	files, err := filepath.Glob(filepath.Join(dir, "dcgm", "*.prom"))
	if err != nil || len(files) == 0 {
		t.Fatal(err, len(files))
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		x := newReader(t, Target{Kind: DCGM})
		x.r.prepare(x.now)
		x.r.keep(text, x.now, x.now)
		t.Logf("%s: %s, out of range %d", filepath.Base(file), x.r.state.Freshness, x.r.state.OutOfRange)
		if strings.Contains(string(text), "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{") && x.r.state.Freshness != page.FreshByEnergy || x.r.state.OutOfRange != 0 {
			t.Errorf("%s: %+v", file, x.r.state)
		}
	}
}

// An agent says how often it collects: between two collections its values count,
// and its word on who holds a device goes before a dcgm-exporter's.
func TestValuesOfASlowAgentCount(t *testing.T) {
	for interval, want := range map[time.Duration]time.Duration{
		time.Second: 5 * time.Second, 30 * time.Second: 90 * time.Second, time.Hour: 5 * time.Second,
	} {
		x := newReader(t, Target{Kind: Agent, Labels: series.TargetLabels{Node: "n"}})
		x.read(fmt.Sprintf("gpupilot_collection_timestamp_seconds %d\ngpupilot_collection_interval_seconds %g\n"+
			"DCGM_FI_DEV_GPU_UTIL{UUID=\"G0\"} 60\ngpupilot_gpu_allocation_info{uuid=\"G0\",namespace=\"ns\",pod=\"p\",container=\"c\",replica=\"\"} 1\n",
			x.now.Unix()+1, interval.Seconds()))
		for age, counts := range map[time.Duration]bool{want - time.Second: true, want + time.Second: false} {
			h := series.Holder{Node: "n", Namespace: "ns", Pod: "p", Devices: 1}
			if r, ok := x.store.PodOn(h, gpu.GPUUtil, x.now.Add(age), 5*time.Second); ok != counts {
				t.Errorf("collected every %v: at an age of %v the value is %v, %v, want %v", interval, age, r.Value, ok, counts)
			}
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

// reader is a gpu.Reader whose GPUs have the number of their read as their
// utilisation.
type reader struct {
	mu           sync.Mutex
	devices      []gpu.Device
	err          error                    // of Devices
	starts       time.Duration            // how long the first call of Devices takes
	fails        map[string]error         // of Read
	hangs        map[string]chan struct{} // until closed, Read does not return
	takes        map[string]time.Duration
	reads        map[string]int
	enumerations []time.Time

	links     map[string]int // how often they were read
	judged    map[string]int // how often verdicts were asked for
	judge     atomic.Bool    // verdicts are wanted
	parts     []gpu.PartSnapshot
	partsErr  error
	partsHang chan struct{}

	onBus    []gpu.BusGPU
	offered  []gpu.DeviceID
	offerErr error
	offers   int // requests

	releases   []time.Time
	releaseErr error
}

// Release makes reads fail until the next enumeration, as libraries do.
func (r *reader) Release() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.releases = append(r.releases, time.Now())
	return r.releaseErr
}

func (r *reader) bus() []gpu.BusGPU {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.onBus
}

func (r *reader) offer(context.Context) ([]gpu.DeviceID, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.offers++
	return r.offered, r.offerErr
}

func gpus(n int) []gpu.Device {
	var out []gpu.Device
	for i := range n {
		out = append(out, gpu.Device{Index: i, Minor: i, UUID: fmt.Sprint("GPU-", i), Model: "fake"})
	}
	return out
}

func newReader(devices ...gpu.Device) *reader {
	return &reader{
		devices: devices, fails: map[string]error{}, hangs: map[string]chan struct{}{},
		takes: map[string]time.Duration{}, reads: map[string]int{}, links: map[string]int{}, judged: map[string]int{},
	}
}

func (r *reader) set(f func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f()
}

func (r *reader) Backend() string { return "fake" }

func (r *reader) Devices() ([]gpu.Device, error) {
	r.mu.Lock()
	starts := r.starts
	r.starts = 0
	r.mu.Unlock()
	time.Sleep(starts) // the bubble's clock
	r.mu.Lock()
	defer r.mu.Unlock()
	r.enumerations = append(r.enumerations, time.Now())
	return r.devices, r.err
}

func (r *reader) Read(uuid string, _ gpu.FieldSet, v *gpu.Values) error {
	r.mu.Lock()
	hang, takes := r.hangs[uuid], r.takes[uuid]
	r.mu.Unlock()
	if hang != nil {
		<-hang
	}
	time.Sleep(takes) // the bubble's clock: a driver that takes its time
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.fails[uuid]; err != nil {
		return err
	}
	r.reads[uuid]++
	v.Reset()
	v.Set(gpu.GPUUtil, float64(r.reads[uuid]))
	return nil
}

func (r *reader) XIDs(uuid string) []gpu.XIDCount {
	if uuid == "GPU-0" {
		return []gpu.XIDCount{{Code: 79, Count: 1}}
	}
	return nil
}

func (r *reader) ReadParts(_ gpu.FieldSet, keep func(*gpu.Part) bool) ([]gpu.PartSnapshot, error) {
	r.mu.Lock()
	hang := r.partsHang
	r.mu.Unlock()
	if hang != nil {
		<-hang
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(r.parts), func(p gpu.PartSnapshot) bool { return !keep(&p.Part) }), r.partsErr
}

func (r *reader) Links(uuid string) (gpu.Links, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.links[uuid]++
	return gpu.Links{Down: []int{r.links[uuid]}}, nil
}

func (r *reader) Health(uuid string) (*gpu.Verdicts, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.judged[uuid]++; r.judged[uuid] == 3 {
		return nil, gpu.ErrLost
	}
	return &gpu.Verdicts{gpu.WatchMem: {Health: gpu.HealthWarn}}, nil
}

func (r *reader) Close() error { return nil }

// published records what the loop published.
type published struct {
	snaps []*gpu.Snapshot
	times []time.Time
	stats []Stats
}

func (p *published) last() *gpu.Snapshot { return p.snaps[len(p.snaps)-1] }

// node is an agent that runs in a synctest bubble.
type node struct {
	*Agent
	r *reader

	mu      sync.Mutex
	fails   []error      // the ends that the loop asked for
	version string       // of the loaded driver
	rec     published    // what the loop writes
	log     bytes.Buffer // likewise

	out  published // as of the last pass
	logs string    // likewise
}

// Write makes the node its own log's writer.
func (n *node) Write(b []byte) (int, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.log.Write(b)
}

func (n *node) publish(s *gpu.Snapshot, st Stats, now time.Time) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.rec.snaps = append(n.rec.snaps, s)
	n.rec.times = append(n.rec.times, now)
	n.rec.stats = append(n.rec.stats, st)
}

// setDriver sets the version of the loaded driver.
func (n *node) setDriver(version string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.version = version
}

func (n *node) driverVersion() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.version
}

func (n *node) fail(err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.fails = append(n.fails, err)
}

// pass lets time go by, until everybody has done what was due.
func (n *node) pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
	n.mu.Lock()
	defer n.mu.Unlock()
	n.out, n.logs = n.rec, n.log.String()
}

// bubble runs f beside a running agent, in a bubble of its own clock.
func bubble(t *testing.T, cfg Config, r *reader, owners func(context.Context) ([]gpu.Allocation, error), f func(n *node)) {
	t.Helper()
	bubbleOver(t, cfg, r, r, owners, f)
}

// bubbleOver is bubble with what the agent sees of the reader.
func bubbleOver(t *testing.T, cfg Config, r *reader, seen gpu.Reader, owners func(context.Context) ([]gpu.Allocation, error), f func(n *node)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		n := &node{r: r}
		if cfg.Interval == 0 {
			cfg.Interval = time.Second
		}
		n.Agent = New(cfg, Deps{
			Reader: seen, Owners: owners, Publish: n.publish, Fail: n.fail, DriverVersion: n.driverVersion,
			Log: slog.New(slog.NewTextHandler(n, nil)), Metrics: http.NotFoundHandler(), WantsHealth: r.judge.Load,
			Bus: r.bus, Offered: r.offer,
		})
		ctx, cancel := context.WithCancel(t.Context())
		var run sync.WaitGroup
		run.Go(func() { n.Run(ctx) })
		n.pass(0)
		f(n)
		cancel()
		r.set(func() {
			if r.partsHang != nil {
				close(r.partsHang)
			}
			for _, c := range r.hangs {
				close(c)
			}
		})
		run.Wait()
	})
}

// util is the utilisation of a device in a snapshot, -1 if it has none.
func util(s *gpu.Snapshot, uuid string) float64 {
	for i := range s.Devices {
		if s.Devices[i].UUID == uuid {
			if v, ok := s.Devices[i].Values.Get(gpu.GPUUtil); ok {
				return v
			}
		}
	}
	return -1
}

func device(t *testing.T, s *gpu.Snapshot, uuid string) *gpu.DeviceSnapshot {
	t.Helper()
	for i := range s.Devices {
		if s.Devices[i].UUID == uuid {
			return &s.Devices[i]
		}
	}
	t.Fatalf("%s is not listed", uuid)
	return nil
}

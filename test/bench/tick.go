// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/gpupilot/gpupilot/internal/base/listen"
	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/gpu/names"
	"github.com/gpupilot/gpupilot/internal/gpu/sim"
	"github.com/gpupilot/gpupilot/internal/node/agent"
	"github.com/gpupilot/gpupilot/internal/node/exposition"
	"github.com/gpupilot/gpupilot/test/agentrig"
)

const (
	// tickEvery is longer than caches stay warm on a machine that does other
	// work, and shorter than the agent's second, to save time.
	tickEvery = 250 * time.Millisecond

	barRendering = 0  // allocations for one page
	barScraping  = 30 // allocations for one scrape, the HTTP server's included
)

// benchTick measures the agent's own part of a collection, in this process: the
// agent collects from a library whose answers cost nothing.
func benchTick(ctx context.Context, cfg config, out io.Writer) ([]Row, error) {
	var rows []Row
	for _, s := range shapes() {
		fmt.Fprintf(out, "tick: %s, %d collections\n", s.name, cfg.ticks)
		t, err := startTicking(ctx, s)
		if err != nil {
			return nil, err
		}
		r, last, err := t.rows(ctx, cfg, s)
		if err = errors.Join(err, t.stop()); err != nil {
			return nil, err
		}
		// Allocations are counted of all the process: the agent has ended.
		rows = append(rows, append(r, atMost("  allocations for a page", t.rendering(last), "", barRendering))...)
	}
	return rows, nil
}

// ticking is an agent within this process.
type ticking struct {
	exporter *exposition.Exporter
	config   exposition.Config
	zipped   *http.Request
	url      string

	cancel context.CancelFunc
	loops  sync.WaitGroup
	served error

	ticks chan *gpu.Snapshot // as they are published, and compressed
}

func startTicking(ctx context.Context, s shape) (*ticking, error) {
	reader, err := newStillReader(s)
	if err != nil {
		return nil, err
	}
	collectors, bad := exposition.ParseCollectors(string(collectorsFile))
	if len(bad) > 0 {
		return nil, fmt.Errorf("collectors: %w", bad[0])
	}
	t := &ticking{
		config: exposition.Config{Profile: names.Profile48, Collectors: collectors, Hostname: "gpu-node-0001", Kubernetes: true, VirtualGPUs: s.virtual},
		ticks:  make(chan *gpu.Snapshot),
	}
	t.exporter = exposition.New(t.config)
	if t.zipped, err = http.NewRequestWithContext(ctx, http.MethodGet, "/metrics", nil); err != nil {
		return nil, err
	}
	t.zipped.Header.Set("Accept-Encoding", "gzip")
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	t.url = "http://" + l.Addr().String()
	log := slog.New(slog.DiscardHandler)
	allocations := s.allocations()
	ctx, t.cancel = context.WithCancel(ctx)
	room := listen.New(agent.ClientLimits(16))
	a := agent.New(agent.Config{Interval: tickEvery, Node: "gpu-node-0001", Fields: t.exporter.Fields()}, agent.Deps{
		Reader: reader, Room: room, Metrics: t.exporter, Log: log,
		Owners:  func(context.Context) ([]gpu.Allocation, error) { return allocations, nil },
		Publish: func(s *gpu.Snapshot, st agent.Stats, now time.Time) { t.publish(ctx, s, st, now) },
	})
	t.loops.Go(func() { a.Run(ctx) })
	t.loops.Go(func() {
		t.served = listen.Serve(ctx, room.Of(l), a.Handler(), listen.Timeouts{Read: 10 * time.Second, Write: 30 * time.Second}, log)
	})
	return t, nil
}

// publish renders and compresses as a scrape after each collection would, and
// tells whoever waits for it.
func (t *ticking) publish(ctx context.Context, s *gpu.Snapshot, st agent.Stats, now time.Time) {
	t.exporter.Update(s, exposition.Stats(st), now)
	t.exporter.ServeHTTP(discard{http.Header{}}, t.zipped)
	select {
	case t.ticks <- s:
	case <-ctx.Done():
	}
}

func (t *ticking) stop() error {
	t.cancel()
	t.loops.Wait()
	return t.served
}

// rows measures, and gives the last collection. The first ones, by which memory
// is got and devices are enumerated, do not count.
func (t *ticking) rows(ctx context.Context, cfg config, s shape) (rows []Row, last *gpu.Snapshot, err error) {
	await := func(n int) error {
		for range n {
			select {
			case last = <-t.ticks:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		return nil
	}
	if err := await(4); err != nil {
		return nil, nil, err
	}
	before, err := agentrig.CPU(os.Getpid())
	if err != nil {
		return nil, nil, err
	}
	if err := await(cfg.ticks); err != nil {
		return nil, nil, err
	}
	after, err := agentrig.CPU(os.Getpid())
	if err != nil {
		return nil, nil, err
	}
	if owned := countOwners(last); owned != s.entities() {
		return nil, nil, fmt.Errorf("%d pods have a device, want %d", owned, s.entities())
	}
	scraping, err := t.scraping(await)
	if err != nil {
		return nil, nil, err
	}
	return []Row{
		calibrated(s.name+", CPU of a collection with gzip, library excluded", ms(after-before)/float64(cfg.ticks), "ms", s.barTick),
		atMost("  allocations for a scrape", scraping, "", barScraping),
	}, last, nil
}

// rendering counts the allocations of a page in steady state.
func (t *ticking) rendering(s *gpu.Snapshot) float64 {
	e := exposition.New(t.config)
	update := func() { e.Update(s, exposition.Stats{}, s.Time) }
	update()
	update() // there are two pages, in turn
	return testing.AllocsPerRun(100, update)
}

// scraping counts the allocations of a scrape over HTTP, between two
// collections.
func (t *ticking) scraping(await func(n int) error) (float64, error) {
	const scrapes = 50
	c, err := agentrig.NewScraper(t.url)
	if err != nil {
		return 0, err
	}
	defer c.Close()
	if _, err := c.Scrape(); err != nil { // the connection's own
		return 0, err
	}
	if err := await(1); err != nil {
		return 0, err
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range scrapes {
		if _, err := c.Scrape(); err != nil {
			return 0, err
		}
	}
	runtime.ReadMemStats(&after)
	return float64(after.Mallocs-before.Mallocs) / scrapes, nil
}

func countOwners(s *gpu.Snapshot) int {
	n := 0
	for i := range s.Devices {
		n += len(s.Devices[i].Owners)
	}
	return n
}

// allocations are the shape's grants as the kubelet's client gives them.
func (s shape) allocations() []gpu.Allocation {
	var out []gpu.Allocation
	for _, g := range s.grants() {
		out = append(out, gpu.Allocation{
			Resource: g.Resource, DeviceID: g.DeviceID, Owner: gpu.Owner{Namespace: g.Namespace, Pod: g.Pod, Container: g.Container},
		})
	}
	return out
}

// stillReader gives what simulated GPUs once gave.
type stillReader struct {
	gpu.Reader // XIDs, and the end
	devices    []gpu.Device
	values     map[string]*gpu.Values
}

func newStillReader(s shape) (*stillReader, error) {
	simulated, err := sim.New(sim.Config{GPUs: gpus})
	if err != nil {
		return nil, err
	}
	whole, err := simulated.Devices()
	if err != nil {
		return nil, err
	}
	r := &stillReader{Reader: simulated, values: map[string]*gpu.Values{}}
	for _, d := range whole {
		v := &gpu.Values{}
		if err := simulated.Read(d.UUID, gpu.AllFields(), v); err != nil {
			return nil, err
		}
		for _, part := range s.parts(d) {
			r.devices = append(r.devices, part)
			r.values[part.UUID] = v
		}
	}
	return r, nil
}

// parts are the devices that have series of their own.
func (s shape) parts(d gpu.Device) []gpu.Device {
	if !s.mig {
		return []gpu.Device{d}
	}
	var out []gpu.Device
	for k := range instances {
		part := d
		part.UUID = fmt.Sprintf("MIG-%s/%d/0", d.UUID, 7+k)
		part.MIG = &gpu.MIG{ParentUUID: d.UUID, GPUInstance: 7 + k, ComputeInstance: 0, Profile: "1g.18gb"}
		out = append(out, part)
	}
	return out
}

// Devices are always the same.
func (r *stillReader) Devices() ([]gpu.Device, error) { return r.devices, nil }

// Read costs nothing but a copy.
func (r *stillReader) Read(uuid string, _ gpu.FieldSet, v *gpu.Values) error {
	*v = *r.values[uuid]
	return nil
}

// discard is a ResponseWriter that forgets.
type discard struct{ header http.Header }

func (d discard) Header() http.Header       { return d.header }
func (discard) WriteHeader(int)             {}
func (discard) Write(b []byte) (int, error) { return len(b), nil }

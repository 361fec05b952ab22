// SPDX-License-Identifier: Apache-2.0

package expo

import (
	"cmp"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/gpu/names"
)

// Config is what an Exporter shows, and how.
type Config struct {
	Profile      names.Profile
	Collectors   Collectors
	InvalidLines int     // of the collectors file
	Hostname     string  // the node's label; empty: none
	Kubernetes   bool    // label devices with their pods
	Containers   bool    // without Kubernetes: label devices with their containers
	OldNamespace bool    // uuid, pod_name, pod_namespace and container_name instead of UUID, pod, namespace and container
	VirtualGPUs  bool    // with Kubernetes: series for each container that shares a device, with a label vgpu
	Pods         bool    // pods are watched through the API server
	PodUID       bool    // a label pod_uid
	DashedModel  bool    // blanks in model names become dashes
	Self         bool    // metrics of the process
	Processes    bool    // the processes on devices are listed
	Relabel      Relabel // it was checked
	Version      string  // of the program
	Revision     string  // of its source

	// How far back DCGM_EXP_CLOCK_EVENTS_COUNT and DCGM_EXP_XID_ERRORS_COUNT
	// look; 0 stands for five minutes.
	ClockWindow, XIDWindow time.Duration
}

// defaultWindow is dcgm-exporter's.
const defaultWindow = 5 * time.Minute

func (c *Config) clockWindow() time.Duration { return cmp.Or(c.ClockWindow, defaultWindow) }
func (c *Config) xidWindow() time.Duration   { return cmp.Or(c.XIDWindow, defaultWindow) }

// Stats is what a collection knows beside its snapshot.
type Stats struct {
	Duration time.Duration // of the collection
	Errors   uint64        // failed reads and enumerations since the start
}

// totals are counts since the start, which a change of collectors leaves alone.
type totals struct {
	outOfRange    uint64 // values that cannot be
	notNumbers    uint64 // values that are NaN or infinite
	claimants     uint64 // containers that claim a device and are too many
	duplicates    uint64 // devices and parts whose labels another one has
	reloads       uint64 // collectors that were taken in after the first ones
	failedReloads uint64 // those that were not
}

// Exporter renders snapshots and serves what it rendered last. It is an
// http.Handler.
type Exporter struct {
	pages  pages
	packer packer
	// scratches are *scratch that no request uses now.
	scratches sync.Pool

	asked    atomic.Bool // a page was asked for since the last Update
	unshown  atomic.Bool // waiting has what the current page does not show
	mu       sync.Mutex  // guards what follows
	r        *renderer
	history  history
	totals   totals
	waiting  collection // not rendered yet where unshown is true
	demanded int        // Updates in a row after which a page was asked for
}

// collection is what one Update brought.
type collection struct {
	snap  *gpu.Snapshot
	stats Stats
	at    time.Time
}

// eagerAfter is how many collections in a row must have been scraped for the
// next one to be rendered before it is. Who scrapes as often as the agent
// collects gets a page that is ready; who scrapes seldom does not pay for pages
// that nobody reads.
const eagerAfter = 2

// New makes an Exporter that has nothing to show until its first Update.
func New(cfg Config) *Exporter {
	e := &Exporter{history: history{clockWindow: cfg.clockWindow(), xidWindow: cfg.xidWindow()}}
	e.r = newRenderer(&cfg, &e.history, &e.totals)
	return e
}

// Fields is the set of fields that the exporter shows something of.
func (e *Exporter) Fields() gpu.FieldSet {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.r.cfg.Collectors.Fields().Union(physicalFields())
}

// WantsHealth says whether the exporter shows the library's verdicts on GPUs.
func (e *Exporter) WantsHealth() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.ContainsFunc(e.r.cfg.Collectors.Metrics, func(c Collector) bool { return c.Exp == HealthState })
}

// Reconfigure shows other collectors from the next Update on. What was counted
// stays.
func (e *Exporter) Reconfigure(c Collectors, invalidLines int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.show() // the last collection was read for the collectors from before
	cfg := *e.r.cfg
	cfg.Collectors, cfg.InvalidLines = c, invalidLines
	e.r = newRenderer(&cfg, &e.history, &e.totals)
	e.totals.reloads++
}

// ReloadFailed counts collectors that could not be read; those from before
// stay.
func (e *Exporter) ReloadFailed() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.totals.failedReloads++
}

// Update takes in a collection as of now; scrapes get it from here on. It is
// rendered now where scrapes come as often as collections, else by the first
// scrape. Update is called by one goroutine, and nobody changes s after it.
func (e *Exporter) Update(s *gpu.Snapshot, st Stats, now time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.history.update(s, now)
	e.waiting = collection{s, st, now}
	e.unshown.Store(true)
	if e.asked.Swap(false) {
		e.demanded = min(e.demanded+1, eagerAfter)
	} else {
		e.demanded = 0
	}
	if e.demanded == eagerAfter {
		e.show()
	}
}

// show renders what waits; the caller holds e.mu.
func (e *Exporter) show() {
	if !e.unshown.Load() {
		return
	}
	p := e.pages.spare()
	e.r.render(p, e.waiting.snap, e.waiting.stats, e.waiting.at)
	e.pages.publish(p)
	e.waiting = collection{}
	e.unshown.Store(false)
}

// current is the page of the last collection, nil before the first. It stays as
// it is until it is released.
func (e *Exporter) current() *page {
	e.asked.Store(true)
	if e.unshown.Load() {
		e.mu.Lock()
		e.show()
		e.mu.Unlock()
	}
	return e.pages.acquire()
}

// SPDX-License-Identifier: Apache-2.0

package exposition

import (
	"cmp"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/gpu/names"
)

// Config selects what an Exporter shows.
type Config struct {
	Profile      names.Profile
	Collectors   Collectors
	InvalidLines int          // of the collectors file
	Hostname     string       // the node's label; empty: none
	Kubernetes   bool         // label devices with their pods
	Containers   bool         // without Kubernetes: label devices with their containers
	OldNamespace bool         // uuid, pod_name, pod_namespace and container_name instead of UUID, pod, namespace and container
	VirtualGPUs  bool         // with Kubernetes: series for each container that shares a device, with a label vgpu
	Pods         bool         // pods are watched through the API server
	PodUID       bool         // a label pod_uid
	DashedModel  bool         // spaces in model names become dashes
	Further      bool         // also metrics of the process, and those of ours that no rule, dashboard or controller of ours reads
	Processes    bool         // the processes on devices are listed
	Relabel      Relabel      // must have passed its checks
	Version      string       // of the program
	Revision     string       // of its source
	Log          *slog.Logger // of the fields without a value; nil: no log

	// The windows of DCGM_EXP_CLOCK_EVENTS_COUNT and DCGM_EXP_XID_ERRORS_COUNT;
	// 0 is five minutes.
	ClockWindow, XIDWindow time.Duration
}

// defaultWindow is dcgm-exporter's.
const defaultWindow = 5 * time.Minute

func (c *Config) clockWindow() time.Duration { return cmp.Or(c.ClockWindow, defaultWindow) }
func (c *Config) xidWindow() time.Duration   { return cmp.Or(c.XIDWindow, defaultWindow) }

// Stats is the statistics of a collection that are not in its snapshot.
type Stats struct {
	Duration time.Duration // of the collection
	Errors   uint64        // failed reads and enumerations since the start
}

// totals are counts since the start. A change of collectors does not reset
// them.
type totals struct {
	outOfRange    uint64 // values outside the range of their field
	notNumbers    uint64 // values that are NaN or infinite
	claimants     uint64 // containers beyond maxClaimants that claim a device
	duplicates    uint64 // devices and parts with the same labels as another
	reloads       uint64 // successful reloads of the collectors
	failedReloads uint64 // failed reloads
}

// Exporter renders snapshots and serves the last page. It is an http.Handler.
type Exporter struct {
	pages  pages
	packer packer
	// scratches are idle *scratch.
	scratches sync.Pool

	asked    atomic.Bool // a page was requested since the last Update
	unshown  atomic.Bool // waiting is newer than the current page
	mu       sync.Mutex  // guards what follows
	r        *renderer
	history  history
	totals   totals
	waiting  collection // not rendered yet if unshown is true
	lacking  lacking
	demanded int // consecutive Updates after which a page was requested
}

// collection is the arguments of one Update.
type collection struct {
	snap  *gpu.Snapshot
	stats Stats
	at    time.Time
}

// eagerAfter is how many consecutive collections must have been scraped before
// the next is rendered in advance. A scraper that is as fast as the agent gets
// a finished page. For a slower one, pages that are never read are not
// rendered.
const eagerAfter = 2

// New returns an Exporter without a page until its first Update.
func New(cfg Config) *Exporter {
	e := &Exporter{history: history{clockWindow: cfg.clockWindow(), xidWindow: cfg.xidWindow()}}
	e.r = newRenderer(&cfg, &e.history, &e.totals)
	return e
}

// Fields returns the fields that the exporter needs.
func (e *Exporter) Fields() gpu.FieldSet {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.r.cfg.Collectors.Fields().Union(physicalFields(e.r.cfg))
}

// Passed lists the fields of the collectors that are not in the gpu package's table.
func (e *Exporter) Passed() []gpu.FieldID {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.r.cfg.Collectors.Passed()
}

// WantsHealth reports whether the exporter shows the library's verdicts on
// GPUs.
func (e *Exporter) WantsHealth() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.ContainsFunc(e.r.cfg.Collectors.Metrics, func(c Collector) bool { return c.Exp == HealthState })
}

// Reconfigure replaces the collectors from the next Update on. Counters keep
// their values.
func (e *Exporter) Reconfigure(c Collectors, invalidLines int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.show() // the last collection has the fields of the old collectors
	cfg := *e.r.cfg
	cfg.Collectors, cfg.InvalidLines = c, invalidLines
	e.r = newRenderer(&cfg, &e.history, &e.totals)
	e.totals.reloads++
	e.lacking = lacking{}
}

// ReloadFailed counts a reload that failed; the last collectors stay in force.
func (e *Exporter) ReloadFailed() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.totals.failedReloads++
}

// Update makes s the collection that scrapes get. Update renders it if every
// collection is scraped; otherwise the first scrape does. Update is for one
// goroutine, and the caller must not change s afterwards.
func (e *Exporter) Update(s *gpu.Snapshot, st Stats, now time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.history.update(s, now)
	e.lacking.look(&e.r.cfg.Collectors, s, now, e.r.cfg.Log)
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

// show renders the waiting collection; the caller holds e.mu.
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

// current returns the page of the last collection; nil before the first. The
// page does not change until it is released.
func (e *Exporter) current() *page {
	e.asked.Store(true)
	if e.unshown.Load() {
		e.mu.Lock()
		e.show()
		e.mu.Unlock()
	}
	return e.pages.acquire()
}

// SPDX-License-Identifier: Apache-2.0

package expo

import (
	"sync"
	"time"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

// Config is what an Exporter shows, and how.
type Config struct {
	Profile      Profile
	Collectors   Collectors
	InvalidLines int    // of the collectors file
	Hostname     string // the node's label; empty: none
	Kubernetes   bool   // label devices with their pods
	Version      string // of the program
	Revision     string // of its source
}

// Stats is what a collection knows beside its snapshot.
type Stats struct {
	Duration time.Duration // of the collection
	Errors   uint64        // failed reads and enumerations since the start
}

// Exporter renders snapshots and serves what it rendered last. It is an
// http.Handler.
type Exporter struct {
	cfg    Config
	r      *renderer
	pages  pages
	packer packer
	byName map[string]int // families by their names
	// scratches are *scratch that no request uses now.
	scratches sync.Pool
}

// New makes an Exporter that has nothing to show until its first Update.
func New(cfg Config) *Exporter {
	e := &Exporter{cfg: cfg, byName: map[string]int{}}
	e.r = newRenderer(&e.cfg)
	for i, f := range e.r.families {
		e.byName[f.name] = i
	}
	return e
}

// Fields is the set of fields that the exporter shows.
func (e *Exporter) Fields() gpu.FieldSet { return e.cfg.Collectors.Fields() }

// Update renders s as of now; scrapes get it from here on. It is called by one
// goroutine and does not keep s.
func (e *Exporter) Update(s *gpu.Snapshot, st Stats, now time.Time) {
	p := e.pages.spare()
	e.r.render(p, s, st, now)
	e.pages.publish(p)
}

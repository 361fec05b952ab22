// SPDX-License-Identifier: Apache-2.0

package series

import (
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

// Config bounds a Store. Zero values take the defaults.
type Config struct {
	Span     time.Duration // how far back samples are kept; 10 min
	Interval time.Duration // the least time between two stamps of a target; 1 s. Span/Interval is the most slots of a target
	Rate     time.Duration // the span over which a counter's rate is taken; 15 s

	MaxSeries int   // over all targets, more are not stored; 1,048,576
	MaxBytes  int64 // of samples; windows stop growing here, at a minute's worth of slots or more; 512 MiB
}

func (c Config) withDefaults() Config {
	if c.Span <= 0 {
		c.Span = 10 * time.Minute
	}
	if c.Interval <= 0 {
		c.Interval = time.Second
	}
	if c.Rate <= 0 {
		c.Rate = 15 * time.Second
	}
	if c.MaxSeries <= 0 {
		c.MaxSeries = 1 << 20
	}
	if c.MaxBytes <= 0 {
		c.MaxBytes = 512 << 20
	}
	return c
}

// Stats meters a Store. The drops are counted since the start.
type Stats struct {
	Targets int
	Series  int   // that have a column now
	Samples int64 // values stored since the start
	Bytes   int64 // of the rings
	Short   int   // targets whose window MaxBytes keeps shorter than Span

	Repeated  uint64 // scrapes dropped because their stamp did not advance
	Rewound   uint64 // windows emptied because a target's clock went back
	Unknown   uint64 // points dropped because their Ref was not (any more) of the target
	Overflown uint64 // series refused because of MaxSeries
}

// TargetLabels are a target's labels as Prometheus would give them, and for a
// pod's own exposition which pod it is.
type TargetLabels struct {
	Node     string
	Instance string
	Job      string

	Namespace string // of the pod whose own metrics these are; empty for an exporter of GPUs
	Pod       string

	// Rank orders the exporters of one node: while one with a lower rank says
	// which pods hold devices, those with a higher rank only add values.
	Rank uint8
}

// Store holds the windows of all targets. Its methods are safe for concurrent use.
type Store struct {
	cfg Config

	mu      sync.RWMutex // targets, pods; taken after a Target's mu, never before it while held
	targets map[string]*Target
	pods    map[podKey]*podEntry
	nodes   map[string][]*Target // exporters of GPUs, by node
	moves   int                  // changes of owners until all pods are pruned: as many as there were pods, and some

	series, bytes, samples               atomic.Int64
	repeated, rewound, unknown, overflow atomic.Uint64
}

type podKey struct{ namespace, pod string }

// podEntry is what the store knows of one pod: where it holds devices and
// where its own metrics come from.
type podEntry struct {
	tenures []tenure
	targets []*Target
}

// New makes an empty store.
func New(cfg Config) *Store {
	return &Store{
		cfg:     cfg.withDefaults(),
		targets: map[string]*Target{},
		pods:    map[podKey]*podEntry{},
		nodes:   map[string][]*Target{},
	}
}

// Span is how far back the store keeps samples at most.
func (s *Store) Span() time.Duration { return s.cfg.Span }

// Target returns the target of this name; it makes it if it is new, and gives
// it these labels.
func (s *Store) Target(name string, labels TargetLabels) *Target {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.targets[name]
	if t != nil && t.labels == labels {
		return t
	}
	if t == nil {
		t = &Target{store: s, name: name}
		t.ids = map[string]uint32{}
		t.devices = map[string]*device{}
		s.targets[name] = t
	} else {
		s.unlinkTarget(t)
	}
	t.labels = labels
	if labels.Pod != "" {
		e := s.entry(podKey{labels.Namespace, labels.Pod})
		e.targets = append(e.targets, t)
	} else if labels.Node != "" {
		s.nodes[labels.Node] = append(s.nodes[labels.Node], t)
	}
	return t
}

// entry returns the pod's entry, new if need be. s.mu is held.
func (s *Store) entry(k podKey) *podEntry {
	e := s.pods[k]
	if e == nil {
		e = &podEntry{}
		s.pods[k] = e
	}
	return e
}

// unlinkTarget removes t from the entry of the pod whose metrics it carries, or
// from the list of its node's exporters. s.mu is held.
func (s *Store) unlinkTarget(t *Target) {
	node := t.labels.Node
	s.nodes[node] = slices.DeleteFunc(s.nodes[node], func(o *Target) bool { return o == t })
	if len(s.nodes[node]) == 0 {
		delete(s.nodes, node)
	}
	k := podKey{t.labels.Namespace, t.labels.Pod}
	if e := s.pods[k]; e != nil {
		e.targets = slices.DeleteFunc(e.targets, func(o *Target) bool { return o == t })
		s.dropIfEmpty(k, e)
	}
}

func (s *Store) dropIfEmpty(k podKey, e *podEntry) {
	if len(e.tenures) == 0 && len(e.targets) == 0 {
		delete(s.pods, k)
	}
}

// Drop forgets a target with its samples and its devices' owners. What its
// scraper still appends is ignored.
func (s *Store) Drop(name string) {
	s.mu.Lock()
	t := s.targets[name]
	if t != nil {
		delete(s.targets, name)
		s.unlinkTarget(t)
		t.dropped = true
	}
	s.mu.Unlock()
	if t != nil {
		t.close()
	}
}

// Targets lists the names of the targets, sorted.
func (s *Store) Targets() []string {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return slices.Sorted(maps.Keys(s.targets))
}

// Stats meters the store.
func (s *Store) Stats() Stats {
	s.mu.RLock()
	targets := slices.Collect(maps.Values(s.targets))
	s.mu.RUnlock()
	st := Stats{
		Targets: len(targets),
		Series:  int(s.series.Load()), Samples: s.samples.Load(), Bytes: s.bytes.Load(),
		Repeated: s.repeated.Load(), Rewound: s.rewound.Load(),
		Unknown: s.unknown.Load(), Overflown: s.overflow.Load(),
	}
	for _, t := range targets {
		if t.isShort() {
			st.Short++
		}
	}
	return st
}

// Sample is a value and when it was collected.
type Sample struct {
	At    time.Time
	Value float64
}

// FieldSample is the value of one field.
type FieldSample struct {
	Field gpu.FieldID
	Sample
}

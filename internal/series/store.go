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

	// MaxBytes bounds all that targets take: samples, series, names, owners and
	// what their writers account for. Where it does not suffice, the largest
	// targets give up memory first; 512 MiB.
	MaxBytes int64
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
	if c.MaxBytes <= 0 {
		c.MaxBytes = 512 << 20
	}
	return c
}

// slots is the number of slots of a whole window.
func (c *Config) slots() int { return int(c.Span/c.Interval) + 1 }

// honest is the size that no target has to give up while another one is larger:
// 8 GPUs with 40 fields, half of them counters, a whole window, a quarter more
// for spare columns, and its writer's.
func (c *Config) honest() int64 {
	const series, writer = 8 * 40, 128 << 10
	slots := int64(c.slots())
	return (slots*(8+6*series)+series*(serieBytes+fieldBytes))*5/4 + writer
}

// Stats meters a Store. The drops are counted since the start.
type Stats struct {
	Targets int
	Series  int   // that have a column now
	Samples int64 // values stored since the start
	Bytes   int64 // of the samples
	Memory  int64 // of all that MaxBytes bounds
	Limit   int64 // MaxBytes
	Short   int   // targets whose window the memory limit keeps shorter than Span
	Limited int   // targets that were refused something within the last minute, or are short

	Repeated uint64 // scrapes dropped because their stamp did not advance
	Rewound  uint64 // windows emptied because a target's clock went back
	Unknown  uint64 // points dropped because their Ref was not (any more) of the target

	Refused [NumRefused]uint64 // by Refused
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
//
// Locks are taken in this order, and of each kind one at a time: squeezing, mu,
// a Target's mu; then an index's or the list of limited targets'.
type Store struct {
	cfg Config
	ledger
	index *podIndex
	nodes nodeIndex

	squeezing sync.Mutex
	mu        sync.RWMutex // targets, groups
	targets   map[string]*Target
	groups    map[string]*group // of pods' own expositions, by namespace

	series, samples            atomic.Int64
	repeated, rewound, unknown atomic.Uint64
	refused                    [NumRefused]atomic.Uint64
	limited                    limitedList
}

// New makes an empty store.
func New(cfg Config) *Store {
	s := &Store{
		cfg:     cfg.withDefaults(),
		index:   newPodIndex(),
		targets: map[string]*Target{},
		groups:  map[string]*group{},
		nodes:   nodeIndex{targets: map[string][]*Target{}},
	}
	s.ledger.init(s.cfg.MaxBytes)
	s.limited.targets = map[*Target]struct{}{}
	return s
}

// Span is how far back the store keeps samples at most.
func (s *Store) Span() time.Duration { return s.cfg.Span }

// Target returns the target of this name; it makes it if it is new, and gives
// it these labels. Where the memory limit leaves no room for a new one, it
// returns one that is not in the store: its Append says ErrNoMemory.
func (s *Store) Target(name string, labels TargetLabels) *Target {
	t, ok := s.target(name, labels)
	if !ok {
		s.squeeze()
		t, ok = s.target(name, labels)
	}
	if !ok {
		s.refused[RefusedTarget].Add(1)
		t.closed, t.noMemory = true, true
	}
	s.relieve()
	return t
}

// target is Target; it is false where there is no room for a new one.
func (s *Store) target(name string, labels TargetLabels) (*Target, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.targets[name]
	if t != nil && t.labels == labels {
		return t, true
	}
	if t != nil {
		s.leaveGroup(t)
		s.label(t, labels, s.groupOf(labels))
		t.mu.Lock()
		defer t.mu.Unlock()
		n := t.charged.Load()
		t.group.bytes.Add(-n)
		t.group = t.pays
		t.group.bytes.Add(n)
		return t, true
	}
	t = &Target{
		store: s, name: name,
		ids: map[string]uint32{}, devices: map[string]*device{}, pods: map[podKey]*holding{},
	}
	t.group = s.groupOf(labels)
	if t.reserve(plain(t.size())) != granted {
		return t, false
	}
	s.targets[name] = t
	s.label(t, labels, t.group)
	return t, true
}

// groupOf is the group of a target with these labels. s.mu is held.
func (s *Store) groupOf(l TargetLabels) *group {
	if l.Pod == "" {
		return &group{}
	}
	g := s.groups[l.Namespace]
	if g == nil {
		g = &group{}
	}
	return g
}

// label gives a target its labels, its group and its pod. s.mu is held.
func (s *Store) label(t *Target, l TargetLabels, g *group) {
	t.labels, t.pays = l, g
	t.node.Store(&l.Node)
	t.rank.Store(uint32(l.Rank))
	if l.Pod != "" {
		s.groups[l.Namespace] = t.pays
		s.index.add(podKey{l.Namespace, l.Pod}, t, nil)
	} else if l.Node != "" {
		s.nodes.add(l.Node, t)
	}
	t.pays.targets++
}

// leaveGroup undoes label. s.mu is held.
func (s *Store) leaveGroup(t *Target) {
	if t.labels.Pod != "" {
		s.index.remove(podKey{t.labels.Namespace, t.labels.Pod}, t, true)
	} else {
		s.nodes.remove(t.labels.Node, t)
	}
	if t.pays.targets--; t.pays.targets == 0 && t.labels.Pod != "" {
		delete(s.groups, t.labels.Namespace)
	}
}

// Drop forgets a target with its samples and its devices' owners. What its
// scraper still appends is ignored.
func (s *Store) Drop(name string) {
	s.mu.Lock()
	t := s.targets[name]
	if t != nil {
		delete(s.targets, name)
		s.leaveGroup(t)
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
	n := len(s.targets)
	s.mu.RUnlock()
	st := Stats{
		Targets: n, Series: int(s.series.Load()), Samples: s.samples.Load(),
		Bytes: s.rings.Load(), Memory: s.total.Load(), Limit: s.limit,
		Repeated: s.repeated.Load(), Rewound: s.rewound.Load(), Unknown: s.unknown.Load(),
	}
	for i := range st.Refused {
		st.Refused[i] = s.refused[i].Load()
	}
	limited := s.limited.all()
	st.Limited = len(limited)
	for _, t := range limited {
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

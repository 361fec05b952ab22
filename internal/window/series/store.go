// SPDX-License-Identifier: Apache-2.0

package series

import (
	"hash/maphash"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/window/ledger"
	"github.com/gpupilot/gpupilot/internal/window/ring"
)

// Config is the limits of a Store. Zero values take the defaults.
type Config struct {
	Span     time.Duration // the length of the window; 10 min by default
	Interval time.Duration // the shortest time between two timestamps of a target, 1 s by default; a target has at most Span/Interval + 1 slots
	Rate     time.Duration // the time over which a counter's rate is computed; 15 s by default

	// MaxBytes limits the memory of all targets: samples, series, names, owners and
	// the bytes that their writers account for. If it does not suffice, the largest
	// targets lose memory first. 512 MiB by default.
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

// slots returns the number of slots of a full window.
func (c *Config) slots() int { return int(c.Span/c.Interval) + 1 }

// honest returns the usual size of a large exporter. No target has to shrink below it
// while another one is larger. It is 8 GPUs with 40 fields, half of them counters,
// for a full window, a quarter more for spare columns, and the writer's memory.
func (c *Config) honest() int64 {
	const series, writer = 8 * 40, 128 << 10
	slots := int64(c.slots())
	return (slots*(8+6*series)+series*(seriesBytes+fieldBytes))*5/4 + writer
}

// Stats are the figures of a Store. Counters are since the start.
type Stats struct {
	Targets int
	Series  int   // with a column now
	Samples int64 // values stored since the start
	Bytes   int64 // of the samples
	Memory  int64 // all bytes that MaxBytes limits
	Limit   int64 // MaxBytes
	Short   int   // targets whose window the memory limit makes shorter than Span
	Limited int   // targets with a refusal within the last minute, or a short window

	Repeated uint64 // scrapes dropped because their timestamp did not advance
	Rewound  uint64 // windows emptied because a target's clock was set back
	Unknown  uint64 // points dropped because their Ref was not, or no longer, valid

	Refused [NumRefused]uint64 // by Refused
}

// TargetLabels are a target's labels as in Prometheus, and the pod if the target is a
// pod's own metrics.
type TargetLabels struct {
	Node     string
	Instance string
	Job      string

	Namespace string // of the pod; empty for an exporter of GPUs
	Pod       string // empty for an exporter of GPUs

	// Rank orders the exporters of one node. While one of a lower rank assigns
	// devices to pods, those of a higher rank only add values.
	Rank uint8
}

// Store holds the windows of all targets. Its methods are safe for concurrent use.
//
// Locks are taken in this order, and only one of each kind at a time: rebalancing, mu,
// a Target's mu, and last the lock of an index or of the list of limited targets.
type Store struct {
	cfg    Config
	memory *ledger.Ledger
	index  *podIndex
	nodes  nodeIndex

	rebalancing sync.Mutex
	mu          sync.RWMutex // targets, groups
	targets     map[string]*Target
	groups      map[string]*group // of pods' own expositions, by namespace

	lineSeed                   maphash.Seed
	series, samples            atomic.Int64
	repeated, rewound, unknown atomic.Uint64
	refused                    [NumRefused]atomic.Uint64
	limited                    targetSet // with a recent refusal
	changed                    targetSet // whose exposures have changed since the last TakeChanged
}

// New returns an empty store.
func New(cfg Config) *Store {
	cfg = cfg.withDefaults()
	s := &Store{
		cfg: cfg, lineSeed: maphash.MakeSeed(),
		memory:  ledger.New(cfg.MaxBytes),
		index:   &podIndex{seed: maphash.MakeSeed()},
		targets: map[string]*Target{},
		groups:  map[string]*group{},
		nodes:   nodeIndex{targets: map[string][]*Target{}},
	}
	s.limited.targets = map[*Target]struct{}{}
	s.changed.targets = map[*Target]struct{}{}
	return s
}

// Span returns the length of a full window.
func (s *Store) Span() time.Duration { return s.cfg.Span }

// Target returns the target of this name, with these labels. It adds a new one if
// needed. If the memory limit has no room for a new one, it returns a target that is
// not in the store, whose Append returns ErrNoMemory.
func (s *Store) Target(name string, labels TargetLabels) *Target {
	t, ok := s.target(name, labels)
	if !ok {
		s.rebalance()
		t, ok = s.target(name, labels)
	}
	if !ok {
		s.refused[RefusedTarget].Add(1)
		t.closed = ErrNoMemory
	}
	s.rebalanceIfDue()
	return t
}

// target is Target. It returns false if there is no room for a new one.
func (s *Store) target(name string, labels TargetLabels) (*Target, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.targets[name]
	switch {
	case t == nil:
		t = &Target{store: s, name: name, account: account{store: s, group: s.groupOf(labels)}}
		t.holdings.target = t
		t.facts.setLabels(labels)
		if t.account.reserve(ledger.Plain(t.size())) != ledger.Granted {
			return t, false
		}
		s.targets[name] = t
	case *t.facts.labels.Load() == labels:
		return t, true
	default:
		s.leaveGroup(t)
		t.mu.Lock()
		t.account.move(s.groupOf(labels))
		t.mu.Unlock()
		t.facts.setLabels(labels)
	}
	s.joinGroup(t)
	s.changed.add(t)
	return t, true
}

// groupOf returns the group for a target with these labels. The caller holds s.mu.
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

// joinGroup adds a target to its group, and to the index that its labels name. The caller
// holds s.mu.
func (s *Store) joinGroup(t *Target) {
	l := t.facts.labels.Load()
	if l.Pod != "" {
		s.groups[l.Namespace] = t.account.group
		s.index.add(podKey{l.Namespace, l.Pod}, t, nil)
	} else if l.Node != "" {
		s.nodes.add(l.Node, t)
	}
	t.account.group.targets++
}

// leaveGroup undoes joinGroup. The caller holds s.mu.
func (s *Store) leaveGroup(t *Target) {
	l, g := t.facts.labels.Load(), t.account.group
	if l.Pod != "" {
		s.index.remove(podKey{l.Namespace, l.Pod}, t, true)
	} else {
		s.nodes.remove(l.Node, t)
	}
	if g.targets--; g.targets == 0 && g.paying.Load() == 0 && l.Pod != "" {
		delete(s.groups, l.Namespace)
	}
}

// Drop removes a target with its samples and its devices' owners. Later calls by its
// scraper have no effect.
func (s *Store) Drop(name string) {
	s.mu.Lock()
	t := s.targets[name]
	if t != nil {
		delete(s.targets, name)
		s.leaveGroup(t)
	}
	s.mu.Unlock()
	if t == nil {
		return
	}
	if t.close(); t.facts.labels.Load().Pod == "" { // an exporter, for which others may have paid
		s.mu.Lock()
		s.forgetPayers()
		s.mu.Unlock()
	}
}

// Stats returns the store's figures.
func (s *Store) Stats() Stats {
	s.mu.RLock()
	n := len(s.targets)
	s.mu.RUnlock()
	st := Stats{
		Targets: n, Series: int(s.series.Load()), Samples: s.samples.Load(),
		Bytes: s.memory.Rings(), Memory: s.memory.Total(), Limit: s.memory.Limit(),
		Repeated: s.repeated.Load(), Rewound: s.rewound.Load(), Unknown: s.unknown.Load(),
	}
	for i := range st.Refused {
		st.Refused[i] = s.refused[i].Load()
	}
	limited := s.limited.all()
	st.Limited = len(limited)
	for _, t := range limited {
		if t.asLimited().Short {
			st.Short++
		}
	}
	return st
}

// WholeBytes returns what MaxBytes will limit once all windows are as long as Span, and
// with the labels of so many more lines of pages.
func (s *Store) WholeBytes(lines int) int64 {
	slots := s.cfg.slots()
	n := s.memory.Total() + int64(lines)*(exposureBytes+usualLabels+(seriesBytes+8*int64(slots))/2) // half of them have a series of their own
	targets, _ := s.accounts()
	for _, t := range targets {
		t.mu.RLock()
		n += int64(max(slots-t.columns.ring.Slots(), 0)) * t.columns.ring.PerSlot()
		t.mu.RUnlock()
	}
	return n
}

// usualLabels is the size of the labels of an exporter's line with a pod's names.
const usualLabels = 400

// Sample is a value with the time of its collection.
type Sample struct {
	At    time.Time
	Value float64
}

// sampleOf returns a value of a ring as a Sample.
func sampleOf(v ring.Stamped) Sample { return Sample{At: time.Unix(0, v.Stamp), Value: v.Value} }

// FieldSample is the value of one field.
type FieldSample struct {
	Field gpu.FieldID
	Sample
}

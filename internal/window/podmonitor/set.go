// SPDX-License-Identifier: Apache-2.0

package podmonitor

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	utiljson "k8s.io/apimachinery/pkg/util/json"

	"github.com/gpupilot/gpupilot/internal/base/excerpt"
	"github.com/gpupilot/gpupilot/internal/gpu"
)

// The bounds of the PodMonitors in use. Each costs memory for its regular expressions,
// and a comparison of the pods of its namespace at each discovery.
const (
	maxPerNamespace = 50
	maxInAll        = 5000
	maxSpecBytes    = 16 << 10 // of a spec, as JSON
)

// Set holds the PodMonitors of a cluster. The oldest ones have precedence: a new one
// never stops another. The fields are set before the first call.
type Set struct {
	Trusted func(namespace string) bool // whether PodMonitors of a namespace may select pods of others
	Changed func()                      // is called after each change; it must not block
	// Report is called by Current, PodsProblem and ReportAgain when the problem of a
	// PodMonitor changes; empty: it has none any more. It must not call the set.
	Report func(id, problem string)

	mu      sync.Mutex
	entries map[string]*entry
	changed bool
	current *List
}

// entry is an object. Only those in use are parsed. Of the others the text of the spec is
// kept.
type entry struct {
	namespace, name string
	uid             types.UID
	generation      int64
	created         time.Time
	spec            []byte // JSON

	parsed   bool
	monitor  *Monitor // nil: nothing of it can be used
	problems string   // of the object
	refusal  string   // why it is not used
	pods     string   // why some of its pods are not scraped
	podsAt   time.Time
	reported string
}

// podsEvery is the least time between two reports about the pods of a PodMonitor.
const podsEvery = time.Minute

// maxProblem bounds the text about one PodMonitor; an Event has at most 1 KiB.
const maxProblem = 900

// Put adds or replaces a PodMonitor.
func (s *Set) Put(u *unstructured.Unstructured) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.entries == nil {
		s.entries = map[string]*entry{}
	}
	id, e := ID(u.GetNamespace(), u.GetName()), newEntry(u)
	if old := s.entries[id]; old != nil {
		if old.uid == e.uid && old.generation == e.generation && e.generation != 0 {
			return // its status or its labels have changed
		}
		e.reported = old.reported
	}
	s.entries[id] = e
	s.change()
}

func newEntry(u *unstructured.Unstructured) *entry {
	e := &entry{
		namespace: u.GetNamespace(), name: u.GetName(), uid: u.GetUID(), generation: u.GetGeneration(), created: u.GetCreationTimestamp().Time,
	}
	var err error
	switch e.spec, err = json.Marshal(u.Object["spec"]); {
	case err != nil:
		e.parsed, e.problems = true, "spec cannot be read: "+err.Error()
	case len(e.spec) > maxSpecBytes:
		e.parsed, e.problems = true, fmt.Sprintf("spec has %d bytes of JSON, at most %d are read", len(e.spec), maxSpecBytes)
		e.spec = nil
	}
	return e
}

// parse reads the spec.
func (e *entry) parse(trusted bool) {
	u := &unstructured.Unstructured{Object: map[string]any{}}
	u.SetNamespace(e.namespace)
	u.SetName(e.name)
	u.SetCreationTimestamp(metav1.Time{Time: e.created})
	var spec any
	if err := utiljson.Unmarshal(e.spec, &spec); err == nil {
		u.Object["spec"] = spec
	}
	m, problems := Parse(u, trusted)
	e.parsed, e.monitor, e.problems = true, m, strings.Join(problems, "; ")
}

// Remove removes a PodMonitor.
func (s *Set) Remove(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.entries, id)
	s.change()
}

func (s *Set) change() {
	s.changed = true
	s.Changed()
}

// PodsProblem sets why some pods of a PodMonitor are not scraped; empty: all are. While
// pods come and go, a changed problem is reported once a minute.
func (s *Set) PodsProblem(id, problem string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.entries[id]
	if e == nil {
		return
	}
	e.pods = problem
	if now := time.Now(); problem == "" || now.Sub(e.podsAt) >= podsEvery {
		e.podsAt = now
		s.report(id, e)
	}
}

// Current returns the PodMonitors in use.
func (s *Set) Current() *List {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.current == nil || s.changed {
		s.changed = false
		s.current = s.admit()
		for id, e := range s.entries {
			s.report(id, e)
		}
	}
	return s.current
}

// ReportAgain reports all problems again, such as to a new leader, who records Events.
func (s *Set) ReportAgain() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, e := range s.entries {
		e.reported = ""
		s.report(id, e)
	}
}

// report reports the problem of a PodMonitor if it has changed.
func (s *Set) report(id string, e *entry) {
	text := excerpt.Of(cmp.Or(e.refusal, e.problems, e.pods), maxProblem)
	if text != e.reported {
		e.reported = text
		s.Report(id, text)
	}
}

// admit parses the oldest PodMonitors, and notes why the others are not used.
func (s *Set) admit() *List {
	all := make([]*entry, 0, len(s.entries))
	for _, e := range s.entries {
		all = append(all, e)
	}
	slices.SortFunc(all, func(a, b *entry) int {
		return cmp.Or(a.created.Compare(b.created), cmp.Compare(a.namespace, b.namespace), cmp.Compare(a.name, b.name))
	})
	out := &List{byNamespace: map[string][]*Monitor{}}
	used, total := map[string]int{}, 0
	for _, e := range all {
		ns := e.namespace
		e.refusal = ""
		switch {
		case used[ns] >= maxPerNamespace:
			e.refusal = fmt.Sprintf("not scraped: namespace %s has %d older PodMonitors, which is the limit", ns, maxPerNamespace)
		case total >= maxInAll:
			e.refusal = fmt.Sprintf("not scraped: there are %d older PodMonitors, which is the limit", maxInAll)
		}
		if e.refusal != "" {
			if e.monitor, e.pods = nil, ""; e.spec != nil {
				e.parsed, e.problems = false, ""
			}
			continue
		}
		used[ns]++
		total++
		if !e.parsed {
			e.parse(s.Trusted(ns))
		}
		if e.monitor != nil {
			out.add(e.monitor)
		}
	}
	return out
}

// List is the PodMonitors in use, oldest first. It does not change. A nil list is empty.
type List struct {
	all         []*Monitor
	byNamespace map[string][]*Monitor // that select pods of a namespace by its name
	everywhere  []*Monitor            // that select pods of all namespaces
}

func (l *List) add(m *Monitor) {
	l.all = append(l.all, m)
	if len(m.Namespaces) == 0 {
		l.everywhere = append(l.everywhere, m)
	}
	for _, ns := range m.Namespaces {
		l.byNamespace[ns] = append(l.byNamespace[ns], m)
	}
}

// All returns the PodMonitors, oldest first.
func (l *List) All() []*Monitor {
	if l == nil {
		return nil
	}
	return l.all
}

// Of returns the PodMonitors that select a pod: those that select its namespace by
// name, then those of all namespaces, both oldest first. None selects a pod whose labels
// were not read.
func (l *List) Of(pod *corev1.Pod) (out []*Monitor) {
	if l == nil {
		return nil
	}
	set := labels.Set(pod.Labels)
	if set.Has(gpu.UnreadLabels) {
		return nil
	}
	for _, list := range [][]*Monitor{l.byNamespace[pod.Namespace], l.everywhere} {
		for _, m := range list {
			if m.Selector.Matches(set) {
				out = append(out, m)
			}
		}
	}
	return out
}

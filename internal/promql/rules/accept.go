// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
)

// Source is a file or an object with rules.
type Source struct {
	ID string // unique, such as the file's path or PrometheusRule/namespace/name
	// Namespace limits what the rules read and record. Empty: all namespaces.
	Namespace string
	Created   time.Time // the older of two sources has precedence; zero for files
	Groups    []Group
}

// The limits of all rules together.
const (
	maxAllRules       = 5000
	maxNamespaceRules = 100
	// maxNamespaceBytes bounds the texts of a namespace's rules. What is parsed of them takes
	// up to thirty times as much.
	maxNamespaceBytes = 128 << 10
)

// acceptance collects the sources that can run together.
type acceptance struct {
	label    string // of a series with its namespace
	reserved func(metric string) bool
	sources  []*Source
	rules    int
	byNS     map[string]int
	bytes    map[string]int     // by namespace
	recorded map[string][]claim // by the metric's name
}

// claim is a rule that records a metric.
type claim struct {
	source *Source
	labels string // the rule's own labels, as text
	rule   *Rule
}

func newAcceptance(label string, reserved func(string) bool) *acceptance {
	return &acceptance{label: label, reserved: reserved, byNS: map[string]int{}, bytes: map[string]int{}, recorded: map[string][]claim{}}
}

// compareSources orders sources by precedence: those that speak for all namespaces
// first, then the older ones.
func compareSources(a, b *Source) int {
	limited := func(s *Source) int { return min(1, len(s.Namespace)) }
	return cmp.Or(cmp.Compare(limited(a), limited(b)), a.Created.Compare(b.Created), strings.Compare(a.ID, b.ID))
}

// add accepts a source, or returns what is wrong with it. Sources are added in the
// order of precedence, so that a tenant's source never makes another wrong.
func (a *acceptance) add(s *Source) error {
	n := 0
	for i := range s.Groups {
		n += len(s.Groups[i].Rules)
	}
	if s.Namespace != "" && a.byNS[s.Namespace]+n > maxNamespaceRules {
		return fmt.Errorf("too many rules: namespace %s would have %d; at most %d are evaluated", s.Namespace, a.byNS[s.Namespace]+n, maxNamespaceRules)
	}
	size := s.size()
	if s.Namespace != "" && a.bytes[s.Namespace]+size > maxNamespaceBytes {
		return fmt.Errorf("too large: the rules of namespace %s would have %d bytes; at most %d are evaluated", s.Namespace, a.bytes[s.Namespace]+size, maxNamespaceBytes)
	}
	if a.rules+n > maxAllRules {
		return fmt.Errorf("too many rules: there would be %d; at most %d are evaluated", a.rules+n, maxAllRules)
	}
	if err := a.claims(s); err != nil {
		return err
	}
	added := a.claim(s)
	if cycle := a.cycle(s); cycle != nil {
		for _, name := range added {
			a.recorded[name] = a.recorded[name][:len(a.recorded[name])-1]
		}
		return fmt.Errorf("the rules read their own results: %s", strings.Join(cycle, " reads "))
	}
	a.sources = append(a.sources, s)
	a.rules += n
	a.byNS[s.Namespace] += n
	a.bytes[s.Namespace] += size
	return nil
}

// size returns the bytes of the names, the expressions and the labels of a source.
func (s *Source) size() (n int) {
	for i := range s.Groups {
		n += len(s.Groups[i].Name)
		for j := range s.Groups[i].Rules {
			r := &s.Groups[i].Rules[j]
			n += len(r.Record) + len(r.Expr)
			for name, value := range r.Labels {
				n += len(name) + len(value)
			}
		}
	}
	return n
}

// claims checks that no metric of the source is recorded twice, and that a tenant
// records no metric of others.
func (a *acceptance) claims(s *Source) error {
	own := map[string]string{}
	for i := range s.Groups {
		g := &s.Groups[i]
		for j := range g.Rules {
			r := &g.Rules[j]
			if err := a.checkLabels(s, g, r); err != nil {
				return err
			}
			key := r.Record + labels.FromMap(r.Labels).String()
			if other, twice := own[key]; twice {
				return fmt.Errorf("two rules record %s with the same labels, in the groups %q and %q: remove one", r.Record, other, g.Name)
			}
			own[key] = g.Name
			if err := a.checkClaim(s, r); err != nil {
				return err
			}
		}
	}
	return nil
}

// checkLabels checks a rule of a limited source.
func (a *acceptance) checkLabels(s *Source, g *Group, r *Rule) error {
	if s.Namespace == "" {
		return nil
	}
	if ns, ok := r.Labels[a.label]; ok && ns != s.Namespace {
		return fmt.Errorf("group %q, rule %s: the label %s is %q; rules of this namespace record only %q, unless the operator adds it to --query-namespaces", g.Name, r.Record, a.label, ns, s.Namespace)
	}
	if a.reserved != nil && a.reserved(r.Record) {
		return fmt.Errorf("group %q: the rules of a namespace may not record %s, which is the name of a metric that is scraped: choose another name", g.Name, r.Record)
	}
	return nil
}

// checkClaim checks that no accepted rule records the same metric.
func (a *acceptance) checkClaim(s *Source, r *Rule) error {
	for _, c := range a.recorded[r.Record] {
		if c.source.Namespace != s.Namespace && c.source.Namespace != "" {
			continue // the series have another namespace
		}
		if c.source.Namespace != s.Namespace || c.labels == labels.FromMap(r.Labels).String() {
			return fmt.Errorf("%s is recorded by %s already: choose another name", r.Record, c.source.ID)
		}
	}
	return nil
}

// claim notes the metrics of a source, and returns their names.
func (a *acceptance) claim(s *Source) (added []string) {
	for i := range s.Groups {
		for j := range s.Groups[i].Rules {
			r := &s.Groups[i].Rules[j]
			a.recorded[r.Record] = append(a.recorded[r.Record], claim{s, labels.FromMap(r.Labels).String(), r})
			added = append(added, r.Record)
		}
	}
	return added
}

// cycle returns the metrics of a cycle among rules that includes one of the source;
// nil if there is none.
func (a *acceptance) cycle(s *Source) []string {
	for i := range s.Groups {
		for j := range s.Groups[i].Rules {
			r := &s.Groups[i].Rules[j]
			w := walk{a: a, seen: map[*Rule]bool{}, to: r}
			if path := w.from(s, r); path != nil {
				return path
			}
		}
	}
	return nil
}

// walk searches a way from a rule through what it reads back to the rule.
type walk struct {
	a    *acceptance
	seen map[*Rule]bool
	to   *Rule
}

// from returns the names on the way from r to the walk's rule, both included.
func (w *walk) from(s *Source, r *Rule) []string {
	if w.seen[r] {
		return nil
	}
	w.seen[r] = true
	for _, selector := range r.selectors {
		for name := range w.a.names(selector) {
			for _, c := range w.a.recorded[name] {
				if !visible(s, c.source) || contradicts(c.rule, selector) {
					continue
				}
				if c.rule == w.to {
					return []string{r.Record, name}
				}
				if rest := w.from(c.source, c.rule); rest != nil {
					return append([]string{r.Record}, rest...)
				}
			}
		}
	}
	return nil
}

// visible reports whether rules of one source can read results of the other.
func visible(reader, written *Source) bool {
	return reader.Namespace == "" || written.Namespace == "" || reader.Namespace == written.Namespace
}

// contradicts reports whether a rule's own labels exclude its results from a selector.
func contradicts(r *Rule, selector []*labels.Matcher) bool {
	for _, m := range selector {
		if v, ok := r.Labels[m.Name]; ok && !m.Matches(v) {
			return true
		}
	}
	return false
}

// names returns the recorded metrics that a selector can select.
func (a *acceptance) names(selector []*labels.Matcher) map[string]bool {
	out := map[string]bool{}
	if i := slices.IndexFunc(selector, isName); i >= 0 {
		if name := selector[i].Value; len(a.recorded[name]) > 0 {
			out[name] = true
		}
		return out
	}
	for name := range maps.Keys(a.recorded) {
		if !slices.ContainsFunc(selector, func(m *labels.Matcher) bool { return m.Name == model.MetricNameLabel && !m.Matches(name) }) {
			out[name] = true
		}
	}
	return out
}

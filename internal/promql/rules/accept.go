// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"cmp"
	"fmt"
	"iter"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"

	"github.com/gpupilot/gpupilot/internal/base/weight"
)

// Source is a file or an object with rules.
type Source struct {
	ID string // unique, such as the file's path or PrometheusRule/namespace/name
	// Namespace limits what the rules read and record. Empty: all namespaces.
	Namespace string
	Created   time.Time // the older of two sources has precedence; zero for files
	Groups    []Group
}

// The limits of all rules together, and of those of a namespace.
const (
	maxAllRules       = 5000
	maxNamespaceRules = 100
	// maxNamespaceBytes bounds the texts of a namespace's rules. What is parsed of them takes
	// up to thirty times as much.
	maxNamespaceBytes = 128 << 10
	// maxNamespaceCost bounds the sum of Rule.cost: what it takes to find out which rules
	// read which results.
	maxNamespaceCost = 1000
)

// acceptance collects the sources that can run together.
type acceptance struct {
	label    string // of a series with its namespace
	reserved func(metric string) bool
	sources  []*Source
	rules    int
	byNS     map[string]share
	recorded map[string]claims // by namespace
	all      claims            // of all namespaces
}

// share is what the rules of a namespace use of its limits.
type share struct{ rules, bytes, cost int }

// claims are rules by the metric that they record.
type claims map[string][]claim

// claim is a rule that records a metric.
type claim struct {
	source *Source
	labels string // the rule's own labels, as text
	rule   *Rule
}

func newAcceptance(label string, reserved func(string) bool) *acceptance {
	return &acceptance{label: label, reserved: reserved, byNS: map[string]share{}, recorded: map[string]claims{}, all: claims{}}
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
	own, n := a.byNS[s.Namespace], 0
	for i := range s.Groups {
		n += len(s.Groups[i].Rules)
		for j := range s.Groups[i].Rules {
			own.cost += s.Groups[i].Rules[j].cost()
		}
	}
	own.rules += n
	own.bytes += s.size()
	switch {
	case s.Namespace != "" && own.rules > maxNamespaceRules:
		return fmt.Errorf("too many rules: namespace %s would have %d; at most %d are evaluated", s.Namespace, own.rules, maxNamespaceRules)
	case s.Namespace != "" && own.bytes > maxNamespaceBytes:
		return fmt.Errorf("too large: the rules of namespace %s would have %d bytes; at most %d are evaluated", s.Namespace, own.bytes, maxNamespaceBytes)
	case a.rules+n > maxAllRules:
		return fmt.Errorf("too many rules: there would be %d; at most %d are evaluated", a.rules+n, maxAllRules)
	case s.Namespace != "" && own.cost > maxNamespaceCost:
		return fmt.Errorf("too many selectors: those of the rules of namespace %s would cost %d; at most %d is allowed. "+
			"A selector of a metric by its exact name costs 1, any other at least %d: name the metrics", s.Namespace, own.cost, maxNamespaceCost, namelessCost)
	}
	if err := a.claims(s); err != nil {
		return err
	}
	a.claim(s)
	if cycle := a.cycle(s); cycle != nil {
		a.unclaim(s)
		return fmt.Errorf("the rules read their own results: %s", strings.Join(cycle, " reads "))
	}
	a.sources = append(a.sources, s)
	a.rules += n
	a.byNS[s.Namespace] = own
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

// checkClaim checks that no accepted rule records the same metric. Series of other
// namespaces have another label.
func (a *acceptance) checkClaim(s *Source, r *Rule) error {
	own := labels.FromMap(r.Labels).String()
	for _, in := range a.visible(s) {
		for _, c := range in[r.Record] {
			if c.source.Namespace == "" && s.Namespace != "" || c.source.Namespace == s.Namespace && c.labels == own {
				return fmt.Errorf("%s is recorded by %s already: choose another name", r.Record, c.source.ID)
			}
		}
	}
	return nil
}

// claim notes the metrics of a source.
func (a *acceptance) claim(s *Source) {
	own := a.recorded[s.Namespace]
	if own == nil {
		own = claims{}
		a.recorded[s.Namespace] = own
	}
	for i := range s.Groups {
		for j := range s.Groups[i].Rules {
			r := &s.Groups[i].Rules[j]
			c := claim{s, labels.FromMap(r.Labels).String(), r}
			own[r.Record] = append(own[r.Record], c)
			a.all[r.Record] = append(a.all[r.Record], c)
		}
	}
}

// unclaim undoes the last call of claim.
func (a *acceptance) unclaim(s *Source) {
	for _, in := range []claims{a.recorded[s.Namespace], a.all} {
		for i := range s.Groups {
			for j := range s.Groups[i].Rules {
				name := s.Groups[i].Rules[j].Record
				if in[name] = in[name][:len(in[name])-1]; len(in[name]) == 0 {
					delete(in, name)
				}
			}
		}
	}
}

// visible returns the claims whose results rules of a source can read.
func (a *acceptance) visible(s *Source) []claims {
	if s.Namespace == "" {
		return []claims{a.all}
	}
	return []claims{a.recorded[s.Namespace], a.recorded[""]}
}

// cycle returns the metrics of a cycle among rules; nil if there is none. The accepted
// sources have none, so that it is enough to search from the new one.
func (a *acceptance) cycle(s *Source) []string {
	w := walk{a: a, seen: map[*Rule]bool{}}
	for i := range s.Groups {
		for j := range s.Groups[i].Rules {
			if cycle := w.from(s, &s.Groups[i].Rules[j]); cycle != nil {
				return cycle
			}
		}
	}
	return nil
}

// walk follows rules through what they read, each rule once.
type walk struct {
	a    *acceptance
	seen map[*Rule]bool // and whether it is on the path
	path []*Rule        // the way to the current rule
}

// from returns the metrics of a cycle that can be reached from a rule; nil: none.
func (w *walk) from(s *Source, r *Rule) []string {
	switch onPath, seen := w.seen[r]; {
	case onPath:
		var cycle []string
		for _, x := range append(w.path[slices.Index(w.path, r):], r) {
			cycle = append(cycle, x.Record)
		}
		return cycle
	case seen:
		return nil
	}
	w.seen[r], w.path = true, append(w.path, r)
	defer func() { w.seen[r], w.path = false, w.path[:len(w.path)-1] }()
	for _, selector := range r.selectors {
		for _, in := range w.a.visible(s) {
			for c := range in.selected(selector) {
				if cycle := w.from(c.source, c.rule); cycle != nil {
					return cycle
				}
			}
		}
	}
	return nil
}

// selected returns the rules whose results a selector can select.
func (all claims) selected(selector []*labels.Matcher) iter.Seq[claim] {
	return func(yield func(claim) bool) {
		send := func(list []claim) bool {
			for _, c := range list {
				if !contradicts(c.rule, selector) && !yield(c) {
					return false
				}
			}
			return true
		}
		if i := slices.IndexFunc(selector, isName); i >= 0 {
			send(all[selector[i].Value])
			return
		}
		for name, list := range all {
			if !slices.ContainsFunc(selector, func(m *labels.Matcher) bool { return isOfName(m) && !m.Matches(name) }) && !send(list) {
				return
			}
		}
	}
}

// contradicts reports whether a rule's own labels exclude its results from a selector.
// Regular expressions that are no lists of values count as if they matched: tenants write
// them and the values, and either may be long.
func contradicts(r *Rule, selector []*labels.Matcher) bool {
	for _, m := range selector {
		isRegexp := m.Type == labels.MatchRegexp || m.Type == labels.MatchNotRegexp
		if v, ok := r.Labels[m.Name]; ok && (!isRegexp || len(m.SetMatches()) > 0) && !m.Matches(v) {
			return true
		}
	}
	return false
}

func isOfName(m *labels.Matcher) bool { return m.Name == model.MetricNameLabel }

// namelessCost is the cost of a selector without a metric's exact name: each recorded
// metric is compared with it.
const namelessCost = 10

// cost returns what it costs to find the rules that a rule reads, in units of a selector
// with a metric's exact name. It is known before any work is done.
func (r *Rule) cost() (n int) {
	for _, selector := range r.selectors {
		if slices.ContainsFunc(selector, isName) {
			n++
			continue
		}
		n += namelessCost
		for _, m := range selector {
			if isOfName(m) {
				n += weight.Instructions(m.Value)
			}
		}
	}
	return n
}

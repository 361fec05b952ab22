// SPDX-License-Identifier: Apache-2.0

package queries

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/gpupilot/gpupilot/internal/window/series"
)

// tenant is a namespace with owners of queries.
type tenant struct {
	owners  map[Kind][]Owner
	granted map[Key][]asker
	refused map[Key]refusal
}

// asker is an owner of one query.
type asker struct {
	signal  bool
	every   time.Duration
	read    func(context.Context) (series.Sample, error)
	changed func()
}

// refusal is why a query is not evaluated, and whether it is a signal.
type refusal struct {
	signal bool
	share  bool // MetricQueries have used up their share, not the namespace its budget
}

// ask is one query of one owner.
type ask struct {
	Query
	owner *Owner
	kind  Kind
}

// shareOfMetricQueries returns the part of the budget that MetricQueries may use: three
// quarters, so that GPUAutoscalers have the rest for themselves.
func (s *Scheduler) shareOfMetricQueries() int {
	n := s.cfg.PerNamespace
	return max(1, n-(n+3)/4)
}

// share returns the queries of a tenant that are evaluated, with their askers, and those
// that are beyond its budget. s.mu is held.
func (s *Scheduler) share(t *tenant) (granted map[Key][]asker, refused map[Key]refusal) {
	asks := s.asksOf(t)
	granted, refused = map[Key][]asker{}, map[Key]refusal{}
	others := map[Key]bool{} // granted and not asked by a GPUAutoscaler
	for _, a := range asks {
		isSignal := a.kind == GPUAutoscaler
		if _, ok := granted[a.Key]; !ok {
			full := len(granted) >= s.cfg.PerNamespace
			if full || !isSignal && len(others) >= s.shareOfMetricQueries() {
				before := refused[a.Key]
				refused[a.Key] = refusal{signal: before.signal || isSignal, share: !full}
				continue
			}
			granted[a.Key] = nil
			others[a.Key] = true
		}
		if isSignal {
			delete(others, a.Key)
		}
	}
	for _, a := range asks {
		if list, ok := granted[a.Key]; ok {
			granted[a.Key] = append(list, asker{a.kind == GPUAutoscaler, cmp.Or(a.Every, Every), a.Read, a.owner.Changed})
			delete(refused, a.Key) // a MetricQuery had no room for it, a GPUAutoscaler has
		}
	}
	return granted, refused
}

// asksOf returns the queries of a tenant, those of the oldest owner first. PromQL without
// a backend is left out.
func (s *Scheduler) asksOf(t *tenant) (out []ask) {
	type owned struct {
		kind Kind
		*Owner
	}
	var owners []owned
	for kind, list := range t.owners {
		for i := range list {
			owners = append(owners, owned{kind, &list[i]})
		}
	}
	slices.SortFunc(owners, func(a, b owned) int {
		return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.kind, b.kind), cmp.Compare(a.Name, b.Name))
	})
	for _, o := range owners {
		for _, q := range o.Queries {
			if q.Read != nil || s.deps.Query != nil {
				out = append(out, ask{q, o.Owner, o.kind})
			}
		}
	}
	return out
}

// refusalMessage returns the message, for its author, about a query that is not
// evaluated.
func (s *Scheduler) refusalMessage(namespace string, r refusal) string {
	if r.share {
		return fmt.Sprintf("not evaluated: older MetricQueries of namespace %s already have %d different queries; the rest of the %d of --queries-per-namespace is for GPUAutoscalers",
			namespace, s.shareOfMetricQueries(), s.cfg.PerNamespace)
	}
	return fmt.Sprintf("not evaluated: older GPUAutoscalers and MetricQueries of namespace %s already have %d different queries, the limit of --queries-per-namespace",
		namespace, s.cfg.PerNamespace)
}

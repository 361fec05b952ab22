// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/base/excerpt"
	"github.com/gpupilot/gpupilot/internal/scale/policy"
)

// namespacedQuery is a query of one namespace.
type namespacedQuery struct {
	namespace string
	key       queryKey
}

// overLimitMessage returns the message, for its author, about a query beyond the limit
// of its namespace.
func (q *signalQueries) overLimitMessage(namespace string) string {
	return fmt.Sprintf("not evaluated: older GPUAutoscalers of namespace %s already have %d different queries, the limit of --queries-per-namespace",
		namespace, q.maxPerNamespace)
}

// limitQueries returns the queries to run for the query signals, parallel to sources.
// Its error names the field of each query that is not allowed.
func (q *signalQueries) limitQueries(a *v1alpha1.GPUAutoscaler, sources []policy.Source) ([]queryKey, error) {
	keys := make([]queryKey, len(sources))
	var errs field.ErrorList
	for i := range sources {
		if sources[i].Kind != policy.Query {
			continue
		}
		limited, trusted, err := q.c.deps.LimitQuery(a.Namespace, sources[i].PromQL)
		if err != nil {
			q.meter.rejected(err)
			path := field.NewPath("spec", "signals").Index(sources[i].Signal).Child("query", "promql")
			errs = append(errs, field.Invalid(path, excerpt.Of(sources[i].PromQL, maxDetail), err.Error()))
		}
		keys[i] = queryKey{scope: a.Namespace, promql: limited}
		if trusted && !q.c.ownGateway(&sources[i]) {
			keys[i].scope = ""
		}
	}
	return keys, errs.ToAggregate()
}

// sync starts the queries that autoscalers have gained, and stops those that they have
// lost.
func (q *signalQueries) sync(ctx context.Context) {
	if q.c.deps.Query == nil {
		return
	}
	wanted, refused := q.wantedQueries()
	q.mu.Lock()
	defer q.mu.Unlock()
	for r := range refused {
		if !q.overLimit[r] {
			q.meter.rejections.WithLabelValues("limit").Inc()
		}
	}
	q.overLimit = refused
	for key, x := range q.running {
		if wanted[key] == nil {
			x.cancel()
			delete(q.running, key)
		}
	}
	for key, askers := range wanted {
		x := q.running[key]
		if x == nil {
			x = q.start(ctx, key, askers[0].key.Namespace)
		}
		x.askers = askers
		x.namespace = x.namespaces()[0]
	}
	q.meter.forget(q.running)
}

// start starts to run a query. q.mu is held.
func (q *signalQueries) start(ctx context.Context, key queryKey, namespace string) *queryState {
	ctx, cancel := context.WithCancel(ctx)
	x := &queryState{cancel: cancel, namespace: namespace}
	q.running[key] = x
	q.c.running.Go(func() {
		defer cancel()
		q.run(ctx, key, x)
	})
	return x
}

// wantedQueries returns the queries to run, with their workloads, and the queries
// beyond the limit of their namespace. Older GPUAutoscalers have precedence, so that
// a new one never stops the query of another.
func (q *signalQueries) wantedQueries() (map[queryKey][]*workload, map[namespacedQuery]bool) {
	wanted, refused := map[queryKey][]*workload{}, map[namespacedQuery]bool{}
	distinct := map[string]map[queryKey]bool{} // by namespace
	for _, w := range q.askers() {
		p := w.plan.Load()
		if p == nil {
			continue
		}
		ns := w.key.Namespace
		if distinct[ns] == nil {
			distinct[ns] = map[queryKey]bool{}
		}
		for i := range p.Sources {
			key := p.queries[i]
			switch {
			case p.Sources[i].Kind != policy.Query:
			case !distinct[ns][key] && len(distinct[ns]) >= q.maxPerNamespace:
				refused[namespacedQuery{ns, key}] = true
			default:
				distinct[ns][key] = true
				wanted[key] = append(wanted[key], w)
			}
		}
	}
	return wanted, refused
}

// askers returns the workloads with queries, oldest first.
func (q *signalQueries) askers() []*workload {
	var out []*workload
	q.c.mu.RLock()
	for _, w := range q.c.workloads {
		if p := w.plan.Load(); p != nil && slices.ContainsFunc(p.Sources, func(s policy.Source) bool { return s.Kind == policy.Query }) {
			out = append(out, w)
		}
	}
	q.c.mu.RUnlock()
	slices.SortFunc(out, func(a, b *workload) int {
		return cmp.Or(
			a.object.Load().CreationTimestamp.Compare(b.object.Load().CreationTimestamp.Time),
			cmp.Compare(a.key.Namespace, b.key.Namespace), cmp.Compare(a.key.Name, b.key.Name))
	})
	return out
}

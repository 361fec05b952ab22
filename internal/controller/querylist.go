// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/policy"
)

// refusal is a query that is not asked for a namespace that has too many.
type refusal struct {
	namespace string
	key       queryKey
}

// tooMany is why a query is refused, for its author.
func (q *queries) tooMany(namespace string) string {
	return fmt.Sprintf("not asked: the older GPUAutoscalers of namespace %s have %d different queries, the most that are allowed (--queries-per-namespace)",
		namespace, q.most)
}

// limit are the queries that run for the plan's query signals, parallel to its
// sources. Its error names the field of a query that may not run.
func (q *queries) limit(a *v1alpha1.GPUAutoscaler, sources []policy.Source) ([]queryKey, error) {
	keys := make([]queryKey, len(sources))
	var errs field.ErrorList
	at := 0 // in the spec, where queries are in the order of their sources
	for i := range sources {
		if sources[i].Kind != policy.Query {
			continue
		}
		for a.Spec.Signals[at].Query == nil {
			at++
		}
		limited, trusted, err := q.c.deps.LimitQuery(a.Namespace, sources[i].PromQL)
		if err != nil {
			q.meter.rejected(err)
			path := field.NewPath("spec", "signals").Index(at).Child("query", "promql")
			errs = append(errs, field.Invalid(path, clip(sources[i].PromQL, maxStep), err.Error()))
		}
		keys[i] = queryKey{scope: a.Namespace, promql: limited}
		if trusted {
			keys[i].scope = ""
		}
		at++
	}
	return keys, errs.ToAggregate()
}

// follow asks what autoscalers ask from now on, and no more what they do not.
func (q *queries) follow(ctx context.Context) {
	if q.c.deps.Query == nil {
		return
	}
	wanted, refused := q.wanted()
	q.mu.Lock()
	defer q.mu.Unlock()
	for r := range refused {
		if !q.refused[r] {
			q.meter.rejections.WithLabelValues("limit").Inc()
		}
	}
	q.refused = refused
	for key, x := range q.asked {
		if wanted[key] == nil {
			x.cancel()
			delete(q.asked, key)
		}
	}
	for key, askers := range wanted {
		x := q.asked[key]
		if x == nil {
			x = q.ask(ctx, key, askers[0].key.Namespace)
		}
		x.askers = askers
		x.namespace = x.namespaces()[0]
	}
	q.meter.forget(q.asked)
}

// ask begins to ask a query. q.mu is held.
func (q *queries) ask(ctx context.Context, key queryKey, namespace string) *question {
	ctx, cancel := context.WithCancel(ctx)
	x := &question{cancel: cancel, namespace: namespace}
	q.asked[key] = x
	q.c.running.Go(func() {
		defer cancel()
		q.run(ctx, key, x)
	})
	return x
}

// wanted are the queries that are to be asked, with who asks, and those that
// exceed the limit of their namespace. The older GPUAutoscaler has precedence,
// so that a new one never takes a query from another.
func (q *queries) wanted() (map[queryKey][]*workload, map[refusal]bool) {
	wanted, refused := map[queryKey][]*workload{}, map[refusal]bool{}
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
			case !distinct[ns][key] && len(distinct[ns]) >= q.most:
				refused[refusal{ns, key}] = true
			default:
				distinct[ns][key] = true
				wanted[key] = append(wanted[key], w)
			}
		}
	}
	return wanted, refused
}

// askers are the workloads with queries, the oldest first.
func (q *queries) askers() []*workload {
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

// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"errors"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/base/excerpt"
	"github.com/gpupilot/gpupilot/internal/promql/queries"
	"github.com/gpupilot/gpupilot/internal/scale"
	"github.com/gpupilot/gpupilot/internal/scale/policy"
)

// Queries evaluates the query signals. *queries.Scheduler implements it.
type Queries interface {
	Set(kind queries.Kind, namespace string, owners []queries.Owner)
	Answer(namespace string, key queries.Key) queries.Answer
	Rejected(err error) // counts a query that LimitQuery does not allow
}

// errNoLimit is the error of all queries if Deps.LimitQuery is nil.
var errNoLimit = errors.New("queries cannot be limited to their namespace, so none runs")

// limitQueries returns the queries to run for the query signals, parallel to sources.
// Its error names the field of each query that is not allowed.
func (s *shared) limitQueries(a *v1alpha1.GPUAutoscaler, sources []policy.Source) ([]queries.Key, error) {
	keys := make([]queries.Key, len(sources))
	var errs field.ErrorList
	for i := range sources {
		if sources[i].Kind != policy.Query {
			continue
		}
		limited, trusted, err := s.deps.LimitQuery(a.Namespace, sources[i].PromQL)
		if err != nil {
			s.deps.Queries.Rejected(err)
			path := field.NewPath("spec", "signals").Index(sources[i].Signal).Child("query", "promql")
			errs = append(errs, field.Invalid(path, excerpt.Of(sources[i].PromQL, maxDetail), err.Error()))
		}
		keys[i] = queries.KeyOf(a.Namespace, limited, trusted && !s.ownGateway(&sources[i]))
	}
	return keys, errs.ToAggregate()
}

// askQueries hands the queries of all GPUAutoscalers to the scheduler.
func (c *Controller) askQueries() {
	asking := map[string][]queries.Owner{}
	c.mu.RLock()
	for key, w := range c.workloads {
		p := w.plan.Load()
		if p == nil {
			continue
		}
		o := queries.Owner{Name: key.Name, Created: w.object.Load().CreationTimestamp.Time, Changed: w.requestPass}
		for i := range p.Sources {
			if p.Sources[i].Kind == policy.Query {
				o.Queries = append(o.Queries, queries.Query{Key: p.queries[i], Every: max(queries.Every, c.cfg.Tick)})
			}
		}
		if len(o.Queries) > 0 {
			asking[key.Namespace] = append(asking[key.Namespace], o)
		}
	}
	c.mu.RUnlock()
	for namespace := range c.asking {
		if asking[namespace] == nil {
			c.deps.Queries.Set(queries.GPUAutoscaler, namespace, nil)
		}
	}
	for namespace, owners := range asking {
		c.deps.Queries.Set(queries.GPUAutoscaler, namespace, owners)
	}
	c.asking = asking
}

// totals returns the readings of the plan's queries, in the order of its signals; nil
// if it has none. problem is the reason why one of them has no new answer.
func (s *shared) totals(key types.NamespacedName, p *plan) (totals []scale.Reading, problem string) {
	for i := range p.Sources {
		if p.Sources[i].Kind != policy.Query {
			continue
		}
		if totals == nil {
			totals = make([]scale.Reading, len(p.Sources))
		}
		a := s.deps.Queries.Answer(key.Namespace, p.queries[i])
		totals[i] = scale.Reading{Value: a.Sample.Value, At: a.Sample.At, OK: !a.Evaluated.IsZero()}
		if a.Problem != "" {
			problem = "query " + p.Policy.Signals[i].Name + ": " + a.Problem
			if s.ownGateway(&p.Sources[i]) {
				if gateway := s.gatewayProblem(key); gateway != "" {
					problem = p.Policy.Signals[i].Name + ": " + gateway
				}
			}
		}
	}
	return totals, problem
}

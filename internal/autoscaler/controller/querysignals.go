// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"errors"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/base/excerpt"
	"github.com/gpupilot/gpupilot/internal/promql/queries"
	"github.com/gpupilot/gpupilot/internal/scale"
	"github.com/gpupilot/gpupilot/internal/scale/policy"
	"github.com/gpupilot/gpupilot/internal/scale/words"
	"github.com/gpupilot/gpupilot/internal/window/discovery"
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
// if it has none. problem is the reason why one of them has no new answer, and noRequests
// names one that counts as 0/0. A signal with a fallback does not count it.
func (s *shared) totals(key types.NamespacedName, spec []v1alpha1.Signal, p *plan) (totals []scale.Reading, problem, noRequests string) {
	for i := range p.Sources {
		if p.Sources[i].Kind != policy.Query {
			continue
		}
		if totals == nil {
			totals = make([]scale.Reading, len(p.Sources))
		}
		a := s.deps.Queries.Answer(key.Namespace, p.queries[i])
		totals[i] = scale.Reading{Value: a.Sample.Value, At: a.Sample.At, OK: !a.Evaluated.IsZero()}
		name := p.Policy.Signals[i].Name
		switch at := p.Sources[i].Signal; {
		case !a.NoRequests || a.Problem != "":
		case at < len(spec) && spec[at].Fallback != nil:
			totals[i].OK = false
			a.Problem = "the query returns NaN: 0/0, there are no requests, and the signal has a fallback: without one, 0/0 counts as 0"
		default:
			noRequests = "query " + name + ": 0/0, there are no requests: it counts as " + words.Quantity(a.Sample.Value, "")
		}
		if a.Problem != "" {
			problem = "query " + name + ": " + a.Problem
			if s.ownGateway(&p.Sources[i]) {
				if gateway := s.gatewayProblem(key); gateway != "" {
					problem = name + ": " + gateway
				}
			}
		}
	}
	return totals, problem, noRequests
}

// ownGateway reports whether a source is a gateway that this controller scrapes. Its
// query reads the workload's own namespace only, even if queries of that namespace may
// read all: a pod of another namespace may claim to be the gateway.
func (s *shared) ownGateway(src *policy.Source) bool {
	return src.Gateway != nil && s.cfg.Discovery.Gateways
}

// holdGateways has the series of the readers' gateways kept. Other queries may want more
// names than the windows keep.
func (s *shared) holdGateways(readers []discovery.Reader) {
	if s.deps.HoldSeries == nil || !s.cfg.Discovery.Gateways {
		return
	}
	var names []string
	for i := range readers {
		for j := range readers[i].Sources {
			if g := readers[i].Sources[j].Gateway; g != nil {
				names = append(names, g.Metrics...)
			}
		}
	}
	slices.Sort(names)
	if names = slices.Compact(names); !slices.Equal(names, s.held) {
		s.held = names
		s.deps.HoldSeries(names)
	}
}

// gatewayProblem returns why a workload's gateway cannot be read; empty: it answers, or
// has not been scraped yet.
func (s *shared) gatewayProblem(key types.NamespacedName) string {
	g := s.discovered.Load().Gateways[key]
	if g.Problem != "" {
		return g.Problem
	}
	for _, name := range g.Targets {
		if t, ok := s.failingTarget(name); ok && t.Error != "" {
			return fmt.Sprintf("the gateway at %s does not answer: %s", name, excerpt.Of(t.Error, maxDetail))
		}
	}
	return ""
}

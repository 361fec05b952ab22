// SPDX-License-Identifier: Apache-2.0

package aspect

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/scale"
	"github.com/gpupilot/gpupilot/internal/scale/facts"
	"github.com/gpupilot/gpupilot/internal/scale/policy"
)

// pair keeps the ratio of the replicas to those of a partner (spec.pair).
type pair struct {
	None
	fleet *Fleet
	with  *partner // of the last decision
}

func (x *pair) Prepare(p *Pass) {
	if x.with = x.fleet.Pairs.of(p.Key); x.with != nil {
		p.Policy.Pair, p.Observation.Partner = x.with.pair, x.with.wants
	}
}

func (x *pair) Decided(_ context.Context, p *Pass) {
	x.fleet.Pairs.publish(p.Key, &p.Policy, p.Decision, p.Plan.Actuation == v1alpha1.ActuationAdvise)
}

func (x *pair) Report(p *Pass) Part {
	out := Part{Unasked: p.Decision != nil && x.with == nil, Owns: []string{v1alpha1.ConditionPaired}}
	switch {
	case p.Decision == nil && p.Target != nil:
		x.fleet.Pairs.publishAsIs(p.Key, p.Target.Replicas, p.At)
	case p.Decision != nil && x.with != nil:
		out.Conditions = []metav1.Condition{x.with.condition(p.Decision)}
	}
	return out
}

// Pairs has the pairs of all GPUAutoscalers. The zero Pairs is empty. Its methods may be called
// concurrently.
type Pairs struct {
	mu    sync.Mutex
	pairs map[types.NamespacedName]policy.Pair // of every object; zero: it declares none
	named map[types.NamespacedName][]string    // the objects of the namespace that name one, sorted
	wants map[types.NamespacedName]scale.Reading
}

// maxMembers bounds the names in a message: a tenant's objects may all name one.
const maxMembers = 4

// Set takes over what a spec declares, or forgets the object.
func (x *Pairs) Set(key types.NamespacedName, p policy.Pair, gone bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.pairs == nil {
		x.pairs, x.named, x.wants = map[types.NamespacedName]policy.Pair{}, map[types.NamespacedName][]string{}, map[types.NamespacedName]scale.Reading{}
	}
	if before := x.pairs[key].With; before != "" {
		other := types.NamespacedName{Namespace: key.Namespace, Name: before}
		if i, found := slices.BinarySearch(x.named[other], key.Name); found {
			x.named[other] = slices.Delete(x.named[other], i, i+1)
		}
		if len(x.named[other]) == 0 {
			delete(x.named, other)
		}
	}
	if gone {
		delete(x.pairs, key)
		delete(x.wants, key)
		return
	}
	x.pairs[key] = p
	if p.With != "" {
		other := types.NamespacedName{Namespace: key.Namespace, Name: p.With}
		i, _ := slices.BinarySearch(x.named[other], key.Name)
		x.named[other] = slices.Insert(x.named[other], i, key.Name)
	}
}

// publish tells the partner what an object wants by its own signals, within its bounds. One that
// only advises has the replicas that it has.
func (x *Pairs) publish(key types.NamespacedName, p *scale.Policy, d *scale.Decision, advises bool) {
	n := min(max(d.Own, p.Min), d.Replicas)
	if advises {
		n = d.Current
	}
	x.publishAsIs(key, n, d.Time)
}

// publishAsIs tells the partner the replicas of an object that does not set any.
func (x *Pairs) publishAsIs(key types.NamespacedName, replicas int32, at time.Time) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if _, known := x.pairs[key]; known {
		x.wants[key] = scale.Reading{Value: float64(replicas), At: at, OK: true}
	}
}

// partner is what an object knows of its partner. nil: it has none.
type partner struct {
	pair    scale.Pair // zero: the pair has a problem, and does not apply
	wants   scale.Reading
	ratio   policy.Pair
	problem [2]string // reason and message
}

// of returns the partner of an object: the one that it names, or the one that names it.
func (x *Pairs) of(key types.NamespacedName) *partner {
	x.mu.Lock()
	defer x.mu.Unlock()
	mine := x.pairs[key]
	from := x.named[key]
	if mine.With == "" && len(from) == 0 {
		return nil
	}
	other := types.NamespacedName{Namespace: key.Namespace, Name: mine.With}
	p := &partner{ratio: mine}
	if mine.With == "" {
		other.Name = from[0]
		p.ratio = x.pairs[other]
	}
	theirs, exists := x.pairs[other]
	// A pair has one that names the other. Of more, some are told.
	members := slices.Concat(from[:min(len(from), maxMembers+1)], x.named[other][:min(len(x.named[other]), maxMembers+1)])
	if mine.With != "" && theirs.With != "" {
		members = append(members, other.Name)
	}
	switch {
	case !exists:
		p.problem = [2]string{v1alpha1.ReasonPairNotFound, fmt.Sprintf("there is no GPUAutoscaler %s in this namespace: its own signals decide", other.Name)}
	case len(members) > 1:
		slices.Sort(members)
		members = slices.Compact(members)
		more := ""
		if len(members) > maxMembers {
			members, more = members[:maxMembers], " and more"
		}
		p.problem = [2]string{v1alpha1.ReasonPairAmbiguous, fmt.Sprintf("a pair has two members, and one of them names the other. Here %s%s do so: its own signals decide", strings.Join(members, ", "), more)}
	case mine.With != "":
		p.pair, p.wants = scale.Pair{With: other.Name, PerPartner: mine.Least}, x.wants[other]
	default:
		p.pair, p.wants = scale.Pair{With: other.Name, Lower: true}, x.wants[other]
		if theirs.Most > 0 {
			p.pair.PerPartner = 1 / theirs.Most
		}
	}
	return p
}

// condition returns ConditionPaired of a decision. Its message has no numbers of the load,
// because each change of it is written.
func (p *partner) condition(d *scale.Decision) metav1.Condition {
	c := metav1.Condition{Type: v1alpha1.ConditionPaired, Status: metav1.ConditionFalse, Reason: p.problem[0], Message: p.problem[1]}
	if p.problem[0] != "" {
		return c
	}
	c.Status, c.Reason = metav1.ConditionTrue, v1alpha1.ReasonPairKept
	c.Message = fmt.Sprintf("with %s, %s", p.pair.With, p.ratio)
	for i := range d.Steps {
		if s := &d.Steps[i]; s.Rule == scale.RulePair && s.After > d.Replicas {
			c.Status, c.Reason = metav1.ConditionFalse, v1alpha1.ReasonPairBounded
			c.Message += ": a bound such as maxReplicas or the budget does not allow it"
		} else if _, unknown := s.Facts.(facts.PairUnknown); unknown {
			c.Status, c.Reason = metav1.ConditionUnknown, v1alpha1.ReasonPairUnknown
			c.Message += ": what that one wants is not known, so no replica is removed"
		}
	}
	return c
}

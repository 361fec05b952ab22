// SPDX-License-Identifier: Apache-2.0

package migrate

import (
	"fmt"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/replay/contender"
	"github.com/gpupilot/gpupilot/internal/scale"
	"github.com/gpupilot/gpupilot/internal/scale/policy"
)

// Policy returns the equivalent GPUAutoscaler for a replay. Queries that add up or average
// metrics of the simulated service are replaced by these metrics. Signals that the service
// does not have are left out, as in the replayed original, and so is a formula.
func (r *Result) Policy() (policy.Named, error) {
	c, err := policy.Compile(r.Object)
	if err != nil {
		return policy.Named{}, fmt.Errorf("%s: %w", r.Name, err)
	}
	for i := range c.Sources {
		if c.Sources[i].Kind == policy.Query {
			replaceQuery(&c, i)
		}
	}
	var signals []scale.Signal
	var sources []policy.Source
	for i, s := range c.Sources {
		if contender.Simulates(s) == nil {
			signals, sources = append(signals, c.Policy.Signals[i]), append(sources, s)
		}
	}
	c.Policy.Formula = nil // it is over the totals of queries, which are replaced or left out
	c.Policy.Signals, c.Sources = signals, sources
	c.Policy.Min = max(c.Policy.Min, 1) // nothing but a query can scale from zero
	return policy.Named{Compiled: c, Name: r.Name}, nil
}

// replaceQuery replaces signal i by the metrics of its query. It leaves a query that has
// no such form.
func replaceQuery(c *policy.Compiled, i int) {
	source, unit, mean, err := sourceOfQuery(c.Sources[i].PromQL)
	if err != nil || mean != (c.Policy.Signals[i].Type == scale.Value) {
		return // a mean is a Value, and a sum is compared per replica
	}
	old := c.Policy.Signals[i]
	signal := scale.Signal{Name: old.Name, Target: old.Target * unit, Aggregate: old.Aggregate}
	if source.Kind == policy.GPU {
		if signal, err = gpuSignal(source, signal); err != nil {
			return
		}
	}
	c.Policy.Signals[i], c.Sources[i] = signal, source
}

// smallest is a target that every field allows.
var smallest = resource.MustParse("1")

// gpuSignal returns the signal of a GPU's field, as the policy would compile it.
func gpuSignal(source policy.Source, s scale.Signal) (scale.Signal, error) {
	c, err := policy.Compile(&v1alpha1.GPUAutoscaler{Spec: v1alpha1.GPUAutoscalerSpec{MaxReplicas: 1, Signals: []v1alpha1.Signal{{
		GPU: &v1alpha1.GPUSignal{Metric: fmt.Sprint(source.Field)}, Target: &v1alpha1.Target{Value: smallest},
	}}}})
	if err != nil {
		return s, err
	}
	out := c.Policy.Signals[0]
	out.Name, out.Target = s.Name, s.Target
	return out, nil
}

// Entry returns the original for a replay.
func (r *Result) Entry() (contender.Entry, error) {
	e, err := contender.NewHPAObject(r.Peer)
	if err != nil && len(r.Unsimulated) > 0 {
		err = fmt.Errorf("%w: %s: %s", err, r.Unsimulated[0].Field, r.Unsimulated[0].Text)
	}
	return e, err
}

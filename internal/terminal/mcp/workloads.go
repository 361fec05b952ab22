// SPDX-License-Identifier: Apache-2.0

package mcp

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/url"
	"strconv"
	"time"

	"k8s.io/apimachinery/pkg/api/validate/content"

	"github.com/gpupilot/gpupilot/internal/autoscaler/explain"
	"github.com/gpupilot/gpupilot/internal/serve/webui"
	"github.com/gpupilot/gpupilot/internal/window/view"
)

// workload is a GPUAutoscaler with its target.
type workload struct {
	Namespace string   `json:"namespace"`
	Name      string   `json:"name"`
	Target    string   `json:"target,omitempty"`
	Advice    bool     `json:"adviceOnly,omitempty"`
	Min       *int32   `json:"minReplicas,omitempty"`
	Max       *int32   `json:"maxReplicas,omitempty"`
	Serving   *int32   `json:"serving,omitempty"`
	Starting  *int32   `json:"starting,omitempty"`
	Desired   *int32   `json:"desired,omitempty"`
	Problem   string   `json:"problem,omitempty"`
	Waiting   string   `json:"waiting,omitempty"`
	Override  string   `json:"override,omitempty"`
	Idle      string   `json:"idle,omitempty"`
	Schedules []string `json:"schedules,omitempty"`
	Rollout   bool     `json:"rolloutInProgress,omitempty"`
	Leaving   int32    `json:"drainingReplicas,omitempty"`
	Signals   []signal `json:"signals,omitempty"`
	Objective []string `json:"objectives,omitempty"`
	Why       string   `json:"why,omitempty"`
}

type signal struct {
	Name   string   `json:"name"`
	Value  *float64 `json:"value,omitempty"`
	Target *float64 `json:"target"`
	Unit   string   `json:"unit,omitempty"`
}

func workloadOf(w *view.Workload) workload {
	out := workload{
		Namespace: w.Namespace, Name: w.Name, Target: w.Kind + " " + w.Target, Advice: w.Actuation == "Advise", Min: &w.Min, Max: &w.Max,
		Problem: w.Problem, Waiting: w.Waiting, Override: w.Override, Idle: w.Idle, Schedules: w.Schedules, Rollout: w.Rollout, Leaving: w.Leaving,
	}
	for i := range w.Signals {
		s := &w.Signals[i]
		out.Signals = append(out.Signals, signal{s.Name, rounded(s.Value), rounded(&s.Target), s.Unit})
	}
	for i := range w.Objectives {
		out.Objective = append(out.Objective, w.Objectives[i].Sentence)
	}
	if d := w.Decision; d != nil {
		out.Serving, out.Starting, out.Desired, out.Why = &d.Serving, &d.Starting, &d.Replicas, d.Reason()
	}
	return out
}

type workloadsArguments struct {
	Search   string `json:"search,omitempty" jsonschema:"part of NAMESPACE/NAME"`
	Problems bool   `json:"problems,omitempty" jsonschema:"only workloads with a problem"`
	Offset   int    `json:"offset,omitempty" jsonschema:"number of workloads to leave out at the start, for the next part of a long list"`
}

func (t *tools) listWorkloads(ctx context.Context, in *workloadsArguments) (string, error) {
	query := url.Values{"q": {in.Search}, "offset": {strconv.Itoa(in.Offset)}, "limit": {"50"}}
	if in.Problems {
		query.Set("problem", "true")
	}
	var page webui.WorkloadPage
	if err := t.get(ctx, "workloads", query, &page); err != nil {
		return "", err
	}
	all := make([]workload, len(page.Workloads))
	for i := range page.Workloads {
		all[i] = workloadOf(&page.Workloads[i])
	}
	head := pageHead{page.Time.Truncate(time.Second), page.Total, page.Offset}
	return fit(head, listOf("workloads", all, page.Total-page.Offset))
}

// workloadArguments name a GPUAutoscaler.
type workloadArguments struct {
	Namespace string `json:"namespace" jsonschema:"namespace of the GPUAutoscaler"`
	Name      string `json:"name" jsonschema:"name of the GPUAutoscaler"`
}

type step struct {
	Rule   string `json:"rule"`
	Before int32  `json:"before"`
	After  int32  `json:"after"`
	Why    string `json:"why"`
}

type input struct {
	signal
	Replicas int32    `json:"replicasWithValue"`
	Age      *float64 `json:"ageSeconds"`
	Deciding bool     `json:"deciding,omitempty"`
}

func (t *tools) explain(ctx context.Context, in *workloadArguments) (string, error) {
	var d view.WorkloadDetail
	if err := t.get(ctx, "workload", url.Values{"namespace": {in.Namespace}, "name": {in.Name}}, &d); err != nil {
		return "", err
	}
	head := struct {
		Time     time.Time  `json:"time"`
		Workload workload   `json:"workload"`
		Decided  *time.Time `json:"decided,omitempty"`
		Rule     string     `json:"rule,omitempty"`
	}{Time: d.Time.Truncate(time.Second), Workload: workloadOf(&d.Workload)}
	objectives := head.Workload.Objective
	head.Workload.Signals, head.Workload.Objective = nil, nil // inputs and objectives are lists
	var steps []step
	var inputs []input
	if x := d.Workload.Decision; x != nil {
		head.Decided, head.Rule = &x.Time, string(x.Rule)
		for i := range x.Steps {
			s := &x.Steps[i]
			steps = append(steps, step{string(s.Rule), s.Before, s.After, s.Sentence})
		}
		for i := range x.Inputs {
			s := &x.Inputs[i]
			age := s.Age.Seconds()
			inputs = append(inputs, input{signal{s.Signal, rounded(s.Value), rounded(&s.Target), s.Unit}, s.Replicas, rounded(&age), s.Deciding})
		}
	}
	var notable []string
	for i := range d.Conditions {
		if c := &d.Conditions[i]; c.Notable {
			notable = append(notable, fmt.Sprintf("%s is %s (%s): %s", c.Type, c.Status, c.Reason, c.Message))
		}
	}
	return fit(head, listOf("steps", steps, 0), listOf("inputs", inputs, 0), listOf("whatWouldChangeIt", d.Changes, 0),
		listOf("objectives", objectives, 0), listOf("conditions", notable, 0), listOf("lastChanges", changesOf(d.Decisions), 0))
}

type whatIfArguments struct {
	workloadArguments
	Signals map[string]*float64 `json:"signals" jsonschema:"values by the name of the signal, as in the inputs of explain: the mean per serving replica or the total of the workload; null: the signal has no value"`
}

func (t *tools) whatIf(ctx context.Context, in *whatIfArguments) (string, error) {
	if len(in.Signals) == 0 {
		return "", errors.New("signals is empty: give at least one value by the name of a signal")
	}
	for _, name := range []string{in.Namespace, in.Name} {
		// The names become parts of a path of the API server.
		if name == "" || len(content.IsPathSegmentName(name)) > 0 || len(name) > view.MaxName {
			return "", fmt.Errorf("%.100q is no name of an object", name)
		}
	}
	a, err := t.Autoscaler(ctx, in.Namespace, in.Name)
	if err != nil {
		return "", err
	}
	c, err := explain.Case(a)
	if err != nil {
		return "", fmt.Errorf("cannot repeat the last decision of %s/%s: %w", in.Namespace, in.Name, err)
	}
	values := make(map[string]float64, len(in.Signals))
	for name, v := range in.Signals {
		values[name] = math.NaN()
		if v != nil {
			values[name] = *v
		}
	}
	o, err := c.With(values)
	if err != nil {
		return "", err
	}
	head := struct {
		Workload string `json:"workload"`
		Now      int32  `json:"replicasNow"`
		Then     int32  `json:"replicasThen"`
		Changed  bool   `json:"changed"`
		After    int    `json:"afterSeconds"`
		Why      string `json:"why"`
		Basis    string `json:"basis"`
	}{
		in.Namespace + "/" + in.Name, c.Observation.Replicas, o.Decision.Replicas, o.Changed, int(o.After.Seconds()), o.Decision.Sentence(),
		"the decision engine was run from the state in the object's status, with these values from then on and everything else unchanged; without a change, afterSeconds is how long it was run",
	}
	steps := make([]step, len(o.Decision.Steps))
	for i, s := range o.Decision.Steps {
		steps[i] = step{string(s.Rule), s.Before, s.After, s.Sentence()}
	}
	return fit(head, listOf("steps", steps, 0))
}

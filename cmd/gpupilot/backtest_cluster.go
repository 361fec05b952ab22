// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/backtest"
	"github.com/gpupilot/gpupilot/internal/policy"
	"github.com/gpupilot/gpupilot/internal/scale"
	"github.com/gpupilot/gpupilot/internal/webui"
)

// seen is a workload as the controller has seen it.
type seen struct {
	where      cluster
	object     string // [NAMESPACE/]NAME of a GPUAutoscaler
	controller controller
}

// live is what a replay takes from a cluster.
type live struct {
	name    string
	object  []byte // the GPUAutoscaler as YAML
	policy  policy.Compiled
	startup time.Duration // learned; 0: not known
	points  []webui.Point
}

// read asks the API server for the object, and through it the controller for
// the object's history.
func (s *seen) read(ctx context.Context) (*live, error) {
	namespace, name, err := s.where.object([]string{s.object})
	if err != nil {
		return nil, err
	}
	c, err := s.where.api()
	if err != nil {
		return nil, err
	}
	all, err := autoscalers(ctx, c, namespace, name)
	if err != nil {
		return nil, err
	}
	if err := all[0].badSpec; err != nil {
		return nil, fmt.Errorf("GPUAutoscaler %s/%s: %w", namespace, name, err)
	}
	a := all[0].object
	out := &live{name: a.Name, startup: startupOf(a)}
	if out.policy, err = policy.Compile(a); err != nil {
		return nil, fmt.Errorf("GPUAutoscaler %s/%s: %w", namespace, name, err)
	}
	a.Kind = "GPUAutoscaler"
	if out.object, err = yaml.Marshal(a); err != nil {
		return nil, err
	}
	h, err := s.history(ctx, namespace, name)
	if err != nil {
		return nil, err
	}
	out.points = h.Points
	return out, nil
}

func startupOf(a *v1alpha1.GPUAutoscaler) time.Duration {
	switch {
	case a.Spec.Startup != nil && a.Spec.Startup.ExpectedSeconds != nil:
		return time.Duration(*a.Spec.Startup.ExpectedSeconds) * time.Second
	case a.Status.Startup != nil:
		return time.Duration(a.Status.Startup.P50Seconds) * time.Second
	}
	return 0
}

// history is the controller's JSON of a workload, through the API server's
// service proxy or, of a URL, from there.
func (s *seen) history(ctx context.Context, namespace, name string) (h webui.History, err error) {
	s.controller.where = &s.where
	err = s.controller.get(ctx, "api/v1/history", url.Values{"namespace": {namespace}, "name": {name}}, &h)
	if err != nil {
		return h, fmt.Errorf("ask the controller (--controller %s) for the history of %s/%s: %w", s.controller.address, namespace, name, err)
	}
	return h, nil
}

// trace is the load that the signals told, second by second: the replicas that
// it asked for at the policy's own targets, as requests that a replica of the
// model takes that many of. The replay's load has the shape and the size of
// what was seen; what a single request was is not known.
func (l *live) trace(m *backtest.Model, prompt, output float64) (*backtest.Trace, error) {
	prompt, output = cmp.Or(prompt, backtest.DefaultPrompt), cmp.Or(output, backtest.DefaultOutput)
	capacity := m.Capacity(prompt, output)
	var rates []backtest.Rate
	for _, p := range l.points {
		if need, ok := l.need(&p); ok {
			rates = append(rates, backtest.Rate{At: p.Time.Truncate(time.Second), PerSecond: need * capacity})
		}
	}
	if len(rates) < 2 {
		return nil, errors.New("the controller has seen too little of it: no second with a value; try again in a minute, or use --prometheus")
	}
	return backtest.FromRates(l.name, rates, time.Second, prompt, output)
}

// need is the replicas that the signals asked for at one moment.
func (l *live) need(p *webui.Point) (need float64, ok bool) {
	for i, v := range p.Signals {
		if v == nil || i >= len(l.policy.Policy.Signals) {
			continue
		}
		sig := &l.policy.Policy.Signals[i]
		x := *v / sig.Target
		if sig.Type == scale.Value || l.policy.Sources[i].Kind != policy.Query {
			x *= float64(p.Serving)
		}
		need, ok = max(need, x), true
	}
	return need, ok
}

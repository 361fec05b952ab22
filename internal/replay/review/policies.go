// SPDX-License-Identifier: Apache-2.0

package review

import (
	"fmt"
	"slices"

	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/replay/contender"
	"github.com/gpupilot/gpupilot/internal/scale"
	"github.com/gpupilot/gpupilot/internal/scale/peers"
	"github.com/gpupilot/gpupilot/internal/scale/policy"
)

const (
	ownName = "this policy"
	hpaName = "HPA, same targets"
)

// The objectives to compare with, from loose to strict.
var objectives = []float64{0.9, 0.95, 0.99, 0.995, 0.999}

// addPolicies adds the workload's own policy and what it is compared with: a looser and a
// stricter one, other bounds where they matter, and an HPA. It returns the widest bounds.
func (p *plan) addPolicies(own policy.Compiled, recorded *record) (low, high int) {
	low, high = int(own.Policy.Min), int(own.Policy.Max)
	add := func(name string, c policy.Compiled) {
		low, high = min(low, int(c.Policy.Min)), max(high, int(c.MostReplicas()))
		p.entries = append(p.entries, contender.NewOurs(name, c))
		p.entries[len(p.entries)-1].Name = name
	}
	add(ownName, own)
	if promised := p.entries[0].Objective; promised > 0 {
		const same = 1e-9 // a share is computed from a percentage
		looser, stricter := 0.0, 0.0
		for _, x := range objectives {
			if x < promised-same {
				looser = x
			} else if x > promised+same && stricter == 0 {
				stricter = x
			}
		}
		for _, x := range []float64{looser, stricter} {
			if x > 0 {
				add(objectiveName(x), withObjective(own, x))
			}
		}
	} else if !slices.ContainsFunc(own.Policy.Signals, func(s scale.Signal) bool { return s.Learned() }) {
		add("targets 20 % lower", withTargets(own, 0.8))
		add("targets 25 % higher", withTargets(own, 1.25))
	}
	switch c := own; {
	case recorded.busy && c.Policy.Max < mostReplicas:
		c.Policy.Max = min(2*c.Policy.Max, mostReplicas)
		add(fmt.Sprintf("maxReplicas %d", c.Policy.Max), c)
	case c.Policy.Min > 1:
		c.Policy.Min = max(1, c.Policy.Min/2)
		add(fmt.Sprintf("minReplicas %d", c.Policy.Min), c)
	}
	if e, ok := hpaOf(own); ok {
		p.entries = append(p.entries, e)
	}
	return max(1, low), high
}

func objectiveName(share float64) string { return fmt.Sprintf("objective %.4g %%", 100*share) }

// changed returns a policy with changed signals.
func changed(c policy.Compiled, change func(*scale.Signal)) policy.Compiled {
	c.Policy.Signals = slices.Clone(c.Policy.Signals)
	for i := range c.Policy.Signals {
		change(&c.Policy.Signals[i])
	}
	return c
}

func withObjective(c policy.Compiled, share float64) policy.Compiled {
	return changed(c, func(s *scale.Signal) {
		if s.Objective > 0 {
			s.Objective = share
		}
	})
}

func withTargets(c policy.Compiled, factor float64) policy.Compiled {
	return changed(c, func(s *scale.Signal) { s.Target *= factor })
}

// hpaOf returns an HPA with a policy's signals and targets, the API server's default
// behavior and the lags of the usual chain; ok is false if no signal can be simulated.
func hpaOf(c policy.Compiled) (e contender.Entry, ok bool) {
	o := contender.HPAObject{
		Name: hpaName, Family: contender.HPA, Min: int(max(1, c.Policy.Min)), Max: int(c.Policy.Max),
		Up: peers.DefaultUp(), Down: peers.DefaultDown(),
	}
	for i, s := range c.Sources {
		if contender.Simulates(s) != nil {
			continue
		}
		sig := &c.Policy.Signals[i]
		m := contender.HPAMetric{Kind: peers.PodsAverage, Source: s, Target: sig.Target}
		if sig.Type == scale.Value {
			m.Kind, m.Mean = peers.ObjectValue, sig.Aggregate != gpu.Sum
		}
		o.Metrics = append(o.Metrics, m)
	}
	e, err := contender.NewHPAObject(o)
	return e, err == nil
}

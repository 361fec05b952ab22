// SPDX-License-Identifier: Apache-2.0

package backtest

import (
	_ "embed"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gpupilot/gpupilot/internal/replay/contender"
	"github.com/gpupilot/gpupilot/internal/replay/trace"
	"github.com/gpupilot/gpupilot/internal/scale/policy"
)

// defaultPolicies are replayed without other policies.
//
//go:embed policies.yaml
var defaultPolicies []byte

// AddTrace adds a trace. If its name is taken, it gets a number, because results are
// identified by the name.
func (s *Study) AddTrace(t *trace.Trace) {
	name := t.Name
	for n := 2; slices.ContainsFunc(s.Traces, func(x *trace.Trace) bool { return x.Name == t.Name }); n++ {
		t.Name = fmt.Sprintf("%s (%d)", name, n)
	}
	s.Traces = append(s.Traces, t)
}

// UniqueNames appends the file's name to the names of policies that share one, and a number
// if the files' names are equal, too. files has the file of each policy.
func UniqueNames(policies []policy.Named, files []string) {
	count, taken := map[string]int{}, map[string]bool{}
	for i := range policies {
		count[policies[i].Name]++
	}
	for i := range policies {
		p := &policies[i]
		name, base := p.Name, filepath.Base(files[i])
		if count[name] > 1 {
			p.Name = fmt.Sprintf("%s (%s)", name, base)
		}
		for n := 2; taken[p.Name]; n++ {
			p.Name = fmt.Sprintf("%s (%s, %d)", name, base, n)
		}
		taken[p.Name] = true
	}
}

// SetContenders sets our policies, the references and the peers in the classes of the
// policies. Without policies it uses three default ones, with the limits of the model.
// given are the user's own settings of peers, which are judged as our policies are.
// peers is a list of families, such as "hpa,keda", "all" or "none". The families llm and published, or some of
// their names, add the autoscalers for LLM servers and published settings.
//
// If the load is not scaled, the replicas are bounded by the widest bounds of the policies.
func (s *Study) SetContenders(policies []policy.Named, given []contender.Entry, peers string, grid contender.Grid) (err error) {
	classes := map[contender.Class]bool{}
	if len(policies) == 0 {
		if policies, s.Ours, err = DefaultPolicies(); err != nil {
			return err
		}
	} else {
		for i := range policies {
			s.Ours = append(s.Ours, contender.NewOurs(policies[i].Name, policies[i].Compiled))
		}
	}
	for i := range s.Ours {
		classes[s.Ours[i].Class] = true
	}
	for i := range given {
		classes[given[i].Class] = true
		s.Ours = append(s.Ours, given[i])
	}
	if s.High == 0 {
		s.Min, s.Max = widestBounds(policies)
	}
	s.References = append(contender.Oracles(), contender.Reactive(1, 300), contender.Reactive(0.8, 300), contender.Fixed(1))
	if peers == "none" {
		return nil
	}
	families := contender.Families(peers)
	var known []string
	for _, e := range slices.Concat(contender.LLMPeers(), contender.PublishedPeers()) {
		known = append(known, e.Name)
		if classes[e.Class] && (slices.Contains(families, e.Name) || slices.Contains(families, string(e.Family))) {
			s.Peers = append(s.Peers, e)
		}
	}
	for _, x := range families {
		if !slices.Contains([]string{"all", "hpa", "keda", "kpa", "llm", "published"}, x) && !slices.Contains(known, x) {
			return fmt.Errorf("--peers %s: want all, none, or some of hpa,keda,kpa,llm,published,%s", x, strings.Join(known, ","))
		}
	}
	for _, class := range []contender.Class{contender.OnRequests, contender.OnGPU} {
		if classes[class] {
			s.Peers = append(s.Peers, grid.Peers(families, class)...)
		}
	}
	return nil
}

// DefaultPolicies returns GPUPilot's default policies, and their entries with the limits of
// the model.
func DefaultPolicies() (policies []policy.Named, entries []contender.Entry, err error) {
	if policies, err = policy.Parse("default policies", defaultPolicies); err != nil {
		return nil, nil, err
	}
	for i := range policies {
		entries = append(entries, contender.NewOursAtModelLimits(policies[i].Name, policies[i].Compiled))
	}
	return policies, entries, nil
}

// widestBounds returns the lowest minimum, at least 1, and the highest maximum. No signal
// can scale from zero in the simulation, because queries are not simulated.
func widestBounds(policies []policy.Named) (low, high int) {
	low = int(policies[0].Policy.Min)
	for i := range policies {
		p := &policies[i]
		low, high = min(low, int(p.Policy.Min)), max(high, int(p.MostReplicas()))
	}
	return max(1, low), high
}

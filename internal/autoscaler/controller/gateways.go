// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/gpupilot/gpupilot/internal/base/excerpt"
	"github.com/gpupilot/gpupilot/internal/scale/policy"
	"github.com/gpupilot/gpupilot/internal/window/discovery"
)

// failingTTL is the time between two lists of the targets that do not answer.
const failingTTL = 5 * time.Second

// failing caches why targets of pods do not answer, by their names. It is asked only
// while a signal of pods or a gateway's query has no value.
type failing struct {
	mu     sync.Mutex
	asOf   time.Time
	errors map[string]string
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
		if err := s.targetError(name); err != "" {
			return fmt.Sprintf("the gateway at %s does not answer: %s", name, excerpt.Of(err, maxDetail))
		}
	}
	return ""
}

// targetError returns why a target does not answer; empty: it does, or has not been scraped.
func (s *shared) targetError(name string) string {
	s.failing.mu.Lock()
	defer s.failing.mu.Unlock()
	if now := time.Now(); now.Sub(s.failing.asOf) > failingTTL {
		s.failing.asOf, s.failing.errors = now, map[string]string{}
		for _, t := range s.deps.States() {
			if !t.Up && t.Error != "" {
				s.failing.errors[t.Name] = t.Error
			}
		}
	}
	return s.failing.errors[name]
}

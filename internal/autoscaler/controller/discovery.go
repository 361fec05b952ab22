// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"time"

	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/window/discovery"
)

const (
	// discoverGap is the minimum time between two lists of the targets. With many
	// pods, idleFactor makes it longer.
	discoverGap = 50 * time.Millisecond
	// rediscoverAll is the interval at which they are listed without a request, which
	// drops fields that are no longer in use.
	rediscoverAll = time.Minute
)

func (s *shared) requestDiscovery() {
	select {
	case s.rediscover <- struct{}{}:
	default:
	}
}

// discover updates the scrape targets and the running queries whenever they may have
// changed.
func (c *Controller) discover(ctx context.Context) {
	every := time.NewTicker(rediscoverAll)
	defer every.Stop()
	for {
		began := time.Now()
		c.deps.Scrape(c.listTargets(began))
		c.askQueries()
		select {
		case <-ctx.Done():
			return
		case <-time.After(max(discoverGap, idleFactor*time.Since(began))):
		}
		select {
		case <-ctx.Done():
			return
		case <-c.rediscover:
		case <-c.deps.Fields.Changed():
		case <-every.C:
		}
	}
}

// listTargets returns the scrape targets, and stores the place of each one.
func (c *Controller) listTargets(now time.Time) []discovery.Target {
	var podMetrics []string
	var naming []naming
	c.mu.RLock()
	readers := make([]discovery.Reader, 0, len(c.workloads))
	for _, w := range c.workloads {
		p, sel := w.plan.Load(), w.selector.Load()
		if p == nil {
			continue
		}
		created := w.object.Load().CreationTimestamp
		podMetrics, naming = append(podMetrics, p.podMetrics...), append(naming, namingOf(w.key, created, p.fields))
		if sel == nil {
			continue
		}
		readers = append(readers, discovery.Reader{
			Namespace: w.key.Namespace, Name: w.key.Name, Created: created, Selector: *sel, Sources: p.Sources,
		})
	}
	c.mu.RUnlock()
	c.holdGateways(readers)
	named, over := nameFields(naming)
	c.overFields.Store(&over)
	c.deps.Fields.Hold(named, podMetrics)
	found := c.finder.Find(now, c.deps.Fields.At(now), readers)
	for i := range found.Targets {
		if t := &found.Targets[i]; t.Kind != discovery.KindPod {
			t.Named = c.deps.Fields.Named()
		}
	}
	c.discovered.Store(found)
	return found.Targets
}

// Agents lists the targets that are our agents, one per node.
func (c *Controller) Agents() []discovery.Target { return c.finder.Agents(gpu.FieldSet{}) }

// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"time"

	"github.com/gpupilot/gpupilot/internal/discovery"
	"github.com/gpupilot/gpupilot/internal/gpu"
)

const (
	// discoverGap bounds how often the targets are listed anew while pods
	// come and go; where there are many, idleShare does.
	discoverGap = 50 * time.Millisecond
	// rediscoverAll is how often they are listed with no occasion: a field that
	// nobody asks for any more leaves.
	rediscoverAll = time.Minute
)

func (s *shared) discoverSoon() {
	select {
	case s.rediscover <- struct{}{}:
	default:
	}
}

// discover says what is to be scraped, and asks what is to be asked, whenever
// that may have changed.
func (c *Controller) discover(ctx context.Context) {
	every := time.NewTicker(rediscoverAll)
	defer every.Stop()
	for {
		began := time.Now()
		c.deps.Scrape(c.list(began))
		c.queries.follow(ctx)
		select {
		case <-ctx.Done():
			return
		case <-time.After(max(discoverGap, idleShare*time.Since(began))):
		}
		select {
		case <-ctx.Done():
			return
		case <-c.rediscover:
		case <-every.C:
		}
	}
}

// list makes the list of targets, and remembers where each one's samples belong.
func (c *Controller) list(now time.Time) []discovery.Target {
	c.mu.RLock()
	readers := make([]discovery.Reader, 0, len(c.workloads))
	for _, w := range c.workloads {
		p, sel := w.plan.Load(), w.selector.Load()
		if p == nil || sel == nil {
			continue
		}
		readers = append(readers, discovery.Reader{
			Namespace: w.key.Namespace, Name: w.key.Name, Created: w.object.Load().CreationTimestamp, Selector: *sel, Sources: p.Sources,
		})
	}
	c.mu.RUnlock()
	found := c.finder.Find(now, c.fieldsInUse(now), readers)
	c.found.Store(found)
	return found.Targets
}

// Agents lists the targets that are our agents, one per node.
func (c *Controller) Agents() []discovery.Target { return c.finder.Agents(gpu.FieldSet{}) }

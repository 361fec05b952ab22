// SPDX-License-Identifier: Apache-2.0

//go:build e2e && linux

package fleet

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// churn injects faults and repairs them.
type churn struct {
	*kubelets
	down                   []outage // oldest first
	agents, nodes, evicted int
	moved                  int // the round of the last change of loads
}

// outage is a node without its agent, or a lost node.
type outage struct {
	node  *node
	since time.Time
}

// The faults per step, at five steps per second: with a thousand nodes, each agent restarts once in 100 s, and each node is replaced
// once in 10 min.
const (
	agentsPerStep = 2
	nodesEvery    = 3 // steps
	evictEvery    = 2
	faultsPerStep = 2
	outageLasts   = 3 * time.Second
	// loadsEvery is how many rounds a moving workload keeps its load: more than it takes to follow.
	loadsEvery = slack + 5
)

// step injects the next faults, and repairs earlier ones.
func (c *churn) step(ctx context.Context, i int) {
	for len(c.down) > 0 && time.Since(c.down[0].since) > outageLasts {
		c.revive(ctx, c.down[0].node)
		c.down = c.down[1:]
	}
	for range agentsPerStep {
		if n := c.victim(); n != nil {
			c.agents++
			c.down = append(c.down, outage{n, time.Now()})
			c.do(ctx, "stop an agent", func() error { return c.stopAgent(ctx, n) })
		}
	}
	if i%nodesEvery == 0 {
		if n := c.victim(); n != nil {
			c.nodes++
			c.down = append(c.down, outage{n, time.Now()})
			c.do(ctx, "take a node away", func() error { return c.leave(ctx, n) })
		}
	}
	if i%evictEvery == 0 {
		c.evict(ctx)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for range faultsPerStep {
		n := c.fleet.nodes[c.rand.IntN(len(c.fleet.nodes))]
		n.fault = fault(c.rand.IntN(int(faults)))
	}
	if c.round() >= c.moved+loadsEvery {
		c.moved = c.round()
		for _, name := range slices.Sorted(maps.Keys(c.workloads)) {
			if w := c.workloads[name]; strings.HasPrefix(name, "moving-") {
				c.offer(w, 8-w.load)
			}
		}
	}
}

// victim returns a node with an agent; nil if none was found quickly.
func (c *churn) victim() *node {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := c.fleet.nodes[c.rand.IntN(len(c.fleet.nodes))]
	if n.agent == "" || n.gone || slices.ContainsFunc(c.down, func(o outage) bool { return o.node == n }) {
		return nil
	}
	return n
}

func (c *churn) revive(ctx context.Context, n *node) {
	c.do(ctx, "start an agent", func() error { return c.join(ctx, n) })
}

// evict deletes a pod of a workload.
func (c *churn) evict(ctx context.Context) {
	c.mu.Lock()
	name := ""
	for _, p := range c.pods {
		name = p.name // any will do
		break
	}
	c.mu.Unlock()
	if name == "" {
		return
	}
	c.evicted++
	c.do(ctx, "evict a pod", func() error {
		err := c.k.CoreV1().Pods(namespace).Delete(ctx, name, metav1.DeleteOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return err
	})
}

// heal repairs all faults.
func (c *churn) heal(ctx context.Context) {
	for range writers { // until nothing is on its way any more
		c.slots <- struct{}{}
	}
	for range writers {
		<-c.slots
	}
	c.down = nil
	c.mu.Lock()
	var without []*node
	for _, n := range c.fleet.nodes {
		n.fault = well
		if n.agent == "" {
			without = append(without, n)
		}
	}
	c.mu.Unlock()
	for _, n := range without {
		c.revive(ctx, n)
	}
}

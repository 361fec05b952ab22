// SPDX-License-Identifier: Apache-2.0

package simnode

import (
	"context"
	"fmt"
)

// PowerOff ends a node as a power cut does: the processes and listeners of its pods end,
// its lease is not renewed, and nothing is written to the API server.
func (n *Nodes) PowerOff(name string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	nd := n.named(name)
	if nd == nil {
		return fmt.Errorf("power off node %s: the node does not exist", name)
	}
	nd.off = true
	for _, p := range n.pods {
		if p.node == nd {
			p.cut()
		}
	}
	return nil
}

// PowerOn restarts a node that is off, and registers it again. The objects of the node
// and its pods must be deleted before, as a cluster does with a lost node.
func (n *Nodes) PowerOn(ctx context.Context, name string) error {
	n.mu.Lock()
	nd := n.named(name)
	if nd != nil {
		nd.off = false
	}
	n.mu.Unlock()
	if nd == nil {
		return fmt.Errorf("power on node %s: the node does not exist", name)
	}
	return nd.register(ctx, n.client)
}

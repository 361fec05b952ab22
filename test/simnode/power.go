// SPDX-License-Identifier: Apache-2.0

package simnode

import (
	"context"
	"fmt"
)

// PowerOff ends a node as a power cut does: its pods' processes and listeners
// end, its lease is not renewed, and the API server is told nothing.
func (n *Nodes) PowerOff(name string) error {
	nd := n.nodes[name]
	if nd == nil {
		return fmt.Errorf("power off node %s: there is no such node", name)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	nd.off = true
	for _, p := range n.pods {
		if p.node == nd {
			p.cut()
		}
	}
	return nil
}

// PowerOn lets a node without power work again, and registers it anew: its
// object and its pods' are to be deleted before, as a cluster does with a node
// that is gone.
func (n *Nodes) PowerOn(ctx context.Context, name string) error {
	nd := n.nodes[name]
	if nd == nil {
		return fmt.Errorf("power on node %s: there is no such node", name)
	}
	n.mu.Lock()
	nd.off = false
	n.mu.Unlock()
	return nd.register(ctx, n.client)
}

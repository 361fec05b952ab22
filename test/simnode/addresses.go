// SPDX-License-Identifier: Apache-2.0

package simnode

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync/atomic"
)

// claimPort is the port on which a cluster listens at the first address of its network,
// so that another cluster on this machine selects another network.
const claimPort = 9399

// addresses allocates the loopback addresses of one cluster, 127.X.0.0/16. Linux routes
// all of them to this machine. X is random, so that concurrent clusters do not collide.
type addresses struct {
	x     byte
	next  atomic.Uint32
	claim net.Listener
}

func newAddresses() (*addresses, error) {
	var errs []error
	for range 20 {
		a := &addresses{x: byte(1 + rand.IntN(254))}
		l, err := net.Listen("tcp", netip.AddrPortFrom(a.at(0, 1), claimPort).String())
		if err == nil {
			a.claim = l
			return a, nil
		}
		errs = append(errs, err)
	}
	return nil, fmt.Errorf("find a free loopback network 127.X.0.0/16: %w", errors.Join(errs...))
}

func (a *addresses) close() error { return a.claim.Close() }

func (a *addresses) at(y, z byte) netip.Addr { return netip.AddrFrom4([4]byte{127, a.x, y, z}) }

// node returns the address of node i.
func (a *addresses) node(i int) netip.Addr { return a.at(0, byte(10+i)) }

// pod returns the next pod address. Addresses repeat after 60,000 pods.
func (a *addresses) pod() netip.Addr {
	i := (a.next.Add(1) - 1) % (240 * 250)
	return a.at(byte(1+i/250), byte(1+i%250))
}

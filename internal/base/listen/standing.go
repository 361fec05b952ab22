// SPDX-License-Identifier: Apache-2.0

package listen

import (
	"net"
	"net/netip"
	"time"
)

// client is who a connection or request comes from.
type client struct {
	addr   netip.Addr   // invalid if it is no IP address
	source netip.Prefix // the address, or the network of an IPv6 address
	local  bool         // it runs on the server's own addresses
}

// sourceBits is the size of the IPv6 network that counts as one source: a host can use all addresses of it.
const sourceBits = 64

// clientOf returns the client of host:port.
func clientOf(hostport string) client {
	host, _, err := net.SplitHostPort(hostport)
	if err != nil {
		host = hostport
	}
	addr, err := netip.ParseAddr(host)
	if err != nil {
		return client{}
	}
	addr = addr.Unmap().WithZone("")
	bits := addr.BitLen()
	if addr.Is6() {
		bits = sourceBits
	}
	source, _ := addr.Prefix(bits) // the number of bits is valid
	return client{addr: addr, source: source}
}

// standing is what is known about the client of a request. The higher one goes first.
type standing int

const (
	slow   standing = iota // it was too slow within the last minute
	fresh                  // nothing is known
	proven                 // it has read a page fast within the last minutes
	own                    // on the server's own addresses, which nobody else has
	numStandings
)

// How long a standing lasts. Prometheus scrapes every minute by default.
const (
	provenFor = 5 * time.Minute
	slowFor   = time.Minute
)

// maxStandings bounds the clients that are known.
const maxStandings = 4096

// standings are what is known about clients. A single address is proven, since the addresses
// of a network are not of one tenant; a network is slow, since a host can change its address.
type standings struct {
	proven map[netip.Addr]time.Time   // until when
	slow   map[netip.Prefix]time.Time // until when
}

func newStandings() standings {
	return standings{map[netip.Addr]time.Time{}, map[netip.Prefix]time.Time{}}
}

func (s *standings) of(c client, now time.Time) standing {
	switch {
	case c.local:
		return own
	case now.Before(s.proven[c.addr]):
		return proven
	case now.Before(s.slow[c.source]):
		return slow
	}
	return fresh
}

// wasFast records a client that has read its page fast.
func (s *standings) wasFast(c client, now time.Time) {
	if s.of(c, now) >= fresh { // who was slow waits until that has ended
		put(s.proven, c.addr, now.Add(provenFor), now)
	}
}

// wasSlow records a client that was too slow. hard: beyond its deadline, or not proven before.
func (s *standings) wasSlow(c client, hard bool, now time.Time) {
	if was := s.of(c, now); was == proven && !hard {
		delete(s.proven, c.addr)
		return
	}
	delete(s.proven, c.addr)
	put(s.slow, c.source, now.Add(slowFor), now)
}

// put sets until, and drops others if there are too many: those that have ended, or else any.
func put[K comparable](m map[K]time.Time, k K, until, now time.Time) {
	if _, ok := m[k]; !ok && len(m) >= maxStandings {
		for x, u := range m {
			if !now.Before(u) {
				delete(m, x)
			}
		}
		for x := range m {
			if len(m) < maxStandings {
				break
			}
			delete(m, x)
		}
	}
	m[k] = until
}

// SPDX-License-Identifier: Apache-2.0

package scrape

import (
	"fmt"
	"slices"
)

// The memory of a target without its series and its page.
const (
	// plainBytes is the memory of the runner, the connection, the request and the
	// state. A test compares the account with the heap.
	plainBytes = 4 << 10
	// clientBytes is the memory of a target that is scraped through net/http: the
	// stacks of the connection's two goroutines (16 KiB), its buffers (8 KiB), and TLS.
	clientBytes = 36 << 10
	// tlsBytes is the memory of a pod with TLS: that of the connection's keys, certificates and
	// buffers of a record of 16 KiB, and of the longest handshake.
	tlsBytes = plainBytes + maxHandshake
	// minPageBytes is the least memory of a target's page and series.
	minPageBytes = 4 << 10
)

// targetBytes returns the memory of a target without its series and its page.
func (s *Scraper) targetBytes(t *Target) int64 {
	switch {
	case t.Kind == Pod && t.URL.Scheme == "https":
		return tlsBytes
	case s.isPlain(t):
		return plainBytes
	}
	return clientBytes
}

// maxTargets returns the number of targets that may be scraped if each takes at
// least each bytes. Before the first sample, they take no more than three quarters
// of the memory limit.
func maxTargets(limit, each int64) int { return int(max(limit*3/4/(each+minPageBytes), 1)) }

// maxWanted returns maxTargets for the targets of the last Sync.
func (s *Scraper) maxWanted() int {
	each := int64(plainBytes)
	for i := range s.wanted {
		if t := &s.wanted[i]; t.Kind != Pod { // a tenant's TLS is no limit for others: the account bounds it
			each = max(each, s.targetBytes(t))
		}
	}
	return maxTargets(s.deps.Store.Stats().Limit, each)
}

// admit returns the targets that are not scraped because there are more than most.
// Each exporter is a group of its own; the pods of a namespace are one group. The
// largest groups are cut to the same size. In a group, running targets have
// precedence.
func admit(targets []Target, running func(name string) bool, most int) (refused map[string]error) {
	if len(targets) <= most {
		return nil
	}
	groups := map[string][]*Target{}
	for i := range targets {
		t := &targets[i]
		key := "target/" + t.Name
		if t.Kind == Pod {
			key = "namespace/" + t.Labels.Namespace
		}
		groups[key] = append(groups[key], t)
	}
	each := perGroup(groups, most)
	refused = map[string]error{}
	var alone []*Target
	for _, list := range groups {
		slices.SortStableFunc(list, func(a, b *Target) int { return order(running(a.Name), running(b.Name)) })
		if len(list) == 1 {
			alone = append(alone, list[0])
			continue
		}
		for _, t := range list[min(each, len(list)):] {
			refused[t.Name] = fmt.Errorf("not scraped: namespace %s has %d targets, --window-memory has room for %d of them: raise it", t.Labels.Namespace, len(list), each)
		}
	}
	if over := len(targets) - len(refused) - most; over > 0 && each <= 1 {
		slices.SortStableFunc(alone, func(a, b *Target) int { return order(running(a.Name), running(b.Name)) })
		for _, t := range alone[max(len(alone)-over, 0):] {
			refused[t.Name] = fmt.Errorf("not scraped: there are %d targets, --window-memory has room for %d: raise it", len(targets), most)
		}
	}
	return refused
}

// order sorts running targets first.
func order(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return -1
	}
	return 1
}

// perGroup returns the largest number of targets per group with which all groups
// together have at most most targets; at least one.
func perGroup(groups map[string][]*Target, most int) int {
	sizes := make([]int, 0, len(groups))
	for _, list := range groups {
		sizes = append(sizes, len(list))
	}
	slices.Sort(sizes)
	left := most
	for i, n := range sizes {
		if each := left / (len(sizes) - i); n > each {
			return max(each, 1)
		}
		left -= n
	}
	return most
}

// SPDX-License-Identifier: Apache-2.0

package scrape

import (
	"fmt"
	"slices"
)

// What a target takes beside its series and what is remembered of its page.
const (
	// plainBytes are its runner, its connection, its request and its state. A test
	// compares the account with the heap.
	plainBytes = 4 << 10
	// clientBytes are those of a target that net/http asks: the stacks of the
	// connection's two goroutines (16 KiB), its buffers (8 KiB), and TLS.
	clientBytes = 36 << 10
	// leastBytes are what a target's page and series take at least.
	leastBytes = 4 << 10
)

// targetBytes is what a target takes beside its series and its page.
func (s *Scraper) targetBytes(t *Target) int64 {
	if s.isPlain(t) {
		return plainBytes
	}
	return clientBytes
}

// mostTargets is how many targets are scraped, of which none takes less than
// each: they take no more than three quarters of the memory limit before the
// first sample.
func mostTargets(limit, each int64) int { return int(max(limit*3/4/(each+leastBytes), 1)) }

// mostWanted is mostTargets of the targets that are wanted.
func (s *Scraper) mostWanted() int {
	each := int64(plainBytes)
	for i := range s.wanted {
		each = max(each, s.targetBytes(&s.wanted[i]))
	}
	return mostTargets(s.deps.Store.Stats().Limit, each)
}

// admit says which targets are not scraped because there are more than most.
// Exporters each count alone, pods by their namespace: the namespaces with most
// pods are cut, all to one number. Of those, targets that are scraped already
// stay.
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
			refused[t.Name] = fmt.Errorf("not scraped: namespace %s has %d targets, the memory limit leaves room for %d of them: raise --window-memory", t.Labels.Namespace, len(list), each)
		}
	}
	if over := len(targets) - len(refused) - most; over > 0 && each <= 1 {
		slices.SortStableFunc(alone, func(a, b *Target) int { return order(running(a.Name), running(b.Name)) })
		for _, t := range alone[max(len(alone)-over, 0):] {
			refused[t.Name] = fmt.Errorf("not scraped: there are %d targets, the memory limit leaves room for %d: raise --window-memory", len(targets), most)
		}
	}
	return refused
}

func order(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return -1
	}
	return 1
}

// perGroup is the number of targets that each group may have, at least one.
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

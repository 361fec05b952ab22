// SPDX-License-Identifier: Apache-2.0

package windows

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/prometheus/model/labels"
)

// claimKey is a pod's name.
type claimKey struct{ namespace, pod string }

// claim is a pod that an exporter's labels name.
type claim struct {
	claimKey
	target *target
	series int   // that the page shows now
	since  int64 // when the first of them was shown, in ns since 1970

	mu      sync.Mutex
	settled bool // good holds until the pod changes
	good    bool
	counted int // series that tally counts as contradicted
}

// claimOf returns the claim in an exporter's labels; nil: it names no pod.
func claimOf(l labels.Labels, claims map[claimKey]*claim, t *target) *claim {
	k := claimKey{l.Get("namespace"), l.Get("pod")}
	if k.namespace == "" {
		return nil
	}
	c := claims[k]
	if c == nil {
		c = &claim{claimKey: k, target: t}
		claims[k] = c
		t.owners = append(t.owners, c)
	}
	return c
}

// count adds a series that is shown since a time.
func (c *claim) count(since int64) {
	if c.series++; c.since == 0 || since < c.since {
		c.since = since
	}
}

// podChanged has the claims about pods of this name verified again.
func (x *index) podChanged(name string) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	for _, t := range x.postings[postedPod][name] {
		for _, c := range t.owners {
			if c.pod == name {
				c.mu.Lock()
				x.tally.set(c, c.counted, false)
				c.mu.Unlock()
			}
		}
	}
}

// tally counts the series that exporters show now and that the API server contradicts.
// It is kept where claims are settled, so that reading it walks no claims.
type tally struct {
	mu      sync.Mutex
	series  int
	targets map[*target]int     // such series of each exporter that has any
	open    map[*claim]struct{} // claims with shown series that are not settled
}

// add begins to follow the claims of a target.
func (t *tally) add(claims []*claim) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, c := range claims {
		if c.series > 0 {
			t.open[c] = struct{}{}
		}
	}
}

// forget removes the claims of a target. The caller holds the index alone.
func (t *tally) forget(gone *target) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.series -= t.targets[gone]
	delete(t.targets, gone)
	for _, c := range gone.owners {
		delete(t.open, c)
	}
}

// set sets the number of a claim's series that are contradicted, and whether the claim
// is settled. The caller holds c.mu and the index.
func (t *tally) set(c *claim, contradicted int, settled bool) {
	was := c.settled
	c.settled = settled
	if c.series == 0 || contradicted == c.counted && settled == was {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if settled {
		delete(t.open, c)
	} else {
		t.open[c] = struct{}{}
	}
	n := contradicted - c.counted
	c.counted += n
	t.series += n
	if t.targets[c.target] += n; t.targets[c.target] == 0 {
		delete(t.targets, c.target)
	}
}

// unsettled returns the claims that are not settled.
func (t *tally) unsettled() []*claim {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Collect(maps.Keys(t.open))
}

// most returns the number of contradicted series, and the exporters with the most.
func (t *tally) most(limit int) (total int, list []contradiction) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for of, n := range t.targets {
		list = append(list, contradiction{of.window.Name(), n})
	}
	slices.SortFunc(list, func(a, b contradiction) int {
		return cmp.Or(cmp.Compare(b.series, a.series), strings.Compare(a.target, b.target))
	})
	return t.series, list[:min(len(list), limit)]
}

// contradiction is an exporter with series that the API server contradicts.
type contradiction struct {
	target string
	series int
}

// claimSlack is how long an exporter's page may be behind the API server: the age up
// to which its values count, and a collection.
const claimSlack = 10 * time.Second

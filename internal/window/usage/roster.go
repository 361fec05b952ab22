// SPDX-License-Identifier: Apache-2.0

package usage

import (
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpupilot/gpupilot/internal/window/trust"
)

// The bounds of what is remembered between requests. A HorizontalPodAutoscaler sends a
// request for each of its metrics every 15 s by default, with the selector of its
// target. A member takes about 100 bytes.
const (
	rosterTTL  = 2 * time.Minute
	sweepEvery = 10 * time.Second // so that requests of thousands of selectors do not look at all of them each
	maxRosters = 4096
	maxMembers = 200_000
)

// rosterKey identifies the pods of a list of values.
type rosterKey struct{ namespace, selector string }

// roster is what is remembered of the pods of one selector. The request that has
// taken it owns it.
type roster struct {
	key     rosterKey
	members []member
	counted int // members, as rosters.members has them; guarded by rosters.mu
	used    time.Time
	busy    bool // guarded by rosters.mu
	kept    bool // it is in rosters.byKey; guarded by rosters.mu
}

// update makes the members those of pods. A pod that has not changed since the last
// request and has the same place in the list costs a comparison.
func (r *roster) update(pods []*corev1.Pod, d *trust.Devices) {
	clear(r.members[min(len(pods), len(r.members)):])
	r.members = r.members[:min(len(pods), len(r.members))]
	for i, pod := range pods {
		if i == len(r.members) {
			r.members = append(r.members, newMember(pod, d))
		} else if r.members[i].pod != pod {
			r.members[i] = newMember(pod, d)
		}
	}
}

// rosters are the rosters of the selectors in use.
type rosters struct {
	mu      sync.Mutex
	byKey   map[rosterKey]*roster
	members int // of all of them
	swept   time.Time
}

func newRosters() *rosters { return &rosters{byKey: map[rosterKey]*roster{}} }

// take returns a selector's roster. It is a new one while another request has it, so
// requests do not wait for one another. put gives it back.
func (x *rosters) take(k rosterKey, now time.Time) *roster {
	x.mu.Lock()
	defer x.mu.Unlock()
	r := x.byKey[k]
	if r == nil && x.hasRoom(now) {
		r = &roster{key: k, kept: true}
		x.byKey[k] = r
	}
	if r == nil || r.busy {
		return &roster{key: k}
	}
	r.busy, r.used = true, now
	return r
}

// hasRoom reports whether another roster may be kept. It forgets the unused ones now and
// then. x.mu is held.
func (x *rosters) hasRoom(now time.Time) bool {
	if now.Sub(x.swept) >= sweepEvery {
		x.swept = now
		for _, r := range x.byKey {
			if !r.busy && now.Sub(r.used) > rosterTTL {
				x.forget(r)
			}
		}
	}
	return len(x.byKey) < maxRosters && x.members < maxMembers
}

func (x *rosters) forget(r *roster) {
	delete(x.byKey, r.key)
	x.members -= r.counted
	r.kept = false
}

// put gives a roster back after a request. It is forgotten if there is no room for it.
func (x *rosters) put(r *roster) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if !r.kept {
		return
	}
	r.busy = false
	x.members += len(r.members) - r.counted
	r.counted = len(r.members)
	if x.members > maxMembers {
		x.forget(r)
	}
}

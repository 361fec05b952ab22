// SPDX-License-Identifier: Apache-2.0

package contender

import (
	"testing"

	"github.com/gpupilot/gpupilot/internal/replay/service"
)

// feed reports a constant state for some seconds. It returns the last decision.
func feed(k *kpa, from, seconds int, pods []service.PodState, queued int) (replicas int) {
	var d service.Deployment
	replicas = service.Unchanged
	for now := from; now < from+seconds; now++ {
		d.SetState(now-1, pods, queued)
		if n, _ := k.Decide(&d, now); n >= 0 {
			replicas = n
		}
	}
	return replicas
}

func TestKPAReads(t *testing.T) {
	k := &kpa{target: 10, window: 60, min: 1, max: 30}
	pods := func(concurrency float64) []service.PodState {
		return podsAt(4, service.Serving, service.Concurrency, concurrency)
	}
	if got := feed(k, 1, 60, pods(1), 0); got != 4 {
		t.Errorf("just started: %d, want the initial 4", got)
	}
	if got := feed(k, 61, 61, pods(10), 0); got != 4 {
		t.Errorf("on target: %d, want 4", got)
	}
	if got := feed(k, 122, 1, pods(10), 2000); got != 30 {
		t.Errorf("with a queue at the gateway: %d, want the maximum", got)
	}
}

// Without pods and requests, the values within the window still count. Later nothing is
// decided.
func TestKPAWithoutPods(t *testing.T) {
	k := &kpa{target: 10, window: 60, min: 1, max: 30}
	feed(k, 1, 60, podsAt(1, service.Serving, service.Concurrency, 10), 0)
	if got := feed(k, 61, 10, nil, 0); got != 1 {
		t.Errorf("without pods: %d, want 1", got)
	}
	if got := feed(k, 122, 10, nil, 0); got != service.Unchanged {
		t.Errorf("after a window without pods: %d, want no decision", got)
	}
}

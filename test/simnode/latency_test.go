// SPDX-License-Identifier: Apache-2.0

package simnode

import (
	"math"
	"strings"
	"testing"
	"time"
)

func TestLatencyFollowsTheLoad(t *testing.T) {
	l := &Latency{First: 300 * time.Millisecond, Token: 12 * time.Millisecond, FirstLimit: time.Second, TokenLimit: 25 * time.Millisecond}
	w := newWorkload(Workload{Model: Model{Capacity: 10}, Latency: l})
	f := func(utilization, waiting, first, token, missed float64) {
		t.Helper()
		x := Load{Utilization: utilization, Waiting: waiting, Served: 100}
		gotFirst, gotToken := l.At(x, 10)
		got := w.missed(x)
		if math.Abs(gotFirst-first) > 1e-9 || math.Abs(gotToken-token) > 1e-9 || math.Abs(got-missed) > 1e-6 {
			t.Errorf("at %v %% with %v waiting: %v s, %v s, %v missed; want %v, %v, %v", utilization, waiting, gotFirst, gotToken, got, first, token, missed)
		}
		// What the servers' histograms say is what counts as missed.
		var p times
		p.add(l, x, 10, x.Served)
		within := math.Min(p.first[4], p.token[1]) // 1 s and 25 ms
		if math.Abs(x.Served-within-got) > 1e-6 {
			t.Errorf("at %v %%: %v within the limits by the histograms, %v missed", utilization, within, got)
		}
	}
	f(0, 0, 0.3, 0.012, 0)
	f(50, 0, 0.3/0.7, 0.012/0.7, 0)
	f(100, 0, 0.75, 0.03, 91.66666667) // of 24 to 36 ms
	f(50, 5, 0.3/0.7+0.5, 0.012/0.7, 30.76923077)
	f(50, 30, 0.3/0.7+3, 0.012/0.7, 100)

	var b strings.Builder
	(&times{}).write(&b, "m", 0)
	if !strings.Contains(b.String(), `vllm:time_to_first_token_seconds_count{engine="0",model_name="m"} 0`) || strings.Contains(b.String(), "NaN") {
		t.Errorf("an idle server's histograms are\n%s", b.String())
	}
}

// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"testing"
	"time"

	"github.com/gpupilot/gpupilot/internal/scale/promise"
)

// The demand of a signal is an equation: numbers, rule, result.
func TestDemandSentences(t *testing.T) {
	mostOf := int32(0)
	f := func(after int32, signal string, d Demand, want string) {
		t.Helper()
		if got := Sentence(&d, Change{Signal: signal, After: after, MostOf: mostOf}); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
	f(4, "Utilization", Demand{Reading: Reading{Unit: "%", Value: 97, Serving: 2}, Target: 60, Fresh: 2, Demand: 3.23, Mean: 3.23},
		"Utilization: 2 serving × 97 % ÷ target 60 % = 3.23, so 4 replicas")
	mostOf = 2
	f(1, "SMActive", Demand{Reading: Reading{Unit: "ratio", Value: 0.3, Serving: 2}, Target: 0.6, Fresh: 2, Demand: 1, Mean: 1},
		"SMActive: 2 serving × 0.3 ÷ target 0.6 = 1 replica, the most of 2 signals")
	mostOf = 0
	f(5, "Utilization", Demand{Reading: Reading{Unit: "%", Value: 97, Serving: 2}, Target: 60, Fresh: 2, Demand: 3.23, Mean: 4.1, Averaged: true, Window: 30 * time.Second},
		"Utilization: 2 serving × 97 % ÷ target 60 % = 3.23, 4.1 on average over 30 s: 5 replicas")
	f(8, "Utilization", Demand{Reading: Reading{Unit: "%", Value: 5, Serving: 10}, Target: 60, Fresh: 3, Demand: 0.25, Mean: 0.25},
		"Utilization: 3 of 10 serving × 5 % ÷ target 60 % = 0.25, and 7 replicas without a value, counted as loaded to the target: 8 replicas")
	f(3, "sum(backlog)", Demand{Reading: Reading{Value: 12}, Target: 5, Total: true, Demand: 2.4, Mean: 2.4},
		"sum(backlog): 12 ÷ target 5 per replica = 2.4, so 3 replicas")
	f(5, "depth", Demand{Reading: Reading{Value: 12, Serving: 2}, Target: 5, Total: true, Whole: true, Demand: 4.8, Mean: 4.8},
		"depth: 2 serving × 12 ÷ target 5 = 4.8, so 5 replicas")

	planned := Demand{Plan: &Plan{Objective: 0.99, Limits: promise.Limits{FirstToken: 2.5, Token: 0.025}, Busy: 1.2, Highest: 1.5, Window: 10 * time.Minute, BusyTarget: 0.3}, Demand: 5, Mean: 5}
	f(5, "vllm requests", planned, "vllm requests: the load fills 1.2 replicas now, 1.5 at the peak of the last 10 min. To keep 99 % of the requests within 2.5s to the first token and 25ms between tokens, a replica may be 30 % busy: 1.5 ÷ 0.3 = 5 replicas")
	planned.Plan.Missed = promise.Misses{Planned: 0.004, Starting: 0.0035, Server: 0.0001}
	f(5, "vllm requests", planned, "vllm requests: the load fills 1.2 replicas now, 1.5 at the peak of the last 10 min. To keep 99 % of the requests within 2.5s to the first token and 25ms between tokens, a replica may be 30 % busy: 1.5 ÷ 0.3 = 5 replicas; "+
		"0.76 % of the requests of the last day missed a limit: 0.4 % expected at the planned load, 0.35 % while replicas started")

	planned.Plan.Missed, planned.Plan.Caches = promise.Misses{}, true
	f(5, "vllm requests", planned, "vllm requests: the load fills 1.2 replicas now by their KV caches, 1.5 at the peak of the last 10 min. To keep 99 % of the requests within 2.5s to the first token and 25ms between tokens, a replica may be 30 % busy: 1.5 ÷ 0.3 = 5 replicas")
	planned.Plan.Caches = false

	batch := &Batch{Load: 1.4}
	requests := Demand{Reading: Reading{Value: 22.1, Serving: 2}, Target: 8, Fresh: 2, Batch: batch, Demand: 2.8, Mean: 2.8}
	f(3, "vllm requests", requests, "vllm requests: 22.1 in flight per replica (target 8) count as a load of 1.4, since batches grow faster than the load: 2 serving × 1.4 = 2.8, so 3 replicas; the arrival rate is not known")
	batch.Arrivals = 5.2
	f(3, "vllm requests", requests, "vllm requests: 22.1 in flight per replica (target 8) count as a load of 1.4, since batches grow faster than the load: 2 serving × 1.4 = 2.8, so 3 replicas; "+
		"5.2 requests/s arrive, and how many a replica can take is not learned yet")
	batch.Capacity, batch.LearnedFrom = 2.6, 14*time.Minute
	f(3, "vllm requests", requests, "vllm requests: 22.1 in flight per replica (target 8) count as a load of 1.4, since batches grow faster than the load: 2 serving × 1.4 = 2.8, so 3 replicas; "+
		"by arrivals it is 5.2 requests/s ÷ 2.6 per replica = 2, learned from 14 min of traffic")
	batch.Arrivals = 31
	f(3, "vllm requests", requests, "vllm requests: 22.1 in flight per replica (target 8) count as a load of 1.4, since batches grow faster than the load: 2 serving × 1.4 = 2.8, so 3 replicas; "+
		"by arrivals it is 31.0 requests/s ÷ 2.6 per replica = 11.9, learned from 14 min of traffic, not used yet")
	batch.Arriving, requests.Demand, mostOf = true, 11.92, 2
	f(12, "vllm requests", requests, "vllm requests: 31.0 requests/s ÷ 2.6 per replica = 11.9, so 12 replicas, the most of 2 signals (22.1 in flight per replica, target 8), "+
		"capacity learned from 14 min of traffic")
	requests.TargetLearned, requests.Target, batch.LearnedFrom, mostOf = true, 12.5, 0, 1
	f(12, "vllm requests", requests, "vllm requests: 31.0 requests/s ÷ 2.6 per replica = 11.9, so 12 replicas (22.1 in flight per replica, learned target 12.5), capacity learned earlier")
	batch.Limited, batch.LearnedFrom = true, 40*time.Second
	f(6, "vllm requests", requests, "vllm requests: 31.0 requests/s ÷ 2.6 per replica, limited to twice the demand of the requests in flight: 6 replicas "+
		"(22.1 in flight per replica, learned target 12.5), capacity learned from 40 s of traffic")

	// At the target, requests in flight are the load. A rise of the last minute may ask for more than the peak does.
	f(4, "vllm requests", Demand{Reading: Reading{Value: 8, Serving: 4}, Target: 8, Fresh: 4, Batch: &Batch{Load: 1}, Demand: 4, Mean: 4},
		"vllm requests: 8 in flight per replica (target 8): 4 serving × 1 = 4 replicas; the arrival rate is not known")
	planned.Plan.Missed, planned.Plan.Reserve, planned.Demand = promise.Misses{}, 1.8, 8
	f(8, "vllm requests", planned, "vllm requests: the load fills 1.2 replicas now, 1.5 at the peak of the last 10 min, 1.8 with the reserve. "+
		"To keep 99 % of the requests within 2.5s to the first token and 25ms between tokens, a replica may be 30 % busy: 1.8 ÷ 0.3 = 6; if it goes on rising, 8 replicas")
}

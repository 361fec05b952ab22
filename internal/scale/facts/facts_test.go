// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"testing"
	"time"
)

// What a person on call reads of each step.
func TestSentences(t *testing.T) {
	f := func(facts Facts, c Change, want string) {
		t.Helper()
		if got := Sentence(facts, c); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
	change := func(signal string, before, after int32) Change {
		return Change{Signal: signal, Before: before, After: after}
	}
	keep, down, up, signal := change("", 2, 5), change("", 8, 6), change("", 3, 9), change("SMActive", 2, 5)
	pending, reading := Pending{Starting: 3, Stuck: 1, Wait: 80 * time.Second}, Reading{Serving: 2, Value: 97, Unit: "%"}
	f(Tolerance(0.1), signal, "SMActive is within 10 % of 5 replicas: no change")
	f(Forecast{Demand: 4.2, Wait: time.Minute}, signal, "SMActive is forecast to need 4.2 replicas in 60 s, when a new replica serves: 5")
	f(Saturated{reading}, signal, "try 5: 2 serving at 97 % are saturated, so the load may need more")
	f(Awaited{reading, pending}, signal, "keep 5 until those that start serve: 2 serving at 97 % are saturated, so the load may need more; 3 starting (ready in about 80 s), 1 stuck")
	f(Starting{Pending{Starting: 3}}, keep, "keep 5 instead of 2 until those that start serve: 3 starting")
	f(Replaced{N: 1, Of: 8}, keep, "keep 5 instead of 2: 1 of 8 is being replaced, and a scale-down would remove others")
	f(Measuring{}, signal, "keep 5: SMActive measures for a few seconds how much of a replica a token uses")
	f(Settling{}, signal, "keep 5, and not the 2 of this signal, until the load has spread: the number of serving replicas has just changed")
	f(NotServing{pending}, keep, "keep 5: no replica serves yet, 3 starting (ready in about 80 s), 1 stuck")
	f(Partial{Fresh: 3, Serving: 5}, signal, "keep at least 5: only 3 of 5 serving replicas have a fresh value of SMActive")
	f(Partial{Fresh: 4, Serving: 5, Without: "p-1"}, signal, "keep at least 5: only 4 of 5 serving replicas have a fresh value of SMActive (p-1 has none)")
	f(Missing{}, keep, "keep 5 instead of 2: a signal has no value")
	f(Missing{Term: "queue"}, change("", 5, 5), "keep 5: the formula needs queue, which has no value")
	f(Missing{}, change("", 5, 5), "keep 5: no signal has a value yet, and missing data never scales down")
	f(Missing{Wait: time.Minute}, change("", 5, 5), "keep 5: all signals have been missing for 60 s, and missing data never scales down")
	f(Fallback(15*time.Minute), up, "at least 9 (missingData): all signals have been missing for 15 min")
	f(SignalFallback{}, change("q", 5, 5), "q has no value: its fallback lets the other signals decide")
	f(SignalFallback{Wait: time.Minute, Asks: 9}, Change{"q", 3, 9, 2}, "q has had no value for 60 s: its fallback asks for 9 replicas, the most of 2 signals")
	f(Rollout{Serving: 1, Pending: pending}, keep, "keep 5 instead of 2 until enough serve: a rollout is in progress, 1 serving, 3 starting (ready in about 80 s), 1 stuck")
	f(Rollout{Pending: Pending{Starting: 3}}, keep, "keep 5 instead of 2 until one serves: a rollout is in progress, none serving, 3 starting")
	f(Reduced{reading}, signal, "5, and do not try more: 2 serving at 97 % are saturated because a rollout lets fewer serve")
	f(Active{}, change("", 0, 1), "at least 1: a signal is above its activation threshold")
	f(Inactive{}, change("", 1, 0), "0 replicas: no signal is above its activation threshold")
	f(Inactive{Wait: time.Minute, Window: 5 * time.Minute}, change("", 0, 1), "keep 1 for 60 s more: no signal may be above its activation threshold for 300 s")
	f(Stabilization{Window: time.Minute}, down, "at most 6 (the load needs 8 now): within the scale-up window of 60 s it needed 6")
	f(Stabilization{Down: true, Window: time.Minute, Wait: time.Second}, keep, "keep at least 5 for 1 s (the load needs 2): a scale-down needs data of 60 s")
	f(Stabilization{Down: true, Window: time.Minute, Wait: 20 * time.Second, Ago: 40 * time.Second}, keep, "keep at least 5 for 20 s: the load needed 5 within the scale-down window of 60 s (now 2)")
	f(Rate{Limit: 6, Window: time.Minute}, down, "behavior allows 6 within 60 s: 6 instead of 8")
	f(FirstDescent(2*time.Minute), up, "until the load of four hours is recorded, scale-down is limited to a replica per 120 s: 9 instead of 3")
	f(Descent(time.Minute), up, "scale-down is limited to 20 % of the replicas, at least one, per 60 s: 9 instead of 3")
	f(Min(9), up, "minReplicas is 9: 9 instead of 3")
	f(Max(6), down, "maxReplicas is 6: 6 instead of 8")
	f(Budget(24), down, "the budget is 24 GPUs: 6 instead of 8")
	f(Disabled(true), up, "scaling down is disabled: 9 instead of 3")
	f(Disabled(false), down, "scaling up is disabled: 6 instead of 8")
	f(Pair{With: "decode", Wants: 12, ForEachOfIts: 0.75}, up, "9 instead of 3: its pair decode needs 12 replicas, and for each of them 0.75 of these")
	f(PairUnknown("decode"), up, "keep 9 instead of 3: the need of its pair decode is not known")
	f(Idle(time.Hour), down, "6 instead of 8 until somebody uses it: for 60 min no GPU was active and no request in flight")
	f(Forced("override until 18:00"), down, "override until 18:00: 6 instead of 8")
	f(SetToZero{}, change("", 3, 0), "0 instead of 3 until somebody scales it to 1 or more: the replicas were set to 0, and not by this controller")
	f(Leaving{N: 1, Left: time.Minute}, up, "keep 9 instead of 3 for at most 60 s: a replica finishes its requests before it is removed")
	f(Leaving{N: 2, Left: time.Minute}, up, "keep 9 instead of 3 for at most 60 s: 2 replicas finish their requests before they are removed")
	f(Back(1), up, "back to 9: a replica that was leaving serves again")
	f(Back(2), up, "back to 9: 2 replicas that were leaving serve again")
	f(Ungated("p-1"), down, "p-1 is removed with its requests: it does not declare the readiness gate gpupilot.dev/serving")
	f(Disruption("chat"), up, "keep 9 instead of 3: PodDisruptionBudget chat allows no removal now")
	f(Disruption(""), up, "keep 9 instead of 3: PodDisruptionBudgets cannot be read, so no replica is removed")
}

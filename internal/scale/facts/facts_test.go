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
	f(Tolerance(0.1), signal, "SMActive is within 10 % of its target: no change from 5")
	f(Forecast{Demand: 4.2, Wait: time.Minute}, signal, "SMActive is forecast to need 4.2 replicas in 60 s, when a new replica serves: 5")
	f(Saturated{reading}, signal, "2 serving at 97 % (saturated, the load may be higher): probe with 5")
	f(Awaited{reading, pending}, signal, "2 serving at 97 % (saturated), 3 starting (ready in about 80 s), 1 stuck: keep 5 until they serve")
	f(Starting{Pending{Starting: 3}}, keep, "3 starting: keep 5 instead of 2 until they serve")
	f(Replaced{N: 1, Of: 8}, keep, "1 of 8 is being replaced, and others would be removed: keep 5 instead of 2")
	f(Measuring{}, signal, "SMActive: the cost of a token is measured for a few seconds: keep 5")
	f(Settling{}, signal, "the number of serving replicas has just changed: keep 5 instead of 2 until the load has spread")
	f(NotServing{pending}, keep, "no replica serves yet, 3 starting (ready in about 80 s), 1 stuck: keep 5")
	f(Partial{Fresh: 3, Serving: 5}, signal, "only 3 of 5 serving replicas have a fresh value of SMActive: not below 5")
	f(Partial{Fresh: 4, Serving: 5, Without: "p-1"}, signal, "only 4 of 5 serving replicas have a fresh value of SMActive (p-1 has none): not below 5")
	f(Missing{}, keep, "a signal has no value: keep 5 instead of 2")
	f(Missing{Term: "queue"}, change("", 5, 5), "the formula needs queue, which has no value: keep 5")
	f(Missing{}, change("", 5, 5), "no signal has a value yet, and missing data never scales down: keep 5")
	f(Missing{Wait: time.Minute}, change("", 5, 5), "no signal has had a value for 60 s, and missing data never scales down: keep 5")
	f(Fallback(15*time.Minute), up, "no signal has had a value for 15 min: missingData sets at least 9")
	f(SignalFallback{}, change("q", 5, 5), "q has no value: its fallback lets the other signals decide")
	f(SignalFallback{Wait: time.Minute, Asks: 9}, Change{"q", 3, 9, 2}, "q has had no value for 60 s: its fallback asks for 9 replicas, the most of 2 signals")
	f(Rollout{Serving: 1, Pending: pending}, keep, "a rollout is in progress and 1 serve, 3 starting (ready in about 80 s), 1 stuck: keep 5 instead of 2 until enough do")
	f(Rollout{Pending: Pending{Starting: 3}}, keep, "a rollout is in progress and no replica serves, 3 starting: keep 5 instead of 2 until one does")
	f(Reduced{reading}, signal, "2 serving at 97 % (saturated), fewer than usual because of a rollout: 5, and no probe")
	f(Active{}, change("", 0, 1), "a signal is above its activation: at least 1")
	f(Inactive{}, change("", 1, 0), "no signal is above its activation: 0 replicas")
	f(Inactive{Wait: time.Minute, Window: 5 * time.Minute}, change("", 0, 1), "no signal is above its activation: keep 1 for 60 s of 300 s")
	f(Stabilization{Window: time.Minute}, down, "no more than 6 needed throughout the last 60 s: 6 instead of 8")
	f(Stabilization{Down: true, Window: time.Minute, Wait: time.Second}, keep, "the last 60 s are not known yet: 5 instead of 2 for 1 s more")
	f(Stabilization{Down: true, Window: time.Minute, Wait: 20 * time.Second, Ago: 40 * time.Second}, keep, "5 needed 40 s ago, and the window is 60 s: 5 instead of 2 for 20 s more")
	f(Rate{Limit: 6, Window: time.Minute}, down, "behavior allows 6 within 60 s: 6 instead of 8")
	f(Descent(time.Minute), up, "scale-down is limited to 20 % of the replicas, at least one, per 60 s: 9 instead of 3")
	f(Min(9), up, "minReplicas is 9: 9 instead of 3")
	f(Max(6), down, "maxReplicas is 6: 6 instead of 8")
	f(Budget(24), down, "the budget is 24 GPUs: 6 instead of 8")
	f(Disabled(true), up, "scaling down is disabled: 9 instead of 3")
	f(Disabled(false), down, "scaling up is disabled: 6 instead of 8")
	f(Pair{With: "decode", Wants: 12, ForEachOfIts: 0.75}, up, "its pair decode wants 12, 0.75 for each: 9 instead of 3")
	f(PairUnknown("decode"), up, "what its pair decode wants is not known: keep 9 instead of 3")
	f(Idle(time.Hour), down, "no GPU was active and no request in flight for 60 min: 6 instead of 8 until somebody uses it")
	f(Forced("override until 18:00"), down, "override until 18:00: 6 instead of 8")
	f(SetToZero{}, change("", 3, 0), "the replicas were set to 0, and not by this controller: 0 instead of 3 until they are set to 1 or more")
	f(Leaving{N: 1, Left: time.Minute}, up, "a replica finishes its requests before it is removed, for at most 60 s: keep 9 instead of 3")
	f(Leaving{N: 2, Left: time.Minute}, up, "2 replicas finish their requests before they are removed, for at most 60 s: keep 9 instead of 3")
	f(Back(1), up, "a replica that was to be removed serves again: 9")
	f(Back(2), up, "2 replicas that were to be removed serve again: 9")
	f(Ungated("p-1"), down, "p-1 is removed with its requests: it does not declare the readiness gate gpupilot.dev/serving")
	f(Disruption("chat"), up, "PodDisruptionBudget chat does not allow it now: keep 9 instead of 3")
	f(Disruption(""), up, "PodDisruptionBudgets cannot be read, and unknown is not allowed: keep 9 instead of 3")
}

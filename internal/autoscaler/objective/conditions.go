// SPDX-License-Identifier: Apache-2.0

package objective

import (
	"fmt"
	"math"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/base/excerpt"
	"github.com/gpupilot/gpupilot/internal/scale/words"
	"github.com/gpupilot/gpupilot/internal/window/requests"
)

// The reasons of the conditions. They are public.
const (
	reasonLearning    = "Learning"        // too little load is recorded
	reasonAttainable  = "Attainable"      //
	reasonNearIdle    = "LimitNearIdle"   // attainable, and dear
	reasonBelowIdle   = "LimitBelowIdle"  // an idle replica is slower
	reasonCalmMisses  = "MissedWhileCalm" // more than allowed misses although replicas are hardly busy
	reasonRisesFaster = "LoadRisesFaster" // than replicas start

	reasonMeasured    = "Measured"
	reasonOfTokens    = "MeasuredByTokens" // the servers observe tokens, not requests
	reasonBetween     = "LimitBetweenEdges"
	reasonNoHistogram = "NoHistogram"
)

// The thresholds of what is said of an objective.
const (
	// nearIdle is the multiple of an idle replica's time between tokens below which a limit
	// is dear: replicas may then be busy to a third at most.
	nearIdle = 1.5
	// calmRequests is how many requests must have ended while replicas were hardly busy.
	calmRequests = 1000
	// maxMessage bounds the message of a condition, in bytes.
	maxMessage = 1024
)

// Conditions returns the conditions of the objectives; none if there is no objective. Of
// several objectives the condition is that of the worst.
func Conditions(reports []Report) []metav1.Condition {
	if len(reports) == 0 {
		return nil
	}
	attainable, measured := worst(reports, (*Report).attainable), worst(reports, (*Report).measuredHow)
	attainable.Type, measured.Type = v1alpha1.ConditionAttainable, v1alpha1.ConditionMeasured
	return []metav1.Condition{attainable, measured}
}

// worst returns the condition of the first report that is False, else Unknown, else True.
func worst(reports []Report, judge func(*Report) metav1.Condition) (out metav1.Condition) {
	rank := map[metav1.ConditionStatus]int{metav1.ConditionFalse: 0, metav1.ConditionUnknown: 1, metav1.ConditionTrue: 2}
	for i := range reports {
		c := judge(&reports[i])
		if len(reports) > 1 {
			c.Message = reports[i].Signal + ": " + c.Message
		}
		c.Message = excerpt.Of(c.Message, maxMessage)
		if i == 0 || rank[c.Status] < rank[out.Status] {
			out = c
		}
	}
	return out
}

// attainable judges whether the objective can be kept.
func (r *Report) attainable() metav1.Condition {
	is := func(status metav1.ConditionStatus, reason, format string, args ...any) metav1.Condition {
		return metav1.Condition{Status: status, Reason: reason, Message: fmt.Sprintf(format, args...)}
	}
	allowed, idle := 1-r.Objective, r.cost.Idle
	switch {
	case r.learned && r.Token > 0 && r.Token <= idle:
		return is(metav1.ConditionFalse, reasonBelowIdle,
			"no number of replicas keeps interTokenLatency %s: an idle replica already needs %s between tokens. With a limit of %s, a replica may be 50%% busy",
			words.Latency(r.Token), coarse(idle), coarse(2*idle))
	case r.calm.ended >= calmRequests && r.calm.missed > allowed*r.calm.ended:
		return is(metav1.ConditionFalse, reasonCalmMisses,
			"%s of the requests miss %s even on replicas that are less than 19 %% busy, and the objective allows %s. More replicas do not help: raise the limits, or bound the prompts",
			percentOf(r.calm.missed/r.calm.ended), r.limits(), percent(allowed))
	case r.Plan.Target <= 0:
		return is(metav1.ConditionUnknown, reasonLearning, "too little load is recorded to say how many replicas %s of the requests within %s needs: wait for ten minutes of tokens", percent(r.Objective), r.limits())
	case r.Plan.Short && r.Plan.Needs > 0:
		return is(metav1.ConditionFalse, reasonRisesFaster,
			"the load rises faster than replicas start (%s): with %s replicas on average, %s of the requests of the recorded load miss. To keep %s, it needs a reserve, %s replicas on average: set minReplicas, or an objective of %s",
			r.startup.String(), number(r.Plan.Replicas), percentOf(r.Plan.Share), percent(r.Objective), number(r.Plan.Needs), percent(r.looser()))
	case r.Plan.Short:
		return is(metav1.ConditionFalse, reasonRisesFaster,
			"the load rises faster than replicas start (%s): with %s replicas on average, %s of the requests of the recorded load miss. No reserve within maxReplicas %d keeps %s",
			r.startup.String(), number(r.Plan.Replicas), percentOf(r.Plan.Share), r.max, percent(r.Objective))
	case r.Token > 0 && r.Token < nearIdle*idle:
		return is(metav1.ConditionTrue, reasonNearIdle,
			"%s can be kept with %s replicas on average, but is expensive: without load a token already takes %[4]s of interTokenLatency %[3]s, so a replica may be only %[5]s busy. With a limit of %[6]s, up to %[7]s",
			percent(r.Objective), number(r.Plan.Replicas), words.Latency(r.Token), coarse(idle), percentOf(1-idle/r.Token), words.Latency(2*r.Token), percentOf(1-idle/(2*r.Token)))
	}
	return is(metav1.ConditionTrue, reasonAttainable, "to keep %s of the requests within %s, your recorded load needs %s replicas on average; %s would need %s, and %s would need %s",
		percent(r.Objective), r.limits(), number(r.Plan.Replicas), percent(r.looser()), number(r.Plan.Looser), percent(r.stricter()), number(r.Plan.Stricter))
}

// measuredHow judges whether the servers' histograms tell which requests miss.
func (r *Report) measuredHow() metav1.Condition {
	c := metav1.Condition{Status: metav1.ConditionTrue, Reason: reasonMeasured, Message: "the servers' histograms count the requests over each limit"}
	switch {
	case r.edges.Pods == 0:
		c.Status, c.Reason = metav1.ConditionUnknown, reasonNoHistogram
		c.Message = "no serving replica shows counters of requests and a histogram of each limited latency"
	case r.First > 0 && !r.edges.First.IsEdge():
		c.Status, c.Reason, c.Message = metav1.ConditionFalse, reasonBetween, between("timeToFirstToken", r.First, &r.edges.First)
	case r.Token > 0 && !r.edges.Token.IsEdge():
		c.Status, c.Reason, c.Message = metav1.ConditionFalse, reasonBetween, between("interTokenLatency", r.Token, &r.edges.Token)
	case r.Token > 0 && r.edges.Token.OfTokens:
		c.Reason = reasonOfTokens
		c.Message = "the servers observe the time before each token and not the mean of each request: the share of the tokens over interTokenLatency counts as that of the requests"
	}
	return c
}

// between says which edges of a histogram are next to a limit.
func between(field string, limit float64, b *requests.Bounds) string {
	if b.Upper == 0 {
		return fmt.Sprintf("%s %s is above %s, the last edge of the servers' histogram: requests over it are not counted. Set %[3]s, or the servers' buckets", field, words.Latency(limit), words.Latency(b.Lower))
	}
	if b.Lower == 0 {
		return fmt.Sprintf("%s %s is below %s, the first edge of the servers' histogram: misses count from %[3]s on. Set %[3]s, or the servers' buckets", field, words.Latency(limit), words.Latency(b.Upper))
	}
	return fmt.Sprintf("%s %s lies between the edges %s and %s of the servers' histogram: misses count from %[4]s on, and the bounds are those of both edges. Set %[3]s or %[4]s, or the servers' buckets",
		field, words.Latency(limit), words.Latency(b.Lower), words.Latency(b.Upper))
}

// coarse writes a measured time with two digits.
func coarse(seconds float64) string {
	unit := math.Pow(10, math.Floor(math.Log10(seconds))-1)
	return words.Latency(math.Round(seconds/unit) * unit)
}

// percentOf writes a share with three digits at most.
func percentOf(share float64) string { return number(100*share) + "%" }

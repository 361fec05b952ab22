// SPDX-License-Identifier: Apache-2.0

package metricquery

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"regexp"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/base/excerpt"
)

// The reasons of the condition Ready.
const (
	ReasonValue    = "Value"    // there is a fresh value
	ReasonNoValue  = "NoValue"  // the query, workload or GPUAutoscaler has no value now
	ReasonInvalid  = "Invalid"  // the spec
	ReasonConflict = "Conflict" // an older object has the metric's name
	ReasonLimit    = "Limit"    // the namespace has too many objects
)

// The bounds of an evaluation.
const (
	evaluationTimeout = 30 * time.Second
	maxPause          = 30 * time.Second // between evaluations after failures
	minKept           = 10 * time.Second // how long a value is served after its last evaluation, at least
	keptRounds        = 3                // the same, in intervals
	maxMessage        = 512              // bytes
	minWindow         = time.Second
	maxWindow         = 24 * time.Hour
)

// MetricOfAutoscalers is the external metric with the desired replicas of all
// GPUAutoscalers of a namespace. No MetricQuery has this name.
const MetricOfAutoscalers = "gpupilot_desired_replicas"

// verdict is the reason and message of a condition. An empty reason means no problem.
type verdict struct{ reason, message string }

// notEvaluated is the verdict of a new object.
var notEvaluated = verdict{ReasonNoValue, "not evaluated yet"}

// entry is one MetricQuery with its newest value.
type entry struct {
	k      *Keeper
	object *v1alpha1.MetricQuery // never changed
	metric string
	every  time.Duration
	flaw   error // of the spec
	cancel context.CancelFunc
	wake   chan struct{} // evaluate now

	rescheduled chan struct{} // the time between two evaluations has changed

	mu        sync.Mutex
	suspended verdict // not evaluated
	sample    Sample
	evaluated time.Time // of the last success; zero: none
	problem   error     // of the last evaluation

	status statusWriter // used by run only
}

func newEntry(k *Keeper, q *v1alpha1.MetricQuery, flaw error) *entry {
	e := &entry{
		k: k, object: q, metric: cmp.Or(q.Spec.MetricName, q.Name), every: k.cfg.Every, wake: make(chan struct{}, 1),
		rescheduled: make(chan struct{}, 1), status: statusWriter{last: q.Status},
	}
	if e.flaw = flaw; flaw == nil {
		e.flaw = validate(&q.Spec, e.metric)
	}
	if q.Spec.Query != nil {
		e.every = k.cfg.QueryEvery
	}
	return e
}

var (
	metricName = regexp.MustCompile(`^[a-zA-Z0-9_:]([-a-zA-Z0-9_.:]*[a-zA-Z0-9_:])?$`)
	statName   = regexp.MustCompile(`^(avg|sum|min|max|p[1-9][0-9]?|)$`)
)

// validate checks what the CRD's schema checks, because an object may be older than it,
// and what it cannot check.
func validate(s *v1alpha1.MetricQuerySpec, metric string) error {
	set := 0
	for _, isSet := range []bool{s.Query != nil, s.GPU != nil, s.Autoscaler != nil} {
		if isSet {
			set++
		}
	}
	switch {
	case set != 1:
		return fmt.Errorf("spec: %d of query, gpu and autoscaler are set; set exactly one", set)
	case metric == MetricOfAutoscalers:
		return fmt.Errorf("spec.metricName: %s is the metric of all GPUAutoscalers; use another name", metric)
	case len(metric) > validation.DNS1123SubdomainMaxLength || !metricName.MatchString(metric):
		return fmt.Errorf("spec.metricName: %q is not the name of a metric; use letters, digits, _, :, - and .", excerpt.Of(metric, 80))
	case s.GPU == nil:
		return nil
	case s.GPU.Metric == "" || s.GPU.ScaleTargetRef.Name == "" || s.GPU.ScaleTargetRef.Kind == "":
		return errors.New("spec.gpu: metric, scaleTargetRef.kind and scaleTargetRef.name are needed")
	case !statName.MatchString(s.GPU.Stat):
		return fmt.Errorf("spec.gpu.stat: %q is none of avg, sum, min, max and percentiles p1 to p99", excerpt.Of(s.GPU.Stat, 80))
	}
	if w := s.GPU.Window; w != nil && (w.Duration < minWindow || w.Duration > maxWindow) {
		return fmt.Errorf("spec.gpu.window: %s is not between %s and %s", w.Duration, minWindow, maxWindow)
	}
	return nil
}

func (e *entry) invalid() bool { return e.flaw != nil }

// suspend sets the reason why the object is not evaluated; none if it is.
func (e *entry) suspend(v verdict) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.suspended == v {
		return
	}
	if e.suspended = v; v.reason != "" {
		e.sample, e.evaluated = Sample{}, time.Time{}
	}
	select {
	case e.wake <- struct{}{}:
	default:
	}
}

// run evaluates the object until ctx is done. Between the evaluations of a query that
// backs off it keeps the status up to date, because a value gets old.
func (e *entry) run(ctx context.Context) {
	defer e.cancel()
	var last evaluation
	for due := true; ; {
		if due {
			last = e.evaluateTimed(ctx, last.failures)
		}
		if ctx.Err() != nil {
			return
		}
		e.writeStatus(ctx, time.Now())
		rest := time.Until(last.ended.Add(e.pause(&last)))
		select {
		case <-ctx.Done():
			return
		case <-e.wake:
			due = true
		case <-e.rescheduled:
			due = false
		case <-time.After(min(rest, e.every)):
			due = rest <= e.every
		}
	}
}

// followedLoad bounds the time that the evaluations of a followed query take: the pause
// after one is so many times as long as the evaluation was.
const followedLoad = 3

// evaluation is how an evaluation went.
type evaluation struct {
	ended    time.Time
	took     time.Duration
	failures int     // consecutive ones, this one included
	jitter   float64 // of the pause after failures, so that queries that failed together are not retried together
}

// evaluateTimed evaluates the object after so many failures.
func (e *entry) evaluateTimed(ctx context.Context, failures int) evaluation {
	began := time.Now()
	if failures++; e.evaluate(ctx) {
		failures = 0
	}
	now := time.Now()
	return evaluation{ended: now, took: now.Sub(began), failures: failures, jitter: 0.8 + 0.4*rand.Float64()}
}

// pause returns the time from the end of an evaluation to the next one.
func (e *entry) pause(last *evaluation) time.Duration {
	isQuery := e.object.Spec.Query != nil
	switch {
	case isQuery && last.failures >= 2:
		return time.Duration(last.jitter * float64(min(e.every<<min(last.failures-1, 10), maxPause)))
	case (!isQuery || last.failures == 0) && e.k.followers.often(types.NamespacedName{Namespace: e.object.Namespace, Name: e.object.Name}):
		return min(max(e.k.cfg.FollowedEvery, followedLoad*last.took), e.every)
	}
	return e.every
}

// answered is an error of a query that the backend evaluated: it has no value now, and
// may have one the next time.
type answered interface {
	error
	Answered() bool
}

// evaluate evaluates the object once. It returns false if that failed, so that the next
// evaluation is delayed.
func (e *entry) evaluate(ctx context.Context) bool {
	e.mu.Lock()
	skip := e.flaw != nil || e.suspended.reason != ""
	e.mu.Unlock()
	if skip {
		return true
	}
	ctx, cancel := context.WithTimeout(ctx, evaluationTimeout)
	defer cancel()
	s, err := e.read(ctx)
	if err == nil && (math.IsNaN(s.Value) || math.IsInf(s.Value, 0)) {
		err = fmt.Errorf("the value is %v, not a number", s.Value)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.problem = err; err == nil && e.suspended.reason == "" {
		e.sample, e.evaluated = s, time.Now()
	}
	a, ok := errors.AsType[answered](err)
	return err == nil || ok && a.Answered()
}

func (e *entry) read(ctx context.Context) (Sample, error) {
	ns, spec := e.object.Namespace, &e.object.Spec
	switch {
	case spec.Query != nil:
		return e.k.deps.Query(ctx, ns, spec.Query.PromQL)
	case spec.GPU != nil:
		return e.k.deps.Workload(ctx, ns, spec.GPU)
	}
	return e.k.deps.Desired(ns, spec.Autoscaler.Name)
}

// kept returns how long a value is served after its last evaluation: one failed
// evaluation does not make it disappear.
func (e *entry) kept() time.Duration { return max(keptRounds*e.every, minKept) }

// newest returns the newest value. The error is for the object's author.
func (e *entry) newest(now time.Time) (Sample, error) {
	v := e.verdictAt(now)
	e.mu.Lock()
	defer e.mu.Unlock()
	if v.reason == ReasonValue {
		return e.sample, nil
	}
	return Sample{}, fmt.Errorf("MetricQuery %s/%s has no value (%s): %s", e.object.Namespace, e.object.Name, v.reason, v.message)
}

// verdictAt returns the reason and message of the condition Ready.
func (e *entry) verdictAt(now time.Time) verdict {
	e.mu.Lock()
	defer e.mu.Unlock()
	short := func(err error) string { return excerpt.Of(strings.ToValidUTF8(err.Error(), "?"), maxMessage) }
	switch {
	case e.flaw != nil:
		return verdict{ReasonInvalid, short(e.flaw)}
	case e.suspended.reason != "":
		return e.suspended
	case !e.evaluated.IsZero() && now.Sub(e.evaluated) <= e.kept():
		return verdict{ReasonValue, "the metric has a fresh value"}
	case e.problem != nil:
		return verdict{ReasonNoValue, short(e.problem)}
	}
	return notEvaluated
}

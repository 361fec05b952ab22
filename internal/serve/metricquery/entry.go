// SPDX-License-Identifier: Apache-2.0

package metricquery

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"regexp"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/autoscaler/target"
	"github.com/gpupilot/gpupilot/internal/base/excerpt"
	"github.com/gpupilot/gpupilot/internal/promql/queries"
	"github.com/gpupilot/gpupilot/internal/window/series"
)

// The reasons of the condition Ready.
const (
	ReasonValue    = "Value"    // there is a fresh value
	ReasonNoValue  = "NoValue"  // the query, workload or GPUAutoscaler has no value now
	ReasonInvalid  = "Invalid"  // the spec
	ReasonConflict = "Conflict" // an older object has the metric's name
	ReasonLimit    = "Limit"    // the namespace has too many objects
)

// The bounds of a value.
const (
	minKept    = 10 * time.Second // how long a value is served after its last evaluation, at least
	keptRounds = 3                // the same, in intervals
	maxMessage = 512              // bytes
	minWindow  = time.Second
	maxWindow  = 24 * time.Hour
)

// MetricOfAutoscalers is the external metric with the desired replicas of all
// GPUAutoscalers of a namespace. No MetricQuery has this name.
const MetricOfAutoscalers = target.DesiredMetric

// verdict is the reason and message of a condition. An empty reason means no problem.
type verdict struct{ reason, message string }

// notEvaluated is the verdict of a new object.
var notEvaluated = verdict{ReasonNoValue, "not evaluated yet"}

// entry is one MetricQuery. The scheduler has its newest value.
type entry struct {
	k        *Keeper
	object   *v1alpha1.MetricQuery // never changed
	metric   string
	every    time.Duration // between two evaluations, unless it is followed
	key      queries.Key
	flaw     error // of the spec
	rejected error // why the query is not allowed
	cancel   context.CancelFunc
	wake     chan struct{} // the value or the rival has changed

	mu    sync.Mutex
	rival *entry // the older object with the same metric; nil: none

	status statusWriter // used by run only
}

func newEntry(k *Keeper, q *v1alpha1.MetricQuery, flaw error) *entry {
	e := &entry{
		k: k, object: q, metric: excerpt.Of(cmp.Or(q.Spec.MetricName, q.Name), validation.DNS1123SubdomainMaxLength), every: k.cfg.Every, wake: make(chan struct{}, 1),
		status: statusWriter{last: q.Status},
	}
	if e.flaw = flaw; flaw == nil {
		e.flaw = validate(&q.Spec, e.metric)
	}
	switch {
	case e.flaw != nil:
	case q.Spec.Query != nil:
		limited, trusted, err := k.deps.LimitQuery(q.Namespace, q.Spec.Query.PromQL)
		e.every, e.key, e.rejected = queries.Every, queries.KeyOf(q.Namespace, limited, trusted), err
	default:
		e.key = queries.Key{Scope: q.Namespace, Object: fmt.Sprintf("MetricQuery %s/%s/%d", q.Name, q.UID, q.Generation)}
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

// owner returns the object as an owner of its query.
func (e *entry) owner() queries.Owner {
	q := queries.Query{Key: e.key, Every: e.every}
	if e.key.Object != "" {
		q.Read = e.read
	}
	if e.k.followers.often(types.NamespacedName{Namespace: e.object.Namespace, Name: e.object.Name}) {
		q.Every = min(e.k.cfg.FollowedEvery, e.every)
	}
	return queries.Owner{Name: e.object.Name, Created: e.object.CreationTimestamp.Time, Queries: []queries.Query{q}, Changed: e.changed}
}

// read reads the value of an object without PromQL.
func (e *entry) read(ctx context.Context) (series.Sample, error) {
	var s Sample
	var err error
	if ns, spec := e.object.Namespace, &e.object.Spec; spec.GPU != nil {
		s, err = e.k.deps.Workload(ctx, ns, spec.GPU)
	} else {
		s, err = e.k.deps.Desired(ns, spec.Autoscaler.Name)
	}
	return series.Sample{At: s.At, Value: s.Value}, err
}

// changed has the status written. It does not block.
func (e *entry) changed() {
	select {
	case e.wake <- struct{}{}:
	default:
	}
}

// setRival sets the older object that serves the metric; nil if this one does.
func (e *entry) setRival(rival *entry) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.rival != rival {
		e.rival = rival
		e.changed()
	}
}

// run keeps the status up to date until ctx is done: a value gets old without a change.
func (e *entry) run(ctx context.Context) {
	defer e.cancel()
	for {
		e.writeStatus(ctx)
		select {
		case <-ctx.Done():
			return
		case <-e.wake:
		case <-time.After(e.every + e.every/2): // later than the next evaluation, which has the status written anyway
		}
	}
}

// kept returns how long a value is served after its last evaluation: one failed
// evaluation does not make it disappear.
func (e *entry) kept() time.Duration { return max(keptRounds*e.every, minKept) }

// answer returns the newest answer to the query, and the reason and message of the
// condition Ready at now.
func (e *entry) answer(now time.Time) (queries.Answer, verdict) {
	e.mu.Lock()
	rival := e.rival
	e.mu.Unlock()
	short := func(text string) string { return excerpt.Of(text, maxMessage) }
	if e.flaw != nil {
		return queries.Answer{}, verdict{ReasonInvalid, short(e.flaw.Error())}
	}
	if rival != nil {
		if a, v := rival.answer(now); v.reason == ReasonLimit {
			return a, v // it serves nothing, and this one is newer
		}
		return queries.Answer{}, verdict{ReasonConflict, fmt.Sprintf("the metric %s is served by the older MetricQuery %s; set another metricName, or delete one of the two", e.metric, rival.object.Name)}
	}
	if e.rejected != nil {
		return queries.Answer{}, verdict{ReasonNoValue, short(e.rejected.Error())}
	}
	a := e.k.deps.Queries.Answer(e.object.Namespace, e.key)
	switch {
	case a.Refused:
		return a, verdict{ReasonLimit, a.Problem}
	case !a.Evaluated.IsZero() && now.Sub(a.Evaluated) <= e.kept():
		return a, verdict{ReasonValue, "the metric has a fresh value"}
	case a.Problem != "":
		return a, verdict{ReasonNoValue, short(a.Problem)}
	}
	return a, notEvaluated
}

// newest returns the newest value. The error is for the object's author.
func (e *entry) newest(now time.Time) (s Sample, isRefused bool, err error) {
	a, v := e.answer(now)
	if v.reason != ReasonValue {
		err = fmt.Errorf("MetricQuery %s/%s has no value (%s): %s", e.object.Namespace, e.object.Name, v.reason, v.message)
		return Sample{}, v.reason == ReasonLimit, err
	}
	return Sample{a.Sample.Value, a.Sample.At}, false, nil
}

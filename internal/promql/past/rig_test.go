// SPDX-License-Identifier: Apache-2.0

package past

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/value"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb/chunkenc"

	"github.com/gpupilot/gpupilot/internal/base/fair"
	"github.com/gpupilot/gpupilot/internal/promql/engine"
	"github.com/gpupilot/gpupilot/internal/promql/windows"
	"github.com/gpupilot/gpupilot/internal/window/history"
	"github.com/gpupilot/gpupilot/internal/window/series"
)

// now is the newest time of the tests' series, a whole minute.
var now = time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC)

// at is so many minutes before now.
func at(minutes float64) time.Time { return now.Add(-time.Duration(minutes * float64(time.Minute))) }

// families are those of the tests.
func families() []history.Family {
	return []history.Family{
		{Name: "gpu", Over: "gpus"},
		{Name: "replicas", Labels: []history.Label{{Name: "state"}}},
		{Name: "signal_value", Labels: []history.Label{{Name: "signal"}, {Name: "unit"}, {Name: "per"}}},
	}
}

// rig is a store over windows and minutes that a test fills.
type rig struct {
	testing.TB
	windows *series.Store
	minutes *history.Store
	store   *Store
	engine  *engine.Engine
}

func newRig(tb testing.TB, cfg engine.Config) *rig {
	r := &rig{TB: tb, windows: series.New(series.Config{}), minutes: history.New(history.Config{MaxBytes: 1 << 30})}
	recent := windows.New(windows.Config{Keep: windows.KeepAll}, windows.Deps{Windows: r.windows})
	job, instance := recent.OwnLabels()
	r.store = New(Config{Lookback: windows.DefaultLookback, Job: job, Instance: instance}, Deps{Recent: recent, Minutes: r.minutes, Families: families()})
	cfg.Lookback = windows.DefaultLookback
	r.engine = engine.New(cfg, r.store)
	return r
}

// record adds the minute that begins so many minutes before now. A value is METRIC=MEAN.
func (r *rig) record(namespace, name string, before int, values ...history.Value) {
	r.Helper()
	w := history.Workload{Namespace: namespace, Kind: "GPUAutoscaler", Name: name}
	if err := r.minutes.Append(w, at(float64(before)), values); err != nil {
		r.Fatal(err)
	}
}

func mean(m history.Metric, v float64) history.Value {
	return history.Value{Metric: m, Mean: v, Max: math.NaN(), Count: math.NaN()}
}

// serving is the metric of most tests.
func serving(v float64) history.Value { return mean(`replicas{state="serving"}`, v) }

// signal is a metric of a signal's value.
func signal(name string) history.Metric {
	return history.NewMetric("signal_value", "signal", name, "unit", "%", "per", "replica")
}

// expose adds a sample of replicas of ml/chat to the windows each second, from one time
// until another. The series then leaves the page, if ends is true.
func (r *rig) expose(from, to time.Time, v float64, ends bool) {
	r.Helper()
	_, instance := r.store.deps.Recent.(*windows.Store).OwnLabels()
	target := r.windows.Target("controller", series.TargetLabels{Instance: instance, Job: r.store.cfg.Job})
	ref, ok := target.Ref(series.Key{Line: "replicas"})
	if !ok {
		r.Fatal("no room")
	}
	l := labels.FromStrings("__name__", "replicas", "namespace", "ml", "name", "chat", "state", "serving", "instance", instance, "job", r.store.cfg.Job)
	var b series.Batch
	b.Add(ref, v)
	target.Expose(from, []series.Exposed{{Labels: l, Ref: ref, Scale: 1}})
	for t := from; t.Before(to); t = t.Add(time.Second) {
		if _, err := target.Append(t, &b); err != nil {
			r.Fatal(err)
		}
	}
	if ends {
		target.Expose(to, nil)
	}
}

// samples lists the samples of each series as MINUTES=VALUE, in minutes before now.
func (r *rig) samples(from, to time.Time, matchers ...*labels.Matcher) map[string]string {
	r.Helper()
	q, err := r.store.Querier(from.UnixMilli(), to.UnixMilli())
	if err != nil {
		r.Fatal(err)
	}
	set := q.Select(r.Context(), true, &storage.SelectHints{Start: from.UnixMilli(), End: to.UnixMilli(), Range: 1}, matchers...)
	out := map[string]string{}
	var it chunkenc.Iterator
	for set.Next() {
		var words []string
		for it = set.At().Iterator(it); it.Next() == chunkenc.ValFloat; {
			t, v := it.At()
			text := fmt.Sprintf("%.4g=%g", now.Sub(time.UnixMilli(t)).Minutes(), v)
			if value.IsStaleNaN(v) {
				text = fmt.Sprintf("%.4g=stale", now.Sub(time.UnixMilli(t)).Minutes())
			}
			words = append(words, text)
		}
		out[short(set.At().Labels())] = strings.Join(words, " ")
	}
	if set.Err() != nil {
		r.Fatal(set.Err())
	}
	return out
}

// short writes labels without those of the target.
func short(l labels.Labels) string {
	return labels.NewBuilder(l).Del("instance", "job").Labels().String()
}

func equals(name, v string) *labels.Matcher {
	return labels.MustNewMatcher(labels.MatchEqual, name, v)
}

// query evaluates a query in a range, or at its end if the step is zero, and lists the
// values as samples does.
func (r *rig) query(text string, from, to time.Time, step time.Duration, namespaces ...string) (map[string]string, error) {
	q := engine.Query{PromQL: text, Payer: fair.Namespace("test"), Namespaces: namespaces}
	out := map[string]string{}
	if step == 0 {
		v, _, err := r.engine.Instant(context.Background(), q, to)
		if vector, ok := v.(promql.Vector); ok {
			for _, s := range vector {
				out[short(s.Metric)] = fmt.Sprintf("%g", s.F)
			}
		}
		return out, err
	}
	m, _, err := r.engine.Range(context.Background(), q, from, to, step)
	for _, s := range m {
		var words []string
		for _, p := range s.Floats {
			words = append(words, fmt.Sprintf("%.4g=%g", now.Sub(time.UnixMilli(p.T)).Minutes(), p.F))
		}
		out[short(s.Metric)] = strings.Join(words, " ")
	}
	return out, err
}

// keys are the series of an answer, sorted.
func keys(answer map[string]string) string {
	var out []string
	for k := range answer {
		out = append(out, k)
	}
	slices.Sort(out)
	return strings.Join(out, "\n")
}

// SPDX-License-Identifier: Apache-2.0

package adapter

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	kubelabels "k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// backend is a PromQL backend with fixed series. Every query returns them all.
type backend struct {
	mu      sync.Mutex // for series, where a test sets them beside Run
	series  []labels.Labels
	values  []float64
	queries atomic.Int32
	last    atomic.Pointer[string]
	err     error
	block   chan struct{}
}

func (b *backend) read(_ context.Context, matchers []*labels.Matcher, yield func(labels.Labels) bool) error {
	b.mu.Lock()
	series := b.series
	b.mu.Unlock()
	for _, s := range series {
		if !slices.ContainsFunc(matchers, func(m *labels.Matcher) bool { return !m.Matches(s.Get(m.Name)) }) && !yield(s) {
			break
		}
	}
	return b.err
}

func (b *backend) set(series []labels.Labels) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.series = series
}

func (b *backend) query(_ context.Context, promql string, at time.Time) (out []Sample, err error) {
	b.queries.Add(1)
	b.last.Store(&promql)
	if b.block != nil {
		<-b.block
	}
	for i, s := range b.series {
		out = append(out, Sample{s, b.values[i%len(b.values)], at})
	}
	return out, b.err
}

func newServer(t testing.TB, b *backend, file string) (*Server, *bytes.Buffer) {
	t.Helper()
	var log bytes.Buffer
	s := New(ServerConfig{}, Deps{Backend: Backend{Series: b.read, Query: b.query}, Log: slog.New(slog.NewTextHandler(&log, nil))})
	if err := s.Load([]byte(file)); err != nil {
		t.Fatal(err)
	}
	s.Discover(t.Context())
	return s, &log
}

const gpuRule = `
rules:
- seriesQuery: DCGM_FI_DEV_GPU_UTIL
  resources: {overrides: {namespace: {resource: namespace}, pod: {resource: pod}}}
  name: {as: gpu_util}
  metricsQuery: avg(<<.Series>>{<<.LabelMatchers>>}) by (<<.GroupBy>>)
`

func gpuSeries(pods ...string) (out []labels.Labels) {
	for _, p := range pods {
		out = append(out, labels.FromStrings("__name__", "DCGM_FI_DEV_GPU_UTIL", "namespace", "ml", "pod", p))
	}
	return out
}

func objects(names ...string) *Objects {
	return &Objects{Resource: pods, Namespace: "ml", Names: names, Selector: kubelabels.Everything()}
}

// Many requests within a tick are one query.
func TestOneQueryForANamespace(t *testing.T) {
	b := &backend{series: gpuSeries("a", "b", "c"), values: []float64{10, 20, math.NaN()}}
	s, _ := newServer(t, b, gpuRule)
	now := time.Unix(100, 0)
	f := func(at time.Time, want string, names ...string) {
		t.Helper()
		got, err := s.Values(t.Context(), "gpu_util", objects(names...), at)
		if text := fmt.Sprint(got); err != nil || text != want {
			t.Errorf("%v: %s, %v; want %s", names, text, err, want)
		}
	}
	f(now, fmt.Sprint([]Value{{"a", 10, now}}), "a", "nope")
	f(now, fmt.Sprint([]Value{{"b", 20, now}}), "b")
	f(now.Add(999*time.Millisecond), "[]", "c") // NaN is absent
	f(now, "[]")
	if n := b.queries.Load(); n != 1 {
		t.Errorf("%d queries, want 1", n)
	}
	if q, want := *b.last.Load(), `avg(DCGM_FI_DEV_GPU_UTIL{namespace="ml",pod!=""}) by (pod)`; q != want {
		t.Errorf("%s, want %s", q, want)
	}
	later := now.Add(time.Second)
	f(later, fmt.Sprint([]Value{{"a", 10, later}}), "a")
	if n := b.queries.Load(); n != 2 {
		t.Errorf("%d queries, want a second one after a tick", n)
	}
	if _, err := s.Values(t.Context(), "nope", objects("a"), now); !errors.Is(err, ErrUnknown) {
		t.Errorf("an unknown metric: %v", err)
	}
}

// Concurrent requests are one query. A request that is gone does not end it.
func TestConcurrentRequestsAreOneQuery(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &backend{series: gpuSeries("a"), values: []float64{1}, block: make(chan struct{})}
		s, _ := newServer(t, b, gpuRule)
		var all sync.WaitGroup
		for i := range 20 {
			all.Go(func() {
				if v, err := s.Values(t.Context(), "gpu_util", objects("a"), time.Unix(int64(i), 0)); err != nil || len(v) != 1 {
					t.Errorf("%v, %v", v, err)
				}
			})
		}
		synctest.Wait()
		if _, err := s.Values(canceled(t), "gpu_util", objects("a"), time.Unix(0, 0)); !errors.Is(err, context.Canceled) {
			t.Errorf("a request that is gone: %v", err)
		}
		close(b.block)
		all.Wait()
		if n := b.queries.Load(); n != 1 || s.Queries() != 1 {
			t.Errorf("%d queries, and %d are counted", n, s.Queries())
		}
	})
}

func TestErrorsNameTheRule(t *testing.T) {
	b := &backend{series: gpuSeries("a"), values: []float64{1}}
	s, _ := newServer(t, b, gpuRule)
	b.err = errors.New("down")
	_, err := s.Values(t.Context(), "gpu_util", objects("a"), time.Unix(1, 0))
	if err == nil || err.Error() != "metric gpu_util of the adapter's rules[0]: down" {
		t.Error(err)
	}
	s.Discover(t.Context())
	if !s.Unreadable() || !knows(s, pods, "gpu_util") {
		t.Error("the metrics were forgotten when their series could not be read")
	}
}

// A failure is logged when it begins and when it ends. What was known stays known.
func TestFailuresEnd(t *testing.T) {
	b := &backend{series: append(gpuSeries("a"), labels.FromStrings("__name__", "queue", "namespace", "ml")), values: []float64{1}}
	s, log := newServer(t, b, gpuRule+"externalRules:\n- {seriesQuery: queue, metricsQuery: '<<.Series>>{<<.LabelMatchers>>}'}")
	at := time.Unix(1, 0)
	step := func(err error, query bool, logged ...string) {
		t.Helper()
		log.Reset()
		b.err = err
		if query {
			at = at.Add(time.Minute)
			if _, got := s.External(t.Context(), "queue", "ml", kubelabels.Everything(), at); !errors.Is(got, err) || err != nil && got.Error() != "metric queue of the adapter's externalRules[0]: "+err.Error() {
				t.Errorf("the query: %v, want %v", got, err)
			}
		} else {
			s.Discover(t.Context())
		}
		if n := strings.Count(log.String(), "\n"); n != len(logged) || n > 0 && !strings.Contains(log.String(), logged[0]) {
			t.Errorf("the log is\n%s\nwant %q", log, logged)
		}
		if names := s.Names(); !slices.Equal(names, []string{"DCGM_FI_DEV_GPU_UTIL", "queue"}) || s.Unreadable() != (err != nil && !query) && !query {
			t.Errorf("the series are %q, unreadable %v", names, s.Unreadable())
		}
	}
	down := errors.New("down")
	step(down, true, "the query of an adapter rule fails")
	step(down, true)
	step(nil, true, "the query of an adapter rule works again")
	step(nil, true)
	b.series = nil // what cannot be read is not there, but known
	step(down, false, "the series of the adapter's rules cannot be read")
	step(down, false)
	b.series = append(gpuSeries("a"), labels.FromStrings("__name__", "queue", "namespace", "ml"))
	step(nil, false, "the series of the adapter's rules can be read again")
	if s.Discover(canceled(t)); s.index.Load() == nil || len(s.Metrics()) == 0 {
		t.Error("a discovery that was cancelled changed the metrics")
	}
	before := s.index.Load()
	if s.Discover(canceled(t)); s.index.Load() != before {
		t.Error("a discovery that was cancelled changed the metrics")
	}
	// The request is wrong, not the backend.
	for _, err := range []error{
		func() error { _, err := s.External(t.Context(), "queue", "ml", kubelabels.Nothing(), at); return err }(),
		func() error {
			_, err := s.Values(t.Context(), "gpu_util", &Objects{Resource: pods, Namespace: "ml", Names: []string{"a"}, Selector: kubelabels.Nothing()}, at)
			return err
		}(),
	} {
		if !errors.Is(err, ErrRequest) {
			t.Errorf("a selector of nothing: %v", err)
		}
	}
}

// Run discovers at once, periodically, and after a new file.
func TestRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &backend{values: []float64{1}}
		s := New(ServerConfig{Resolve: func(context.Context, string, string) (Kind, bool, error) { return Kind{}, false, nil }}, Deps{Backend: Backend{Series: b.read, Query: b.query}, Log: slog.New(slog.DiscardHandler)})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { defer close(ended); s.Run(ctx) }()
		f := func(after time.Duration, want bool) {
			t.Helper()
			time.Sleep(after)
			synctest.Wait()
			if knows(s, pods, "gpu_util") != want {
				t.Errorf("the metric is known: %v, want %v", !want, want)
			}
		}
		f(0, false)
		if err := s.Load([]byte(gpuRule)); err != nil {
			t.Fatal(err)
		}
		f(0, false)
		b.set(gpuSeries("a"))
		f(30*time.Second-1, false)
		f(1, true)
		b.set(nil)
		if err := s.Load([]byte(gpuRule)); err != nil {
			t.Fatal(err)
		}
		f(0, false)
		cancel()
		<-ended
	})
}

// Two series that one rule gives the same name are one metric, with a warning.
func TestTwoSeriesForAMetric(t *testing.T) {
	b := &backend{values: []float64{1}, series: []labels.Labels{
		labels.FromStrings("__name__", "b", "pod", "p"), labels.FromStrings("__name__", "a", "pod", "p"), labels.FromStrings("__name__", "a", "pod", "q"), labels.FromStrings("__name__", "skip", "pod", "q"),
	}}
	s, log := newServer(t, b, `rules: [{seriesQuery: '{pod!=""}', seriesFilters: [{isNot: skip}], resources: {template: <<.Resource>>}, name: {as: one}, metricsQuery: '<<.Series>>{<<.LabelMatchers>>}'}]`)
	if n := strings.Count(log.String(), "rules[0]: the series a and b both become pods/one"); n != 1 || len(s.Metrics()) != 1 {
		t.Errorf("%v\n%s", s.Metrics(), log)
	}
	if _, err := s.Values(t.Context(), "one", objects("p"), time.Unix(1, 0)); err != nil || *b.last.Load() != `a{namespace="ml",pod!=""}` {
		t.Errorf("%v, %s", err, *b.last.Load())
	}
}

// A broken file keeps the rules before it. The first file's good rules are served.
func TestBrokenFile(t *testing.T) {
	b := &backend{series: gpuSeries("a"), values: []float64{1}}
	s, _ := newServer(t, b, gpuRule)
	for _, broken := range []string{"rules: [", gpuRule + "- {seriesQuery: up}"} {
		if err := s.Load([]byte(broken)); err == nil || !s.Broken() {
			t.Errorf("%q was accepted", broken)
		}
		if s.Discover(t.Context()); !knows(s, pods, "gpu_util") {
			t.Error("a broken file removed the rules")
		}
	}
	s = New(ServerConfig{}, Deps{Backend: Backend{Series: b.read, Query: b.query}, Log: slog.New(slog.DiscardHandler)})
	err := s.Load([]byte(gpuRule + "- {seriesQuery: up}"))
	if s.Discover(t.Context()); err == nil || !strings.Contains(err.Error(), "rules[1].metricsQuery") || !knows(s, pods, "gpu_util") {
		t.Errorf("%v", err)
	}
	if err := s.Load([]byte("rules: [{seriesQuery: other, metricsQuery: up}]")); err != nil || s.Broken() {
		t.Error(err)
	}
	if s.Discover(t.Context()); knows(s, pods, "gpu_util") {
		t.Error("a removed rule is still served")
	}
}

// Of two rules that claim a metric the last one has it, with a warning.
func TestTwoRulesForAMetric(t *testing.T) {
	b := &backend{series: gpuSeries("a"), values: []float64{1}}
	_, log := newServer(t, b, gpuRule+`
- seriesQuery: '{__name__=~"DCGM_.*"}'
  resources: {overrides: {namespace: {resource: namespace}, pod: {resource: pod}}}
  name: {as: gpu_util}
  metricsQuery: max(<<.Series>>{<<.LabelMatchers>>}) by (<<.GroupBy>>)
`)
	if !strings.Contains(log.String(), "rules[0] and rules[1] both claim pods/gpu_util: the last one serves it") {
		t.Error(log.String())
	}
}

// Series of tenants cannot grow the list of metrics without bound.
func TestBoundedMetrics(t *testing.T) {
	b := &backend{values: []float64{1}}
	for i := range maxMetrics + 50 {
		b.series = append(b.series, labels.FromStrings("__name__", fmt.Sprintf("m%d", i), "pod", "a"))
	}
	s, log := newServer(t, b, "rules:\n- {seriesQuery: '{pod!=\"\"}', resources: {template: <<.Resource>>}, metricsQuery: <<.Series>>}")
	if n := len(s.Metrics()); n != maxMetrics || !strings.Contains(log.String(), "more than 10000 metrics") {
		t.Errorf("%d metrics\n%.300s", n, log)
	}
}

func TestExternal(t *testing.T) {
	b := &backend{series: []labels.Labels{labels.FromStrings("__name__", "queue", "namespace", "ml", "topic", "a")}, values: []float64{7}}
	s, _ := newServer(t, b, "externalRules:\n- {seriesQuery: queue, metricsQuery: 'sum(<<.Series>>{<<.LabelMatchers>>}) by (topic)', name: {as: depth}}")
	got, err := s.External(t.Context(), "depth", "ml", kubelabels.Everything(), time.Unix(1, 0))
	if err != nil || len(got) != 1 || got[0].Value != 7 || *b.last.Load() != `sum(queue{namespace="ml"}) by (topic)` {
		t.Errorf("%v, %v from %s", got, err, *b.last.Load())
	}
	if names := s.ExternalMetrics(); !slices.Equal(names, []string{"depth"}) || !s.HasExternal("depth") || s.HasExternal("queue") {
		t.Errorf("%v", names)
	}
	if _, err := s.External(t.Context(), "queue", "ml", kubelabels.Everything(), time.Unix(1, 0)); !errors.Is(err, ErrUnknown) {
		t.Error(err)
	}
}

// A file with 50 rules over 5,000 pods: one discovery, and one refresh of all metrics.
func BenchmarkFiftyRules(b *testing.B) {
	const rules, podCount = 50, 5000
	back := &backend{values: []float64{1}}
	var file strings.Builder
	file.WriteString("rules:\n")
	for r := range rules {
		fmt.Fprintf(&file, "- {seriesQuery: 'm%d{pod!=\"\"}', resources: {template: <<.Resource>>}, metricsQuery: 'avg(<<.Series>>{<<.LabelMatchers>>}) by (<<.GroupBy>>)'}\n", r)
	}
	names := make([]string, podCount)
	for i := range names {
		names[i] = fmt.Sprintf("model-%d", i)
		back.series = append(back.series, labels.FromStrings("__name__", "m0", "namespace", "ml", "pod", names[i], "node", "n", "gpu", "0"))
	}
	s, _ := newServer(b, back, file.String())
	b.Run("discover", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			for range rules {
				var x shapes
				_ = back.read(b.Context(), nil, x.add)
			}
		}
	})
	b.Run("values", func(b *testing.B) {
		b.ReportAllocs()
		now := time.Unix(1, 0)
		for b.Loop() {
			now = now.Add(time.Second)
			if v, err := s.Values(b.Context(), "m0", objects(names...), now); err != nil || len(v) != podCount {
				b.Fatal(len(v), err)
			}
		}
	})
}

// An override of a custom resource is served while the API server serves the resource.
// An API server that does not answer changes nothing.
func TestCustomResources(t *testing.T) {
	b := &backend{values: []float64{7}, series: []labels.Labels{
		labels.FromStrings("__name__", "queue", "namespace", "ml", "model", "chat", "kube_evil_io_thing", "x"),
	}}
	isvc := namespaced("serving.kserve.io", "inferenceservices", "inferenceservice")
	served, down, asked := false, false, 0
	var log bytes.Buffer
	s := New(ServerConfig{Resolve: func(_ context.Context, group, resource string) (Kind, bool, error) {
		if asked++; down {
			return Kind{}, false, errors.New("timeout")
		}
		if group != isvc.Group || resource != isvc.Singular {
			t.Errorf("asked about %s.%s", resource, group)
		}
		return isvc, served, nil
	}}, Deps{Backend: Backend{Series: b.read, Query: b.query}, Log: slog.New(slog.NewTextHandler(&log, nil))})
	err := s.Load([]byte(`
rules:
- seriesQuery: queue
  resources:
    overrides: {namespace: {resource: namespace}, model: {group: serving.kserve.io, resource: inferenceservice}}
    template: kube_<<.Group>>_<<.Resource>>
  metricsQuery: sum(<<.Series>>{<<.LabelMatchers>>}) by (<<.GroupBy>>)
`))
	if err != nil {
		t.Fatal(err)
	}
	f := func(want string) {
		t.Helper()
		s.Discover(t.Context())
		if got := fmt.Sprint(s.Metrics()); got != want {
			t.Errorf("metrics %s, want %s", got, want)
		}
	}
	const both = "[inferenceservices.serving.kserve.io/queue namespaces/queue]"
	f("[namespaces/queue]")
	if want := `rules[0].resources.overrides[model].resource: \"inferenceservice.serving.kserve.io\" is no resource`; !strings.Contains(log.String(), want) {
		t.Errorf("no warning %s in\n%s", want, log.String())
	}
	served = true
	f(both)
	o := &Objects{Resource: isvc.GroupResource, Namespace: "ml", Names: []string{"chat"}, Selector: kubelabels.Everything()}
	now := time.Unix(100, 0)
	if got, err := s.Values(t.Context(), "queue", o, now); err != nil || fmt.Sprint(got) != fmt.Sprint([]Value{{"chat", 7, now}}) {
		t.Errorf("%v, %v", got, err)
	}
	if q, want := *b.last.Load(), `sum(queue{namespace="ml",model!=""}) by (model)`; q != want {
		t.Errorf("%s, want %s", q, want)
	}
	down = true
	f(both)
	down, served = false, false
	f("[namespaces/queue]")
	if asked != 4 {
		t.Errorf("the API server was asked %d times in 4 discoveries", asked)
	}
}

// knows reports whether a rule makes a metric of that name for a resource.
func knows(s *Server, resource schema.GroupResource, metric string) bool {
	_, ok := s.index.Load().entries[Metric{resource, metric}]
	return ok
}

// A query without LabelMatchers reads all namespaces: a pod of another one with the same
// name is not answered.
func TestAValueOfAnotherNamespace(t *testing.T) {
	now := time.Unix(100, 0)
	b := &backend{series: []labels.Labels{
		labels.FromStrings("__name__", "x", "exported_namespace", "evil", "exported_pod", "a"),
		labels.FromStrings("__name__", "x", "exported_namespace", "ml", "exported_pod", "a"),
		labels.FromStrings("__name__", "x", "exported_namespace", "evil", "exported_pod", "b"),
	}, values: []float64{1, 2, 3}}
	s, _ := newServer(t, b, `
rules:
- seriesQuery: x
  resources: {overrides: {exported_namespace: {resource: namespace}, exported_pod: {resource: pod}}}
  metricsQuery: avg by (exported_namespace, exported_pod) (<<.Series>>)
`)
	f := func(namespace, want string) {
		t.Helper()
		o := objects("a", "b")
		o.Namespace = namespace
		got, err := s.Values(t.Context(), "x", o, now)
		if text := fmt.Sprint(got); err != nil || text != want {
			t.Errorf("%s: %s, %v; want %s", namespace, text, err, want)
		}
	}
	f("ml", fmt.Sprint([]Value{{"a", 2, now}}))
	f("evil", fmt.Sprint([]Value{{"a", 1, now}, {"b", 3, now}}))
}

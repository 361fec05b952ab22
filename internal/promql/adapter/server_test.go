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
	"time"

	"github.com/prometheus/prometheus/model/labels"
	kubelabels "k8s.io/apimachinery/pkg/labels"
)

// backend is a PromQL backend with fixed series. Every query returns them all.
type backend struct {
	series  []labels.Labels
	values  []float64
	queries atomic.Int32
	last    atomic.Pointer[string]
	err     error
	block   chan struct{}
}

func (b *backend) read(_ context.Context, matchers []*labels.Matcher, yield func(labels.Labels) bool) error {
	for _, s := range b.series {
		if !slices.ContainsFunc(matchers, func(m *labels.Matcher) bool { return !m.Matches(s.Get(m.Name)) }) && !yield(s) {
			break
		}
	}
	return b.err
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
	s := New(ServerConfig{}, Deps{Series: b.read, Query: b.query, Log: slog.New(slog.NewTextHandler(&log, nil))})
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

// Concurrent requests wait for the query that runs, even if it is slow.
func TestConcurrentRequestsShareAQuery(t *testing.T) {
	b := &backend{series: gpuSeries("a"), values: []float64{1}, block: make(chan struct{})}
	s, _ := newServer(t, b, gpuRule)
	var started, done sync.WaitGroup
	for i := range 20 {
		started.Add(1)
		done.Go(func() {
			started.Done()
			if v, err := s.Values(t.Context(), "gpu_util", objects("a"), time.Unix(int64(i), 0)); err != nil || len(v) != 1 {
				t.Errorf("%v, %v", v, err)
			}
		})
	}
	started.Wait()
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if b.queries.Load() > 0 { // else this request would start the query, and block
		if _, err := s.Values(gone, "gpu_util", objects("a"), time.Unix(0, 0)); !errors.Is(err, context.Canceled) {
			t.Errorf("a request that is gone: %v", err)
		}
	}
	close(b.block)
	done.Wait()
	if n := b.queries.Load(); n > 20 || n < 1 {
		t.Errorf("%d queries", n)
	}
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
	if !s.Unreadable() || !s.Knows(pods, "gpu_util") {
		t.Error("the metrics were forgotten when their series could not be read")
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
		if s.Discover(t.Context()); !s.Knows(pods, "gpu_util") {
			t.Error("a broken file removed the rules")
		}
	}
	s = New(ServerConfig{}, Deps{Series: b.read, Query: b.query, Log: slog.New(slog.DiscardHandler)})
	err := s.Load([]byte(gpuRule + "- {seriesQuery: up}"))
	if s.Discover(t.Context()); err == nil || !strings.Contains(err.Error(), "rules[1].metricsQuery") || !s.Knows(pods, "gpu_util") {
		t.Errorf("%v", err)
	}
	if err := s.Load([]byte("rules: [{seriesQuery: other, metricsQuery: up}]")); err != nil || s.Broken() {
		t.Error(err)
	}
	if s.Discover(t.Context()); s.Knows(pods, "gpu_util") {
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
	}}, Deps{Series: b.read, Query: b.query, Log: slog.New(slog.NewTextHandler(&log, nil))})
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

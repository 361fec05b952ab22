// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"context"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"github.com/prometheus/prometheus/tsdb/chunks"
	"github.com/prometheus/prometheus/util/annotations"
	k8slabels "k8s.io/apimachinery/pkg/labels"
)

func gatewaySpec(signal string) string {
	return "scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: chat}\nmaxReplicas: 8\nminReplicas: 0\nsignals:\n- " + signal + "\n"
}

func gatewayQuery(t *testing.T, signal string) string {
	t.Helper()
	c, err := Compile(autoscaler(t, gatewaySpec(signal)))
	if err != nil {
		t.Fatal(err)
	}
	s := c.Policy.Signals[0]
	if len(c.Sources) != 1 || c.Sources[0].Kind != Query || s.Activation == nil || c.Policy.Min != 0 {
		t.Fatalf("%+v", c)
	}
	return c.Sources[0].PromQL
}

// page is a storage with the series of a page, all at one time.
type page struct {
	storage.LabelQuerier
	series []storage.Series
	at     int
}

type sample struct {
	chunks.Sample
	v float64
}

func (s sample) T() int64                      { return 0 }
func (s sample) ST() int64                     { return 0 }
func (s sample) F() float64                    { return s.v }
func (s sample) H() *histogram.Histogram       { return nil }
func (s sample) FH() *histogram.FloatHistogram { return nil }
func (s sample) Type() chunkenc.ValueType      { return chunkenc.ValFloat }
func (s sample) Copy() chunks.Sample           { return s }

func readPage(t *testing.T, text string) *page {
	t.Helper()
	p := &page{}
	for line := range strings.Lines(strings.TrimSpace(text)) {
		metric, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		l, err := parser.NewParser(parser.Options{}).ParseMetric(metric)
		v, err2 := strconv.ParseFloat(value, 64)
		if err != nil || err2 != nil {
			t.Fatal(line, err, err2)
		}
		p.series = append(p.series, storage.NewListSeries(l, []chunks.Sample{sample{v: v}}))
	}
	return p
}

func (p *page) Querier(int64, int64) (storage.Querier, error) { return p, nil }
func (p *page) Close() error                                  { return nil }
func (p *page) Next() bool                                    { p.at++; return p.at < len(p.series) }
func (p *page) At() storage.Series                            { return p.series[p.at] }
func (p *page) Err() error                                    { return nil }
func (p *page) Warnings() annotations.Annotations             { return nil }

func (p *page) Select(_ context.Context, _ bool, _ *storage.SelectHints, matchers ...*labels.Matcher) storage.SeriesSet {
	out := &page{at: -1}
	for _, s := range p.series {
		if !slices.ContainsFunc(matchers, func(m *labels.Matcher) bool { return !m.Matches(s.Labels().Get(m.Name)) }) {
			out.series = append(out.series, s)
		}
	}
	return out
}

// The queries count each request once, whatever families the gateway exposes.
func TestGatewayRequests(t *testing.T) {
	engine := promql.NewEngine(promql.EngineOpts{MaxSamples: 1000, Timeout: time.Minute, Parser: parser.NewParser(parser.Options{})})
	f := func(signal, text, want string) {
		t.Helper()
		q, err := engine.NewInstantQuery(t.Context(), readPage(t, text), nil, gatewayQuery(t, signal), time.Unix(0, 0))
		if err != nil {
			t.Fatal(err)
		}
		defer q.Close()
		if r := q.Exec(t.Context()); r.Err != nil || r.String() != want {
			t.Errorf("%s\n%s\n= %s, %v; want %s", signal, text, r, r.Err, want)
		}
	}
	const epp, current = `{preset: epp, activation: "0"}`, `
llm_d_epp_average_queue_size{name="chat"} 2
llm_d_epp_average_running_requests{name="chat"} 3
llm_d_epp_ready_endpoints{name="chat"} 4
llm_d_epp_average_queue_size{name="other"} 1000`
	const former = `
inference_pool_average_queue_size{name="chat"} 2
inference_pool_average_running_requests{name="chat"} 3
inference_pool_ready_pods{name="chat"} 4`
	f(epp, current, "{} => 20 @[0]")
	f(epp, former, "{} => 20 @[0]")
	f(epp, current+former, "{} => 20 @[0]")
	f(epp, current+`
llm_d_epp_flow_control_queue_size{inference_pool="chat",fairness_id="a",priority="0"} 5
llm_d_epp_flow_control_queue_size{inference_pool="chat",fairness_id="b",priority="0"} 6
inference_extension_flow_control_queue_size{inference_pool="chat",fairness_id="a",priority="0"} 5
llm_d_epp_flow_control_queue_size{inference_pool="other",fairness_id="b",priority="0"} 1000`, "{} => 31 @[0]")
	f(epp, `
llm_d_epp_average_queue_size{name="chat"} 0
llm_d_epp_average_running_requests{name="chat"} 0
llm_d_epp_ready_endpoints{name="chat"} 0
llm_d_epp_flow_control_queue_size{inference_pool="chat"} 3`, "{} => 3 @[0]")
	// A queue of another picker in the namespace is not of this pool. One of this pool's picker without
	// the pool's name is missing data, not zero.
	const mine = `
llm_d_epp_average_queue_size{name="chat",pod="a"} 2
llm_d_epp_average_running_requests{name="chat",pod="a"} 3
llm_d_epp_ready_endpoints{name="chat",pod="a"} 4`
	f(epp, mine+`
llm_d_epp_flow_control_queue_size{inference_pool="other",pod="b"} 1000`, "{} => 20 @[0]")
	f(epp, mine+`
llm_d_epp_flow_control_queue_size{inference_pool="ns/chat",pod="a"} 1000`, "")
	f(epp, mine+`
inference_extension_flow_control_queue_size{pool="chat",pod="a"} 1000`, "")
	f(epp, mine+`
llm_d_epp_flow_control_queue_size{inference_pool="other",pod="a"} 1000
llm_d_epp_flow_control_queue_size{inference_pool="chat",pod="a"} 1`, "{} => 21 @[0]")
	// A picker that is away is missing data, not zero.
	f(epp, `up 1`, "")
	f(`{preset: epp, pool: other, activation: "0"}`, current, "")
	f(`{preset: dynamo, model: qwen/qwen3, activation: "0"}`, `
dynamo_frontend_inflight_requests{model="qwen/qwen3",endpoint="a"} 2
dynamo_frontend_inflight_requests{model="qwen/qwen3",endpoint="b"} 5
dynamo_frontend_inflight_requests{model="other"} 1000`, "{} => 7 @[0]")
}

// The pods of a gateway are those of its chart or operator, unless the signal selects
// others.
func TestGatewayPods(t *testing.T) {
	f := func(signal string, port int32, path, pod string, want bool) {
		t.Helper()
		c, err := Compile(autoscaler(t, gatewaySpec(signal)))
		if err != nil {
			t.Fatal(err)
		}
		set, err := k8slabels.ConvertSelectorToLabelsMap(pod)
		if err != nil {
			t.Fatal(err)
		}
		g := c.Sources[0].Gateway
		got := slices.ContainsFunc(g.Selectors, func(s k8slabels.Selector) bool { return s.Matches(set) })
		if got != want || g.Port.Default != port || g.Path != path {
			t.Errorf("%s: %s is the gateway: %v; %+v", signal, pod, got, g)
		}
		for _, name := range g.Metrics {
			if !strings.Contains(c.Sources[0].PromQL, name+"{") {
				t.Errorf("%s does not read %s", c.Sources[0].PromQL, name)
			}
		}
		for _, read := range regexp.MustCompile(`(\w+)\{`).FindAllStringSubmatch(c.Sources[0].PromQL, -1) {
			if !slices.Contains(g.Metrics, read[1]) {
				t.Errorf("%s reads more than %q", c.Sources[0].PromQL, g.Metrics)
			}
		}
	}
	const epp, long = `{preset: epp, activation: "0"}`, "a-pool-with-a-name-of-more-than-40-characters"
	f(epp, 9090, "/metrics", "inferencepool=chat-epp", true)
	f(epp, 9090, "/metrics", "llm-d-router-gateway=chat-epp", true)
	f(epp, 9090, "/metrics", "app=chat-epp", true)
	f(epp, 9090, "/metrics", "app=chat", false)
	f(epp, 9090, "/metrics", "inferencepool=other-epp", false)
	f(`{preset: epp, pool: `+long+`, activation: "0"}`, 9090, "/metrics", "epp="+long[:40]+"-epp", true)
	const kserve = "app.kubernetes.io/component=llminferenceservice-router-scheduler,app.kubernetes.io/name=chat"
	f(`{preset: epp, pool: chat-inference-pool, activation: "0"}`, 9090, "/metrics", kserve, true)
	f(epp, 9090, "/metrics", kserve, false)
	f(`{preset: epp, selector: {matchLabels: {a: b}}, path: /stats, activation: "0"}`, 9090, "/stats", "a=b", true)
	f(`{preset: epp, selector: {matchLabels: {a: b}}, activation: "0"}`, 9090, "/metrics", "inferencepool=chat-epp", false)
	f(`{preset: dynamo, model: a, activation: "0"}`, 8000, "/metrics", "nvidia.com/dynamo-component-type=frontend", true)
	f(`{preset: dynamo, model: a, activation: "0"}`, 8000, "/metrics", "nvidia.com/dynamo-component-type=worker", false)
}

// Names are quoted: they add no matchers and no other queries.
func TestGatewayNamesAreQuoted(t *testing.T) {
	if q := gatewayQuery(t, `{preset: dynamo, model: 'a"} or vector(1) or ({x="', activation: "0"}`); q != `sum(dynamo_frontend_inflight_requests{model="a\"} or vector(1) or ({x=\""})` {
		t.Error(q)
	}
}

func TestBadGateways(t *testing.T) {
	f := func(signal, want string) {
		t.Helper()
		_, err := Compile(autoscaler(t, gatewaySpec(signal)))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", signal, err, want)
		}
	}
	f(`{preset: dynamo, activation: "0"}`, "spec.signals[0].model: Required value")
	f(`{preset: vllm, model: a}`, "spec.signals[0].model: Forbidden")
	f(`{preset: dynamo, model: a, pool: b, activation: "0"}`, "spec.signals[0].pool: Forbidden")
	f(`{preset: epp, port: 0, activation: "0"}`, "spec.signals[0].port: Invalid value")
	f(`{preset: epp, path: "/metrics?a=b", activation: "0"}`, "spec.signals[0].path: Invalid value")
	f(`{preset: epp, selector: {}, activation: "0"}`, "spec.signals[0].selector: Invalid value")
	f(`{preset: epp, selector: {matchLabels: {"a b": c}}, activation: "0"}`, "spec.signals[0].selector: Invalid value")
	f(`{preset: vllm, selector: {matchLabels: {a: b}}}`, "spec.signals[0].selector: Forbidden")
	f(`{preset: epp, slo: {interTokenLatency: 50ms}, activation: "0"}`, "spec.signals[0].slo: Forbidden")
	f(`{preset: epp, activation: "-1"}`, "spec.signals[0].activation")
	f(`{preset: epp, target: {type: Value, value: "1"}, activation: "0"}`, "target.type")
	f(`{preset: epp}`, "spec.minReplicas")
}

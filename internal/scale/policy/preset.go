// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/scale"
)

const (
	// defaultConcurrency is a preset's target of requests per replica, unless the
	// signal has a target.
	defaultConcurrency = 8
	// defaultKVCache is the use of the KV cache, in percent, above which servers
	// begin to preempt requests because the cache is full.
	defaultKVCache = 80
)

// preset holds the metrics of an inference server. running and waiting count
// requests; kvCache is a share from 0 to 1, nil if the server does not expose it.
type preset struct {
	running, waiting, kvCache Term
	queues                    []Term // further requests, of some of the servers only
	pace                      *Pace  // nil: the server exposes no inter-token latency, or only per request
	misses                    *missMetrics
	arrived, completed        Term // request counters; nil: the server has none, or counts some requests twice
	awake                     Term // the number of engines that do not sleep; nil: the server has no such state
	port                      Port
}

// newPace returns the pace from the first of the inter-token histograms that a
// server exposes, and from its histogram of the time to the first token.
func newPace(first string, histograms ...string) *Pace {
	var p Pace
	p.FirstTokenSeconds, p.FirstTokens = sumAndCount(first)
	p.TokenSeconds, p.Tokens = sumAndCount(histograms...)
	return &p
}

// sumAndCount returns the rates of the histograms' _sum and _count series.
func sumAndCount(histograms ...string) (sum, count Term) {
	for _, name := range histograms {
		sum = append(sum, PodMetric{Name: name + "_sum", Rate: true})
		count = append(count, PodMetric{Name: name + "_count", Rate: true})
	}
	return sum, count
}

// presets returns the supported servers. Metric names of current releases come
// before those of older ones. docs/gpuautoscaler.md names the sources.
func presets() map[v1alpha1.Preset]preset {
	vllm := preset{
		running: Term{{Name: "vllm:num_requests_running"}},
		waiting: Term{{Name: "vllm:num_requests_waiting"}},
		kvCache: Term{{Name: "vllm:kv_cache_usage_perc", Max: true}, {Name: "vllm:gpu_cache_usage_perc", Max: true}},
		pace:    newPace("vllm:time_to_first_token_seconds", "vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds"),
		misses: &missMetrics{
			ended: []string{"vllm:request_success_total", "vllm:e2e_request_latency_seconds_count"},
			abortedBy: Term{
				{Name: "vllm:request_success_total", Label: "finished_reason", Value: "abort"},
				{Name: "vllm:request_success_total", Label: "finished_reason", Value: "error"},
			},
			first: "vllm:time_to_first_token_seconds", ofRequests: "vllm:request_time_per_output_token_seconds",
			ofTokens:     []string{"vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds"},
			promptTokens: "vllm:prompt_tokens_total", outputTokens: "vllm:generation_tokens_total",
		},
		completed: Term{{Name: "vllm:request_success_total"}},
		awake:     Term{{Name: "vllm:engine_sleep_state", Label: "sleep_state", Value: "awake", UpperBound: maxRequests}},
		port:      Port{Default: 8000},
	}
	all := map[v1alpha1.Preset]preset{
		v1alpha1.PresetVLLM: vllm,
		v1alpha1.PresetSGLang: {
			running: Term{{Name: "sglang:num_running_reqs", By: "dp_rank"}},
			waiting: Term{{Name: "sglang:num_queue_reqs", By: "dp_rank"}},
			queues:  sglangQueues(),
			kvCache: Term{{Name: "sglang:token_usage", Max: true}},
			pace:    newPace("sglang:time_to_first_token_seconds", "sglang:inter_token_latency_seconds", "sglang:time_per_output_token_seconds"),
			misses: &missMetrics{
				ended: []string{"sglang:num_requests_total"}, aborted: "sglang:num_aborted_requests_total",
				first: "sglang:time_to_first_token_seconds", ofTokens: []string{"sglang:inter_token_latency_seconds", "sglang:time_per_output_token_seconds"},
				promptTokens: "sglang:prompt_tokens_total", outputTokens: "sglang:generation_tokens_total",
			},
			completed: Term{{Name: "sglang:num_requests_total"}},
			port:      Port{Default: 30000},
		},
		v1alpha1.PresetTGI: {
			running: Term{{Name: "tgi_batch_current_size"}},
			waiting: Term{{Name: "tgi_queue_size"}},
			arrived: Term{{Name: "tgi_request_count"}},
			port:    Port{Default: 80},
		},
		v1alpha1.PresetTriton: {
			running: append(Term{tensorRTGauge("request", "scheduled")}, append(slices.Clone(vllm.running), tritonRunning())...),
			waiting: append(Term{tensorRTGauge("request", "waiting")}, append(slices.Clone(vllm.waiting), PodMetric{Name: "nv_inference_pending_request_count"})...),
			pace:    vllm.pace, // of the vLLM backend; other backends expose none
			misses:  vllm.misses,
			port:    Port{Default: 8002, SeparateFromAPI: true},
		},
	}
	for _, p := range all {
		p.setRanges()
	}
	return all
}

// The upper bounds of the servers' values. A cache share that is counted in blocks
// can exceed 1 by one block; a float64 counts exactly up to 2^53.
const (
	maxRequests   = 1e6
	maxCacheShare = 1.05
	maxCount      = 1 << 53
)

// setRanges sets the upper bound of each metric. The lower bound is 0.
func (p *preset) setRanges() {
	set := func(upper float64, terms ...Term) {
		for _, term := range terms {
			for i := range term {
				if term[i].UpperBound = upper; term[i].Rate {
					term[i].UpperBound = maxCount
				}
			}
		}
	}
	set(maxRequests, append(p.queues, p.running, p.waiting)...)
	set(maxCacheShare, p.kvCache)
	set(maxCount, p.arrived, p.completed)
	if p.pace != nil {
		set(maxCount, p.pace.TokenSeconds, p.pace.Tokens, p.pace.FirstTokenSeconds, p.pace.FirstTokens)
	}
}

// sglangQueues returns the queues of SGLang's prefill and decode servers, whose requests are
// neither running nor in the server's queue: on a prefill server those that wait for a decode
// server, and those whose KV cache is being sent; on a decode server those that wait for room,
// and those whose KV cache is on its way. Other servers do not have them, or have them as 0.
func sglangQueues() (out []Term) {
	for _, names := range [][]string{
		{"num_prefill_bootstrap_queue_reqs", "num_prefill_prealloc_queue_reqs"},
		{"num_prefill_inflight_queue_reqs", "num_prefill_infight_queue_reqs"},
		{"num_decode_prealloc_queue_reqs"},
		{"num_decode_transfer_queue_reqs"},
	} {
		var t Term
		for _, name := range names {
			t = append(t, PodMetric{Name: "sglang:" + name, By: "dp_rank", Optional: "sglang:" + names[0]})
		}
		out = append(out, t)
	}
	return out
}

// tensorRTGauge returns a gauge of Triton's TensorRT-LLM backend, which
// distinguishes its counts by the value of a label.
func tensorRTGauge(family, value string) PodMetric {
	return PodMetric{Name: "nv_trt_llm_" + family + "_metrics", Label: family + "_type", Value: value}
}

// tritonRunning returns the mean number of requests in execution on Triton, which
// has no gauge of them. Each request adds its inference time to a counter, so that
// the rate of the counter, in seconds per second, is the number of running requests.
func tritonRunning() PodMetric {
	return PodMetric{Name: "nv_inference_compute_infer_duration_us", Rate: true, Factor: 1e-6}
}

// expandPreset appends the signals of a preset: the requests per replica, running
// and waiting, and the use of the KV cache if the server exposes it. A target
// applies to the requests. The queue is not a signal of its own: its length does not
// determine the number of replicas, and a target for it would ask for far too many
// replicas in every burst.
func (c *Compiled) expandPreset(in *v1alpha1.Signal, path *field.Path) *field.Error {
	p, ok := presets()[in.Preset]
	if !ok {
		return field.NotSupported(path.Child("preset"), in.Preset, slices.Sorted(slices.Values(slices.AppendSeq(gatewayPresets(), maps.Keys(presets())))))
	}
	concurrency := float64(defaultConcurrency)
	if in.Target != nil {
		value, kind, err := parseTarget(in.Target, path.Child("target"))
		if err != nil {
			return err
		}
		if kind != scale.AverageValue {
			return field.NotSupported(path.Child("target", "type"), in.Target.Type, []v1alpha1.TargetType{v1alpha1.AverageValue})
		}
		concurrency = value
	}
	limit, first, err := latencyLimits(in.SLO, p.pace, path.Child("slo"))
	if err != nil {
		return err
	}
	if err := validatePort(in.Port, path.Child("port")); err != nil {
		return err
	}
	src := Source{Kind: Pods, Port: p.port}
	src.Port.Given = in.Port
	if src.Path, err = parsePath(in.Path, path.Child("path")); err != nil {
		return err
	}
	if src.TLS, err = parseTLS(in.Scheme, in.TLS, path); err != nil {
		return err
	}
	add := func(s scale.Signal, terms ...Term) {
		s.Name = fmt.Sprintf("%s %s", in.Preset, s.Name)
		src.Terms = terms
		c.Policy.Signals = append(c.Policy.Signals, s)
		c.Sources = append(c.Sources, src)
	}
	requests := scale.Signal{Name: "requests", Target: concurrency, Aggregate: gpu.Sum, Law: scale.Batching, Limit: limit, FirstLimit: first}
	if requests.Learned() {
		src.Pace = p.pace.withFirstToken(first > 0)
		src.Misses = p.misses.of(limit, first)
		if requests.Objective, src.Over, err = objective(in.SLO, path.Child("slo")); err != nil {
			return err
		}
	}
	src.Arrived, src.Completed, src.Awake = p.arrived, p.completed, p.awake
	src.InFlight = append([]Term{withoutRates(p.running), withoutRates(p.waiting)}, p.queues...)
	add(requests, append([]Term{p.running, p.waiting}, p.queues...)...)
	src.Pace, src.Misses, src.Over, src.Arrived, src.Completed, src.InFlight, src.Awake = nil, nil, 0, nil, nil, nil, nil
	if p.kvCache != nil {
		add(scale.Signal{Name: "KV cache", Unit: string(gpu.Percent), Target: defaultKVCache, Ceiling: 100, Aggregate: gpu.Mean}, inPercent(p.kvCache))
	}
	return nil
}

// withFirstToken returns a copy of the pace that has the time to the first token
// only if keep is true.
func (p *Pace) withFirstToken(keep bool) *Pace {
	out := *p
	if !keep {
		out.FirstTokenSeconds, out.FirstTokens = nil, nil
	}
	return &out
}

// latencyLimits returns the slo's limits of the time between tokens and of the time
// to the first token, in seconds; 0: no limit.
func latencyLimits(slo *v1alpha1.SLO, pace *Pace, path *field.Path) (between, first float64, err *field.Error) {
	switch {
	case slo == nil:
		return 0, 0, nil
	case pace == nil:
		return 0, 0, field.Forbidden(path, "this server does not expose the time between tokens; set a target instead")
	case slo.InterTokenLatency == nil && slo.TimeToFirstToken == nil:
		return 0, 0, field.Required(path, "an slo needs interTokenLatency, timeToFirstToken or both")
	}
	if between, err = latencySeconds(slo.InterTokenLatency, path.Child("interTokenLatency"), "50ms"); err != nil {
		return 0, 0, err
	}
	first, err = latencySeconds(slo.TimeToFirstToken, path.Child("timeToFirstToken"), "2s")
	return between, first, err
}

const (
	// defaultObjective is the share of the requests that keep the limits, and defaultOver the
	// time over which it is judged, where an slo does not say.
	defaultObjective, defaultOver = "99%", "28d"
	// leastOver and mostOver bound the time over which an objective is judged.
	leastOver, mostOver = time.Hour, 28 * 24 * time.Hour
)

// objective returns the share of the requests that keep the limits, and the time over
// which that is judged.
func objective(slo *v1alpha1.SLO, path *field.Path) (share float64, over time.Duration, _ *field.Error) {
	text := cmp.Or(slo.Objective, defaultObjective)
	percent, isPercent := strings.CutSuffix(text, "%")
	share, err := strconv.ParseFloat(percent, 64)
	if !isPercent || err != nil || !(share >= 50 && share <= 99.99) {
		return 0, 0, field.Invalid(path.Child("objective"), text, `must be a percentage from 50% to 99.99%, such as "99%"`)
	}
	text = cmp.Or(slo.Over, defaultOver)
	if days, ok := strings.CutSuffix(text, "d"); ok {
		n, e := strconv.ParseUint(days, 10, 16)
		over, err = time.Duration(n)*24*time.Hour, e
	} else {
		over, err = time.ParseDuration(text)
	}
	if err != nil || over < leastOver || over > mostOver {
		return 0, 0, field.Invalid(path.Child("over"), text, `must be days or hours from 1h to 28d, such as "28d"`)
	}
	return share / 100, over, nil
}

// latencySeconds converts a limit to seconds; 0 if there is none. The error message
// contains the example.
func latencySeconds(d *metav1.Duration, path *field.Path, example string) (float64, *field.Error) {
	switch {
	case d == nil:
		return 0, nil
	case d.Duration <= 0:
		return 0, field.Invalid(path, d.Duration.String(), "must be greater than 0, such as "+example)
	}
	return d.Seconds(), nil
}

// withoutRates returns the gauges of a term.
func withoutRates(t Term) Term {
	return slices.DeleteFunc(slices.Clone(t), func(m PodMetric) bool { return m.Rate })
}

// inPercent returns a copy of a term of shares from 0 to 1 that reads them in percent.
func inPercent(t Term) Term {
	out := slices.Clone(t)
	for i := range out {
		out[i].Factor = 100
	}
	return out
}

// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
)

// server is a row of the table of inference servers. running and waiting count requests; kvCache
// is a share from 0 to 1, nil if the server does not expose it.
type server struct {
	preset   v1alpha1.Preset // empty: pods signals read it by the names that docs/gpuautoscaler.md lists
	prefixes []string        // of the names of its metrics
	port     Port

	running, waiting, kvCache Term
	queues                    []Term // further requests, of some of the servers only
	pace                      *Pace  // nil: the server exposes no inter-token latency, or only per request
	misses                    *missMetrics
	arrived, completed        Term // request counters; nil: the server has none, or counts some requests twice
	awake                     Term // the number of engines that do not sleep; nil: the server has no such state

	gateway *gatewayMetrics // nil: it is no gateway. A gateway has none of the metrics above
}

// gatewayMetrics is how the requests of a gateway are read. Its key is what names the workload
// in the gateway's metrics: the label model if byModel is set, else the InferencePool.
type gatewayMetrics struct {
	byModel   bool
	metrics   []string // that the query reads
	query     func(key string) string
	selectors func(pool string) []labels.Selector // of its pods
}

// servers returns the table, the only place that names a server's metrics. Names of current
// releases come before those of older ones. docs/gpuautoscaler.md names the sources.
func servers() []server {
	vllm := server{
		preset: v1alpha1.PresetVLLM, prefixes: []string{"vllm:"}, port: Port{Default: 8000},
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
	}
	all := []server{vllm, sglang(), {
		preset: v1alpha1.PresetTGI, prefixes: []string{"tgi_"}, port: Port{Default: 80},
		running: Term{{Name: "tgi_batch_current_size"}},
		waiting: Term{{Name: "tgi_queue_size"}},
		arrived: Term{{Name: "tgi_request_count"}},
	}, {
		preset: v1alpha1.PresetTriton, prefixes: []string{"nv_inference_", "nv_trt_llm_"}, port: Port{Default: 8002, SeparateFromAPI: true},
		running: append(Term{tensorRTGauge("request", "scheduled")}, append(slices.Clone(vllm.running), tritonRunning())...),
		waiting: append(Term{tensorRTGauge("request", "waiting")}, append(slices.Clone(vllm.waiting), PodMetric{Name: "nv_inference_pending_request_count"})...),
		pace:    vllm.pace, // of the vLLM backend; other backends expose none
		misses:  vllm.misses,
	}, {
		running: Term{{Name: "trtllm_num_requests_running"}}, // trtllm-serve
	}, {
		preset: v1alpha1.PresetEPP, port: Port{Default: 9090, SeparateFromAPI: true},
		gateway: &gatewayMetrics{
			metrics: slices.Concat(pickerQueue, pickerRunning, pickerEndpoints, pickerFlowQueue), query: eppRequests, selectors: pickerSelectors,
		},
	}, {
		preset: v1alpha1.PresetDynamo, port: Port{Default: 8000},
		gateway: &gatewayMetrics{byModel: true, metrics: []string{dynamoInFlight}, query: dynamoRequests, selectors: dynamoSelectors},
	}}
	for i := range all {
		all[i].setRanges()
	}
	return all
}

func sglang() server {
	return server{
		preset: v1alpha1.PresetSGLang, prefixes: []string{"sglang:"}, port: Port{Default: 30000},
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

// The metrics of an endpoint picker, by their current and their deprecated names.
var (
	pickerQueue     = []string{"llm_d_epp_average_queue_size", "inference_pool_average_queue_size"}
	pickerRunning   = []string{"llm_d_epp_average_running_requests", "inference_pool_average_running_requests"}
	pickerEndpoints = []string{"llm_d_epp_ready_endpoints", "inference_pool_ready_pods"}
	pickerFlowQueue = []string{"llm_d_epp_flow_control_queue_size", "inference_extension_flow_control_queue_size"}
)

// dynamoInFlight is the metric of Dynamo's frontends.
const dynamoInFlight = "dynamo_frontend_inflight_requests"

// serverOf returns the row of a preset; nil: there is none.
func serverOf(p v1alpha1.Preset) *server {
	if p == "" {
		return nil
	}
	all := servers()
	if i := slices.IndexFunc(all, func(s server) bool { return s.preset == p }); i >= 0 {
		return &all[i]
	}
	return nil
}

// isGateway reports whether a row is a gateway's. A gateway exposes its metrics on pods of its
// own, so the preset is a query. As any query, it reads the series of the workload's own
// namespace only.
func (p *server) isGateway() bool { return p != nil && p.gateway != nil }

// Presets returns the names of the presets, sorted.
func Presets() (names []v1alpha1.Preset) {
	for _, s := range servers() {
		if s.preset != "" {
			names = append(names, s.preset)
		}
	}
	slices.Sort(names)
	return names
}

// PresetOf returns the preset of the server that exposes a metric.
func PresetOf(metric string) (v1alpha1.Preset, bool) {
	for _, s := range servers() {
		if slices.ContainsFunc(s.prefixes, func(prefix string) bool { return strings.HasPrefix(metric, prefix) }) {
			return s.preset, true
		}
	}
	return "", false
}

// Quantity is what a gauge of a server counts.
type Quantity uint8

// The quantities.
const (
	RunningRequests Quantity = iota // in the batch
	WaitingRequests                 // not in the batch
	KVCacheUse                      // a share from 0 to 1
)

// Gauges returns the gauges of the servers by name, of those that have a preset or of all. A value
// of a label is no gauge, and neither is a rate.
func Gauges(all bool) map[string]Quantity {
	out := map[string]Quantity{}
	for _, s := range servers() {
		for q, term := range []Term{s.running, s.waiting, s.kvCache} {
			for i := range term {
				if m := &term[i]; (all || s.preset != "") && m.Label == "" && !m.Rate {
					out[m.Name] = Quantity(q)
				}
			}
		}
	}
	return out
}

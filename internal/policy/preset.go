// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"maps"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/scale"
)

const (
	// defaultConcurrency is the requests per replica that a preset aims at where
	// no target is given.
	defaultConcurrency = 8
	// defaultKVCache is the use of the KV cache, in percent, above which servers
	// begin to preempt requests for want of room.
	defaultKVCache = 80
)

// preset is what an inference server tells of itself. running and waiting are
// requests; kvCache is a share from 0 to 1, absent where the server has none.
type preset struct {
	running, waiting, kvCache Term
	pace                      *Pace // nil: it tells no times between tokens, or only by request
	came, ended               Term  // requests; nil: it does not count them, or not each of them once
	port                      Port
}

// paceOf is the pace by the first of these histograms that a server shows, and
// by the one of its times to the first token.
func paceOf(first string, histograms ...string) *Pace {
	var p Pace
	p.FirstSeconds, p.Firsts = sumAndCount(first)
	p.Seconds, p.Tokens = sumAndCount(histograms...)
	return &p
}

// sumAndCount are the increases of what histograms add up, and of how many that is.
func sumAndCount(histograms ...string) (sum, count Term) {
	for _, name := range histograms {
		sum = append(sum, PodMetric{Name: name + "_sum", Rate: true})
		count = append(count, PodMetric{Name: name + "_count", Rate: true})
	}
	return sum, count
}

// presets are the servers that we know, with the names of their current
// releases first and older ones behind. docs/gpuautoscaler.md tells their sources.
func presets() map[v1alpha1.Preset]preset {
	vllm := preset{
		running: Term{{Name: "vllm:num_requests_running"}},
		waiting: Term{{Name: "vllm:num_requests_waiting"}},
		kvCache: Term{{Name: "vllm:kv_cache_usage_perc", Max: true}, {Name: "vllm:gpu_cache_usage_perc", Max: true}},
		pace:    paceOf("vllm:time_to_first_token_seconds", "vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds"),
		ended:   Term{{Name: "vllm:request_success_total"}},
		port:    Port{Default: 8000},
	}
	all := map[v1alpha1.Preset]preset{
		v1alpha1.PresetVLLM: vllm,
		v1alpha1.PresetSGLang: {
			running: Term{{Name: "sglang:num_running_reqs", By: "dp_rank"}},
			waiting: Term{{Name: "sglang:num_queue_reqs", By: "dp_rank"}},
			kvCache: Term{{Name: "sglang:token_usage", Max: true}},
			pace:    paceOf("sglang:time_to_first_token_seconds", "sglang:inter_token_latency_seconds", "sglang:time_per_output_token_seconds"),
			ended:   Term{{Name: "sglang:num_requests_total"}},
			port:    Port{Default: 30000},
		},
		v1alpha1.PresetTGI: {
			running: Term{{Name: "tgi_batch_current_size"}},
			waiting: Term{{Name: "tgi_queue_size"}},
			came:    Term{{Name: "tgi_request_count"}},
			port:    Port{Default: 80},
		},
		v1alpha1.PresetTriton: {
			running: append(Term{tensorRT("request", "scheduled")}, append(slices.Clone(vllm.running), tritonRunning())...),
			waiting: append(Term{tensorRT("request", "waiting")}, append(slices.Clone(vllm.waiting), PodMetric{Name: "nv_inference_pending_request_count"})...),
			pace:    vllm.pace, // of its vLLM backend; the others tell none
			port:    Port{Default: 8002, Apart: true},
		},
	}
	for _, p := range all {
		p.setRanges()
	}
	return all
}

// The ranges of what servers tell. A share of a cache that is counted in blocks
// may exceed 1 by one block; a float64 counts to 2^53.
const (
	mostRequests = 1e6
	mostCache    = 1.05
	mostCounted  = 1 << 53
)

// setRanges gives each metric its range. None of them is ever negative.
func (p *preset) setRanges() {
	set := func(most float64, terms ...Term) {
		for _, term := range terms {
			for i := range term {
				if term[i].Most = most; term[i].Rate {
					term[i].Most = mostCounted
				}
			}
		}
	}
	set(mostRequests, p.running, p.waiting)
	set(mostCache, p.kvCache)
	set(mostCounted, p.came, p.ended)
	if p.pace != nil {
		set(mostCounted, p.pace.Seconds, p.pace.Tokens, p.pace.FirstSeconds, p.pace.Firsts)
	}
}

// tensorRT is a gauge of Triton's TensorRT-LLM backend, which tells its counts
// apart by a label.
func tensorRT(what, value string) PodMetric {
	return PodMetric{Name: "nv_trt_llm_" + what + "_metrics", Label: what + "_type", Value: value}
}

// tritonRunning is the mean number of requests that Triton's models computed at
// a time: it has no gauge of them, and each request adds its own microseconds
// of inference, so that the sum grows by as many seconds a second as run.
func tritonRunning() PodMetric {
	return PodMetric{Name: "nv_inference_compute_infer_duration_us", Rate: true, Factor: 1e-6}
}

// expand appends what a preset looks at: the requests that a replica has, running
// and waiting, and its KV cache where it tells of one. A target is of the
// requests. The queue is no signal of its own: how many wait says little of how
// many replicas are needed, and a target for it would ask for far too many of
// them whenever a burst comes.
func (c *Compiled) expand(in *v1alpha1.Signal, path *field.Path) *field.Error {
	p, ok := presets()[in.Preset]
	if !ok {
		return field.NotSupported(path.Child("preset"), in.Preset, slices.Sorted(maps.Keys(presets())))
	}
	concurrency := float64(defaultConcurrency)
	if in.Target != nil {
		value, kind, err := target(in.Target, path.Child("target"))
		if err != nil {
			return err
		}
		if kind != scale.AverageValue {
			return field.NotSupported(path.Child("target", "type"), in.Target.Type, []v1alpha1.TargetType{v1alpha1.AverageValue})
		}
		concurrency = value
	}
	limit, first, err := limitsOf(in.SLO, p.pace, path.Child("slo"))
	if err != nil {
		return err
	}
	if err := portError(in.Port, path.Child("port")); err != nil {
		return err
	}
	src := Source{Kind: Pods, Port: p.port}
	src.Port.Given = in.Port
	if src.Path, err = pathOf(in.Path, path.Child("path")); err != nil {
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
		src.Pace = p.pace.with(first > 0)
	}
	src.Came, src.Ended = p.came, p.ended
	add(requests, p.running, p.waiting)
	src.Pace, src.Came, src.Ended = nil, nil, nil
	if p.kvCache != nil {
		add(scale.Signal{Name: "KV cache", Unit: string(gpu.Percent), Target: defaultKVCache, Ceiling: 100, Aggregate: gpu.Mean}, percent(p.kvCache))
	}
	return nil
}

// with is the pace with or without the times to the first token.
func (p *Pace) with(first bool) *Pace {
	out := *p
	if !first {
		out.FirstSeconds, out.Firsts = nil, nil
	}
	return &out
}

// limitsOf are the seconds between tokens and to the first that replicas shall
// keep; 0: not said.
func limitsOf(slo *v1alpha1.SLO, pace *Pace, path *field.Path) (between, first float64, err *field.Error) {
	switch {
	case slo == nil:
		return 0, 0, nil
	case pace == nil:
		return 0, 0, field.Forbidden(path, "this server does not tell the times between tokens; give a target instead")
	case slo.InterTokenLatency == nil && slo.TimeToFirstToken == nil:
		return 0, 0, field.Required(path, "an slo needs interTokenLatency, timeToFirstToken or both")
	}
	if between, err = secondsOf(slo.InterTokenLatency, path.Child("interTokenLatency"), "50ms"); err != nil {
		return 0, 0, err
	}
	first, err = secondsOf(slo.TimeToFirstToken, path.Child("timeToFirstToken"), "2s")
	return between, first, err
}

// secondsOf are those of a limit, if there is one.
func secondsOf(d *metav1.Duration, path *field.Path, such string) (float64, *field.Error) {
	switch {
	case d == nil:
		return 0, nil
	case d.Duration <= 0:
		return 0, field.Invalid(path, d.Duration.String(), "must be more than 0, such as "+such)
	}
	return d.Seconds(), nil
}

// percent is a term of shares in percent.
func percent(t Term) Term {
	out := slices.Clone(t)
	for i := range out {
		out[i].Factor = 100
	}
	return out
}

// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/scale"
)

const (
	// defaultConcurrency is the requests per replica that a preset aims at where
	// no target is given.
	defaultConcurrency = 8
	// queueShare is how many of them may wait. A server that batches lets
	// requests wait only once its batch is full, so a queue is a louder sign of
	// too few replicas than as many requests that run.
	queueShare = 0.25
	// defaultKVCache is the use of the KV cache, in percent, above which servers
	// begin to preempt requests for want of room.
	defaultKVCache = 80
)

// preset is what an inference server tells of itself. running and waiting are
// requests; kvCache is a share from 0 to 1, absent where the server has none.
type preset struct {
	running, waiting, kvCache Term
	port                      Port
}

// presets are the servers that we know, with the names of their current
// releases first and older ones behind. docs/gpuautoscaler.md tells their sources.
func presets() map[v1alpha1.Preset]preset {
	vllm := preset{
		running: Term{{Name: "vllm:num_requests_running"}},
		waiting: Term{{Name: "vllm:num_requests_waiting"}},
		kvCache: Term{{Name: "vllm:kv_cache_usage_perc", Max: true}, {Name: "vllm:gpu_cache_usage_perc", Max: true}},
		port:    Port{Default: 8000},
	}
	return map[v1alpha1.Preset]preset{
		v1alpha1.PresetVLLM: vllm,
		v1alpha1.PresetSGLang: {
			running: Term{{Name: "sglang:num_running_reqs", By: "dp_rank"}},
			waiting: Term{{Name: "sglang:num_queue_reqs", By: "dp_rank"}},
			kvCache: Term{{Name: "sglang:token_usage", Max: true}},
			port:    Port{Default: 30000},
		},
		v1alpha1.PresetTGI: {
			running: Term{{Name: "tgi_batch_current_size"}},
			waiting: Term{{Name: "tgi_queue_size"}},
			port:    Port{Default: 80},
		},
		v1alpha1.PresetTriton: {
			running: append(Term{tensorRT("request", "scheduled")}, append(slices.Clone(vllm.running), tritonRunning())...),
			waiting: append(Term{tensorRT("request", "waiting")}, append(slices.Clone(vllm.waiting), PodMetric{Name: "nv_inference_pending_request_count"})...),
			port:    Port{Default: 8002, Apart: true},
		},
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

// expand appends what a preset looks at: the requests that a replica has, those
// of them that wait, and its KV cache where it tells of one. A target is of the
// requests.
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
	src := Source{Kind: Pods, Port: p.port, Path: defaultPath}
	src.Port.Given = in.Port
	if in.Path != "" {
		src.Path = in.Path
	}
	add := func(s scale.Signal, terms ...Term) {
		s.Name = fmt.Sprintf("%s %s", in.Preset, s.Name)
		src.Terms = terms
		c.Policy.Signals = append(c.Policy.Signals, s)
		c.Sources = append(c.Sources, src)
	}
	add(scale.Signal{Name: "requests", Target: concurrency, Aggregate: gpu.Sum}, p.running, p.waiting)
	add(scale.Signal{Name: "queue", Target: max(1, queueShare*concurrency), Aggregate: gpu.Sum}, p.waiting)
	if p.kvCache != nil {
		add(scale.Signal{Name: "KV cache", Unit: string(gpu.Percent), Target: defaultKVCache, Ceiling: 100, Aggregate: gpu.Mean}, percent(p.kvCache))
	}
	return nil
}

// percent is a term of shares in percent.
func percent(t Term) Term {
	out := slices.Clone(t)
	for i := range out {
		out[i].Factor = 100
	}
	return out
}

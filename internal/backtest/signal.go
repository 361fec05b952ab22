// SPDX-License-Identifier: Apache-2.0

package backtest

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/policy"
	"github.com/gpupilot/gpupilot/internal/scale"
)

// Signal is something that a pod tells of itself.
type Signal uint8

// The signals. Those of the server are there once it serves; those of the GPU
// from when the containers run.
const (
	Running      Signal = iota // requests in the batch
	Waiting                    // requests that wait in the server
	Concurrency                // both
	KVUse                      // share of the KV cache, 0 to 1
	GPUUtil                    // percent of the time in which any kernel ran
	SMActive                   // percent of the SMs, over the time
	TensorActive               // percent of the tensor cores' peak
	Served                     // requests/s that ended
	signalCount
)

func (s Signal) String() string {
	return [...]string{"running", "waiting", "running+waiting", "kv", "GPU_UTIL", "SM_ACTIVE", "TENSOR_ACTIVE", "served"}[s]
}

// ofGPU says whether the signal is the GPU's rather than the server's.
func (s Signal) ofGPU() bool { return s == GPUUtil || s == SMActive || s == TensorActive }

// sample is what one pod told at one moment.
type sample struct {
	pod    int32
	server bool // it has the server's signals
	value  [signalCount]float32

	sm, tensor float64 // integrals of the activity, in seconds

	arrivals       float32 // requests/s that came over the last second
	first, firsts  float32 // seconds to the first token of those that got it over the last second, and how many a second
	batch, latency float32 // over the last second: sequences that decoded, seconds for a token; 0: none did
}

// snapshot is what all pods told at one second.
type snapshot struct {
	at   int
	pods []sample
}

func (s *snapshot) find(id int) *sample {
	for i := range s.pods {
		if s.pods[i].pod == int32(id) {
			return &s.pods[i]
		}
	}
	return nil
}

// get is the pod's value; ok is false where it told none.
func (s *sample) get(sig Signal) (float64, bool) {
	if s == nil || !s.server && !sig.ofGPU() {
		return 0, false
	}
	return float64(s.value[sig]), true
}

// pace is how fast the pod's batch advanced up to then.
func (s *sample) pace(at time.Time) scale.Pace {
	if s == nil || !s.server || s.latency <= 0 {
		return scale.Pace{}
	}
	return scale.Pace{
		Batch: float64(s.batch), TokenSeconds: float64(s.latency),
		FirstTokenSeconds: float64(s.first), FirstTokensPerSecond: float64(s.firsts), At: at, OK: true,
	}
}

// came is how many requests/s came to the pod over the last second.
func (s *sample) came(at time.Time) scale.Reading {
	if s == nil || !s.server {
		return scale.Reading{}
	}
	return scale.Reading{Value: float64(s.arrivals), At: at, OK: true}
}

// over is the pod's value as a collector reads it that reads every so many
// seconds: DCGM's profiling fields are means since the last reading.
func (c *cluster) over(s *snapshot, x *sample, sig Signal, seconds int) (float64, bool) {
	v, ok := x.get(sig)
	if !ok || seconds <= 1 || !x.server || sig != SMActive && sig != TensorActive {
		return v, ok
	}
	old := c.at(s.at - seconds).find(int(x.pod))
	if old == nil || !old.server {
		return v, ok
	}
	sum := x.sm - old.sm
	if sig == TensorActive {
		sum = x.tensor - old.tensor
	}
	return 100 * min(1, sum/float64(seconds)), true
}

// kept is how many seconds of snapshots are kept: the slowest chain is 90 s
// behind and looks 30 s back from there.
const kept = 128

// observe takes a snapshot of the pods at the whole second now.
func (c *cluster) observe(now int) {
	s := &c.seen[now%kept]
	s.at, s.pods = now, s.pods[:0]
	for _, p := range c.pods {
		if p.phase != loading && p.phase != serving {
			continue
		}
		x := sample{pod: int32(p.id), server: p.phase == serving}
		if p.warming(float64(now)) {
			x.value[GPUUtil], x.value[SMActive], x.value[TensorActive] = 100, 60, 10
		}
		if x.server {
			c.read(p, &x)
		}
		s.pods = append(s.pods, x)
	}
}

// read fills in what a serving pod tells: gauges as they are, activity as the
// mean over the last second.
func (c *cluster) read(p *pod, x *sample) {
	r, w := float32(p.run()), float32(p.queue())
	x.value[Running], x.value[Waiting], x.value[Concurrency] = r, w, r+w
	x.sm, x.tensor = p.sm, p.tensor
	x.value[KVUse] = float32(min(1, p.kv/p.m.KVTokens))
	if p.blind {
		return
	}
	last := &p.last
	if dt := p.now - last.at; dt > 0 {
		x.value[GPUUtil] = float32(100 * min(1, (p.busy-last.busy)/dt))
		x.value[SMActive] = float32(100 * min(1, (p.sm-last.sm)/dt))
		x.value[TensorActive] = float32(100 * min(1, (p.tensor-last.tensor)/dt))
		x.value[Served] = float32((p.served - last.served) / dt)
		x.arrivals = float32((p.served - last.served + float64(p.load()-last.load)) / dt)
	}
	if tokens := p.tokens - last.tokens; tokens > 0 && p.now > last.at {
		waited, firsts := p.waited-last.waited, p.firsts-last.firsts
		if firsts > 0 {
			x.first, x.firsts = float32((p.firstWait-last.firstWait)/firsts), float32(firsts/(p.now-last.at))
		}
		x.batch, x.latency = float32(waited/(p.now-last.at)), float32(waited/tokens)
	}
	*last = reading{at: p.now, load: p.load(), firstWait: p.firstWait, firsts: p.firsts, busy: p.busy, sm: p.sm, tensor: p.tensor, served: p.served, waited: p.waited, tokens: p.tokens}
}

// reading is the state of a replica's integrals when it was last read.
type reading struct {
	at, busy, sm, tensor, served, waited, tokens, firstWait, firsts float64
	load                                                            int
}

// at returns the snapshot of a second, or an empty one where it is not kept.
func (c *cluster) at(second int) *snapshot {
	if second < 0 {
		return &c.none
	}
	if s := &c.seen[second%kept]; s.at == second {
		return s
	}
	return &c.none
}

// serverMetrics are the names under which inference servers tell their signals.
func serverMetrics() map[string]Signal {
	return map[string]Signal{
		"vllm:num_requests_running": Running, "vllm:num_requests_waiting": Waiting,
		"vllm:kv_cache_usage_perc": KVUse, "vllm:gpu_cache_usage_perc": KVUse,
		"sglang:num_running_reqs": Running, "sglang:num_queue_reqs": Waiting, "sglang:token_usage": KVUse,
		"tgi_batch_current_size": Running, "tgi_queue_size": Waiting,
		"nv_inference_pending_request_count": Waiting,
	}
}

// part is a signal and the factor from its unit here to the policy's.
type part struct {
	signal Signal
	factor float64
}

// source is what a policy's source reads in the simulation: the sum of its parts.
type source []part

// get is the pod's value; ok is false where a part of it is not told.
func (s source) get(x *sample) (sum float64, ok bool) {
	for _, p := range s {
		v, told := x.get(p.signal)
		if !told {
			return 0, false
		}
		sum += v * p.factor
	}
	return sum, len(s) > 0
}

func sourceOf(s policy.Source) (source, error) {
	switch s.Kind {
	case policy.Pods:
		return serverSource(s.Terms)
	case policy.GPU:
		return gpuSource(s.Field)
	}
	return nil, fmt.Errorf("the simulation has nothing that the query %q could ask: replay the policy without it", s.PromQL)
}

// serverSource finds each term under one of its names.
func serverSource(terms []policy.Term) (out source, err error) {
	names := serverMetrics()
	for _, term := range terms {
		i := slices.IndexFunc(term, func(m policy.PodMetric) bool { _, ok := names[m.Name]; return ok })
		if i < 0 {
			return nil, fmt.Errorf("the simulated server has no metric %q", term[0].Name)
		}
		out = append(out, part{names[term[i].Name], cmp.Or(term[i].Factor, 1)})
	}
	return out, nil
}

func gpuSource(id gpu.FieldID) (source, error) {
	sig, ok := map[gpu.FieldID]Signal{
		gpu.GPUUtil: GPUUtil, gpu.GREngineActive: GPUUtil, gpu.SMActive: SMActive, gpu.TensorActive: TensorActive,
	}[id]
	if !ok {
		return nil, fmt.Errorf("the simulated GPUs have no field %d", id)
	}
	p := part{sig, 1}
	if f, ok := gpu.Lookup(id); ok && f.Unit == gpu.Ratio {
		p.factor = 0.01
	}
	return source{p}, nil
}

// SPDX-License-Identifier: Apache-2.0

package service

import (
	"fmt"
	"math"
	"slices"
	"strings"
)

// Model is the speed of one replica of an inference server. An iteration of its scheduler
// takes max(StepBase, n/Prefill) + StepPerSeq·b + StepPerKV·k seconds. Here b sequences decode
// one token each and read their k tokens in the KV cache, and n ≤ Chunk prompt tokens are
// prefilled in the same iteration (chunked prefill). Without prefill this is the literature's
// ITL(b) = a + c·b.
type Model struct {
	Name   string
	Source string // of the numbers
	GPUs   int32  // per replica
	GPU    string // as in a price list's gpu_name

	StepBase   float64 // seconds of an iteration that decodes no sequence (a)
	StepPerSeq float64 // additional seconds per decoding sequence (c)
	StepPerKV  float64 // additional seconds per token that the decoding sequences hold in the KV cache
	Prefill    float64 // prompt tokens/s
	Cached     float64 // share of the prompt tokens that a prefix cache saves from prefill, below 1
	Chunk      float64 // most prompt tokens per iteration
	KVTokens   float64 // capacity of the KV cache in tokens
	MaxSeqs    int     // most sequences that run at once

	// FlopsShare is the share of the tensor cores' peak at the full prefill rate.
	// DecodeShare is the share per decoded token/s.
	FlopsShare, DecodeShare float64

	// SMActivity is the SM activity over the decoding sequences.
	SMActivity SMCurve `json:",omitempty"`

	TTFTLimit, ITLLimit float64 // latency limits of a request, in seconds
}

// Feasible reports whether a request with this prompt meets its limit of the time to the
// first token on an idle replica. Requests that do not are not counted, because no
// autoscaler can change their result.
func (m *Model) Feasible(prompt float64) bool {
	return m.Iteration(m.Fresh(prompt), 1, prompt) <= m.TTFTLimit
}

// Fresh returns the tokens of a prompt that are not in the prefix cache.
func (m *Model) Fresh(prompt float64) float64 { return prompt * (1 - m.Cached) }

// IdleTokenSeconds is the time between tokens of a request that is alone on a replica.
func (m *Model) IdleTokenSeconds() float64 { return m.StepBase + m.StepPerSeq }

// The edges of vLLM's histograms, in seconds: of the time to the first token, and of a request's
// mean time between tokens. Only at an edge does a server count the requests over a limit.
var (
	firstTokenEdges = []float64{0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560}
	tokenEdges      = []float64{0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80}
)

// FirstTokenEdge and TokenEdge return the lowest edge that is not below a limit, in seconds; the
// limit itself above the last one.
func FirstTokenEdge(limit float64) float64 { return edgeOf(firstTokenEdges, limit) }

// TokenEdge is as FirstTokenEdge.
func TokenEdge(limit float64) float64 { return edgeOf(tokenEdges, limit) }

func edgeOf(edges []float64, limit float64) float64 {
	if i, _ := slices.BinarySearch(edges, limit-1e-9); i < len(edges) {
		return edges[i]
	}
	return limit
}

// presets returns the built-in models. TestPresetsMatchMeasurements repeats their fits.
//
// The prefill's share of the peak is 2 × parameters × tokens/s ÷ the GPUs' dense peak
// (NVIDIA's data sheets: A100 312, H100 989 bf16 and 1979 fp8 TFLOP/s). A decoded token
// costs as many FLOPs as a prefilled one.
func presets() []Model {
	return []Model{
		{
			Name: "llama-8b", GPUs: 2, GPU: "a100",
			Source: "SageServe Llama-3.1-8B, 2 x A100-80GB: decode 8.5 ms at batch 1 and 16.1 ms at 32, prefill of 512 to 4096 tokens",
			// KV: 2 × 80 GB × 0.9 less 16 GB of bf16 weights, 131,072 B a token (32 layers, 8 KV heads of 128, 2 B).
			StepBase: 8.26e-3, StepPerSeq: 0.245e-3, Prefill: 17_700, Chunk: 512, KVTokens: 950_000, MaxSeqs: 256,
			FlopsShare: 0.45, DecodeShare: 0.45 / 17_700,
			TTFTLimit: 2.5, ITLLimit: 0.025,
		},
		{
			Name: "llama-8b-h100", GPUs: 1, GPU: "h100",
			Source: "NIM 1.8.0 llama-3.1-8b from 1 to 250 clients, taken as fp8 on one H100 with 200 tokens in and out; context by the roofline; vLLM V1's limits",
			// The table shows neither GPU nor lengths: 4.63 ms a token is less than bf16 weights take at 3.35 TB/s
			// (4.8 ms), and one client's tokens/s and times fit about 200 output tokens.
			// Context: 131,072 B a token at 3.35 TB/s. KV: 80 GB × 0.9 less 9.1 GB of fp8 weights.
			// Cached: half of what ideal caches hit in two production traces (54 and 62 %, arXiv 2506.02634), as
			// requests go to any replica.
			StepBase: 4.6e-3, StepPerSeq: 0.014e-3, StepPerKV: 131_072 / 3.35e12, Prefill: 50_000, Cached: 0.3,
			Chunk: 8192, KVTokens: 480_000, MaxSeqs: 1024,
			FlopsShare: 0.41, DecodeShare: 0.41 / 50_000,
			TTFTLimit: 2.5, ITLLimit: 0.025,
		},
		{
			Name: "llama-70b", GPUs: 2, GPU: "h100",
			Source: "SageServe llama2-70b, 2 x H100-80GB bf16, halved for fp8 weights; validated on NIM llama-3.3-70b fp8 TP2, which it is not fitted to",
			// KV: 2 × 80 GB × 0.9 less 70.6 GB of fp8 weights, 163,840 B a token (80 layers, 8 KV heads of 128, 1 B).
			StepBase: 18.3e-3, StepPerSeq: 0.232e-3, Prefill: 12_600, Chunk: 2048, KVTokens: 448_000, MaxSeqs: 256,
			FlopsShare: 0.45, DecodeShare: 0.45 / 12_600,
			TTFTLimit: 5, ITLLimit: 0.075,
		},
		{
			Name: "llama-70b-bf16", GPUs: 4, GPU: "h100",
			Source: "SageServe llama2-70b, 4 x H100-80GB bf16: decode 28.4 to 36.9 ms at batch 1 to 32, prefill of 512 to 8192 tokens",
			// KV: 4 × 80 GB × 0.9 less 141 GB of bf16 weights, 327,680 B a token.
			StepBase: 29.3e-3, StepPerSeq: 0.233e-3, Prefill: 9_070, Chunk: 2048, KVTokens: 448_000, MaxSeqs: 256,
			FlopsShare: 0.32, DecodeShare: 0.32 / 9_070,
			TTFTLimit: 5, ITLLimit: 0.075,
		},
	}
}

// Preset returns the built-in model of a name.
func Preset(name string) (Model, error) {
	all := presets()
	i := slices.IndexFunc(all, func(m Model) bool { return m.Name == name })
	if i < 0 {
		names := make([]string, len(all))
		for k := range all {
			names[k] = all[k].Name
		}
		return Model{}, fmt.Errorf("no model %q; there are %s", name, strings.Join(names, ", "))
	}
	return all[i], nil
}

// Iteration returns the seconds of an iteration with n prefilled tokens and b decoding
// sequences, which hold kv tokens.
func (m *Model) Iteration(n, b, kv float64) float64 {
	return max(m.StepBase, n/m.Prefill) + m.StepPerSeq*b + m.StepPerKV*kv
}

// KV returns the tokens that a request holds in the KV cache, averaged over its
// life. Paged caches grow with the output, so this is the prompt and half of the output.
func (m *Model) KV(prompt, output float64) float64 { return prompt + output/2 }

// itl returns the mean seconds between tokens on a replica that receives this many
// requests/s of this size for a long time. Prefills lengthen the iterations. The result is
// infinite if the replica is overloaded.
func (m *Model) itl(rate, prompt, output float64) float64 {
	decodeShare := 1 - rate*m.Fresh(prompt)/m.Prefill // of the time
	// b = rate·output·itl and itl = (a + c·b) ÷ decodeShare, solved for itl.
	rest := decodeShare - (m.StepPerSeq+m.StepPerKV*m.KV(prompt, output))*rate*output
	if decodeShare <= 0 || rest <= 0 {
		return math.Inf(1)
	}
	return m.StepBase / rest
}

// evenCapacity returns the requests/s that a replica serves within its limits if all are
// of this size and arrive at equal intervals.
func (m *Model) evenCapacity(prompt, output float64) float64 {
	prompt, output = max(1, prompt), max(1, output)
	fits := func(rate float64) bool {
		itl := m.itl(rate, prompt, output)
		b := rate * output * itl
		return itl <= m.ITLLimit && b <= float64(m.MaxSeqs) && b*m.KV(prompt, output) <= m.KVTokens &&
			rate*m.Fresh(prompt)/m.Prefill <= maxPrefillShare
	}
	low, high := 0.0, m.Prefill/m.Fresh(prompt)
	for range 50 {
		if mid := (low + high) / 2; fits(mid) {
			low = mid
		} else {
			high = mid
		}
	}
	return max(low, 1e-6)
}

// maxPrefillShare is the highest share of time for prefill in evenCapacity. In an M/D/1
// queue the mean wait is one service time at a utilisation of 2/3, and two at 0.8.
const maxPrefillShare = 0.8

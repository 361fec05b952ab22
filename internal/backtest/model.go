// SPDX-License-Identifier: Apache-2.0

package backtest

import (
	"fmt"
	"math"
	"slices"
	"strings"
)

// Model is how fast one replica of an inference server is. One iteration of its
// scheduler takes max(StepBase, n/Prefill) + StepPerSeq·b seconds, where b
// sequences decode one token each and up to Chunk prompt tokens n are prefilled
// along with them (chunked prefill). Without prefill that is the
// ITL(b) = a + c·b of the literature.
type Model struct {
	Name   string
	Source string // where the numbers come from
	GPUs   int32  // that one replica holds
	GPU    string // as in a price list's gpu_name

	StepBase   float64 // seconds of an iteration that decodes, with no sequences (a)
	StepPerSeq float64 // seconds more for each decoding sequence (c)
	Prefill    float64 // prompt tokens/s
	Chunk      float64 // prompt tokens that one iteration takes at most
	KVTokens   float64 // tokens of KV cache
	MaxSeqs    int     // that run at once

	// FlopsShare is the share of the tensor cores' peak that prefill at full
	// rate reaches, DecodeShare what one decoded token/s adds to it.
	FlopsShare, DecodeShare float64

	TTFTLimit, ITLLimit float64 // seconds; what a request may take to be no violation
}

// hopeless says whether a request of this prompt would miss its limit on an
// idle replica: no autoscaler can help it, and it is not counted for or against one.
func (m *Model) hopeless(prompt float64) bool { return m.iteration(prompt, 1) > m.TTFTLimit }

// The presets. The fits are repeated by TestPresetsMatchMeasurements.
//
// Prefill's share of peak is 2 × parameters × tokens/s ÷ the GPUs' dense peak
// (A100 312, H100 989 bf16 and 1979 fp8 TFLOP/s, NVIDIA's data sheets); one
// decoded token costs the same FLOPs as one prefilled.
func presets() []Model {
	return []Model{
		{
			Name: "llama-8b", GPUs: 2, GPU: "a100",
			Source: "SageServe Llama-3.1-8B, 2 x A100-80GB: decode 8.5 ms at batch 1 and 16.1 ms at 32, prefill of 512 to 4096 tokens",
			// KV: 2 × 80 GB × 0.9 less 16 GB of bf16 weights, 131,072 B a token (32 layers, 8 KV heads of 128, 2 B).
			StepBase: 8.26e-3, StepPerSeq: 0.245e-3, Prefill: 17_700, Chunk: 512, KVTokens: 950_000, MaxSeqs: 256,
			FlopsShare: 0.45, DecodeShare: 0.45 / 17_700,
			TTFTLimit: 2, ITLLimit: 0.015,
		},
		{
			Name: "llama-70b", GPUs: 2, GPU: "h100",
			Source: "SageServe llama2-70b, 2 x H100-80GB bf16, halved for fp8 weights; validated on NIM llama-3.3-70b fp8 TP2, which it is not fitted to",
			// KV: 2 × 80 GB × 0.9 less 70.6 GB of fp8 weights, 163,840 B a token (80 layers, 8 KV heads of 128, 1 B).
			StepBase: 18.3e-3, StepPerSeq: 0.232e-3, Prefill: 12_600, Chunk: 2048, KVTokens: 448_000, MaxSeqs: 256,
			FlopsShare: 0.45, DecodeShare: 0.45 / 12_600,
			TTFTLimit: 5, ITLLimit: 0.080,
		},
		{
			Name: "llama-70b-bf16", GPUs: 4, GPU: "h100",
			Source: "SageServe llama2-70b, 4 x H100-80GB bf16: decode 28.4 to 36.9 ms at batch 1 to 32, prefill of 512 to 8192 tokens",
			// KV: 4 × 80 GB × 0.9 less 141 GB of bf16 weights, 327,680 B a token.
			StepBase: 29.3e-3, StepPerSeq: 0.233e-3, Prefill: 9_070, Chunk: 2048, KVTokens: 448_000, MaxSeqs: 256,
			FlopsShare: 0.32, DecodeShare: 0.32 / 9_070,
			TTFTLimit: 5, ITLLimit: 0.080,
		},
	}
}

// Preset finds a model by its name.
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

// iteration is how long one takes, in seconds, that prefills n tokens beside b
// decoding sequences.
func (m *Model) iteration(n, b float64) float64 {
	return max(m.StepBase, n/m.Prefill) + m.StepPerSeq*b
}

// tokens of KV cache that a request holds over its life: paged caches grow, so
// half of the output on the mean.
func (m *Model) held(prompt, output float64) float64 { return prompt + output/2 }

// itl is the mean seconds between a request's tokens when a replica takes rate
// requests/s of this size for long: iterations are stretched by the prefills
// that share them. It is infinite where the replica cannot keep up.
func (m *Model) itl(rate, prompt, output float64) float64 {
	free := 1 - rate*prompt/m.Prefill // of the time, left to decode
	// b = rate·output·itl and itl = (a + c·b) ÷ free, solved for itl.
	rest := free - m.StepPerSeq*rate*output
	if free <= 0 || rest <= 0 {
		return math.Inf(1)
	}
	return m.StepBase / rest
}

// even is the requests/s of this size that one replica serves for long within
// the limits, if they came evenly and were all of one size.
func (m *Model) even(prompt, output float64) float64 {
	prompt, output = max(1, prompt), max(1, output)
	fits := func(rate float64) bool {
		itl := m.itl(rate, prompt, output)
		b := rate * output * itl
		return itl <= m.ITLLimit && b <= float64(m.MaxSeqs) && b*m.held(prompt, output) <= m.KVTokens &&
			rate*prompt/m.Prefill <= maxPrefillShare
	}
	low, high := 0.0, m.Prefill/prompt
	for range 50 {
		if mid := (low + high) / 2; fits(mid) {
			low = mid
		} else {
			high = mid
		}
	}
	return max(low, 1e-6)
}

// maxPrefillShare is the share of its time above which a replica's prompts wait
// for one another longer than they take (an M/D/1 queue waits one service at 2/3,
// two at 0.8).
const maxPrefillShare = 0.8

// SPDX-License-Identifier: Apache-2.0

package simnode

import (
	"math"
	"strings"
	"time"
)

// Latency is how the latencies of a workload's servers follow its load: they grow as 1/(1−b), where b is 0 on an idle server
// and slowest on a fully utilised one. The first token also waits in the queue.
type Latency struct {
	First, Token           time.Duration // until the first token and between two tokens, of an idle server
	FirstLimit, TokenLimit time.Duration // a request beyond one of them is missed
}

// spread is how far the latencies of single requests are from the mean, as a share of it.
const slowest, spread = 0.6, 0.2

// At returns the mean latencies at a load, in seconds.
func (l *Latency) At(x Load, capacity float64) (first, token float64) {
	times := 1 / (1 - slowest*x.Utilization/100)
	return l.First.Seconds()*times + x.Waiting/capacity, l.Token.Seconds() * times
}

// Missed returns the share of the requests served at a load that take longer than a limit.
func (l *Latency) Missed(x Load, capacity float64) float64 {
	first, token := l.At(x, capacity)
	return 1 - min(within(first, l.FirstLimit.Seconds()), within(token, l.TokenLimit.Seconds()))
}

// within is the share of latencies with this mean that are at most a limit.
func within(mean, limit float64) float64 {
	return min(1, max(0, (limit/mean-1+spread)/(2*spread)))
}

// The edges of vLLM's histograms that simulated servers have, in seconds.
var (
	firstEdges = []bucket{{"0.1", 0.1}, {"0.25", 0.25}, {"0.5", 0.5}, {"0.75", 0.75}, {"1.0", 1}, {"2.5", 2.5}, {"5.0", 5}, {"7.5", 7.5}, {"10.0", 10}}
	tokenEdges = []bucket{{"0.01", 0.01}, {"0.025", 0.025}, {"0.05", 0.05}, {"0.075", 0.075}, {"0.1", 0.1}}
)

// times are the histograms of a server whose latencies follow its load.
type times struct {
	first, token       []float64 // requests up to each edge
	firstSum, tokenSum float64   // seconds, of the requests
}

// add adds requests that were served at a load.
func (t *times) add(l *Latency, x Load, capacity, served float64) {
	if l == nil {
		return
	}
	first, token := l.At(x, capacity)
	t.firstSum, t.tokenSum = t.firstSum+served*first, t.tokenSum+served*token
	for sums, edges := range map[*[]float64][]bucket{&t.first: firstEdges, &t.token: tokenEdges} {
		if *sums == nil {
			*sums = make([]float64, len(edges))
		}
		mean := first
		if sums == &t.token {
			mean = token
		}
		for i, e := range edges {
			(*sums)[i] += served * within(mean, e.n)
		}
	}
}

// write writes the histograms of a server with so many requests.
func (t *times) write(b *strings.Builder, model string, served float64) {
	buckets := func(edges []bucket, n []float64, times float64) (out []bucket) {
		for i, e := range edges {
			out = append(out, bucket{edge: e.edge})
			if n != nil {
				out[i].n = times * min(served, math.Round(n[i]))
			}
		}
		return out
	}
	of := max(served, 1)
	histogram(b, model, "vllm:time_to_first_token_seconds", t.firstSum/of, served, buckets(firstEdges, t.first, 1))
	histogram(b, model, "vllm:inter_token_latency_seconds", t.tokenSum/of, outputTokens*served, buckets(tokenEdges, t.token, outputTokens))
	histogram(b, model, "vllm:request_time_per_output_token_seconds", t.tokenSum/of, served, buckets(tokenEdges, t.token, 1))
}

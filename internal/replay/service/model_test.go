// SPDX-License-Identifier: Apache-2.0

package service

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/gpupilot/gpupilot/internal/replay/trace"
)

// requestLog records completed requests.
type requestLog struct {
	ttft, itl, at []float64
}

func (l *requestLog) completed(at, ttft, itl float64) {
	l.at, l.ttft, l.itl = append(l.at, at), append(l.ttft, ttft), append(l.itl, itl)
}
func (l *requestLog) abandoned(float64) {}

func preset(t *testing.T, name string) Model {
	t.Helper()
	m, err := Preset(name)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func mean(x []float64) float64 {
	sum := 0.0
	for _, v := range x {
		sum += v
	}
	return sum / float64(len(x))
}

// closedLoop keeps n requests of one size in flight, as load generators do. It returns the
// means over the second half of the requests.
func closedLoop(m Model, n int, prompt, output float64, rounds int) (ttft, itl, rate float64) {
	r := replica{m: &m, patience: math.Inf(1)}
	var l requestLog
	// Clients start one after the other.
	for i := range n {
		at := float64(i) * 0.05
		r.advance(at, &l)
		r.add(trace.Request{At: at, Prompt: prompt, Output: output}, &l)
	}
	seen := 0
	for len(l.at) < rounds*n {
		r.advance(r.now+0.02, &l)
		for ; seen < len(l.at); seen++ {
			r.add(trace.Request{At: r.now, Prompt: prompt, Output: output}, &l)
		}
	}
	half := len(l.at) / 2
	return mean(l.ttft[half:]), mean(l.itl[half:]), float64(len(l.at)) / r.now
}

// knee returns the concurrency at which a server saturates. Above it the time to the first
// token is (concurrency - knee) ÷ throughput: the knee is where this line meets the axis.
func knee(m Model, prompt, output float64) float64 {
	a, _, _ := closedLoop(m, 150, prompt, output, 6)
	b, _, _ := closedLoop(m, 250, prompt, output, 6)
	return 150 - a*(250-150)/(b-a)
}

func TestKneeIsNIMs(t *testing.T) {
	m := preset(t, "llama-70b")
	// NIM 1.8.0, llama-3.3-70b fp8 on 2 x H100, 5000 tokens in and 500 out:
	// TTFT 34.8 s at 150 and 88.6 s at 250 clients, so the knee is at 85.
	const want = 150 - 34.79422*100/(88.60532-34.79422)
	got := knee(m, 5000, 500)
	t.Logf("knee at %.1f clients, measured %.1f", got, want)
	if math.Abs(got/want-1) > 0.25 {
		t.Errorf("knee at %.1f clients, measured %.1f", got, want)
	}
	for _, x := range []struct {
		n              int
		ttft, itl, out float64
	}{{1, 0.40677, 0.01858, 51.67}, {5, 0.5467, 0.02183, 218.48}, {25, 0.68869, 0.03875, 623.4}, {50, 0.83451, 0.05973, 814.37}, {150, 34.794, 0.09286, 920.9}} {
		ttft, itl, rate := closedLoop(m, x.n, 5000, 500, 8)
		t.Logf("%3d clients: ttft %.2f s (%.2f), itl %.1f ms (%.1f), %.0f tokens/s (%.0f)", x.n, ttft, x.ttft, itl*1000, x.itl*1000, rate*500, x.out)
		if math.Abs(itl/x.itl-1) > 0.25 {
			t.Errorf("%d clients: itl %.1f ms, measured %.1f", x.n, itl*1000, x.itl*1000)
		}
	}
}

// TestH100IsNIMs repeats the fit of the engine of today: NIM's table of llama-3.1-8b, which names neither GPU nor lengths.
func TestH100IsNIMs(t *testing.T) {
	m := preset(t, "llama-8b-h100")
	m.Cached = 0 // a benchmark's prompts are random
	const in, out = 200, 200
	for _, x := range []struct{ n, itl, out, within float64 }{
		{1, 4.63, 214.56, 0.03},
		{5, 4.58, 1076.88, 0.06},
		{25, 5.19, 4678.88, 0.06},
		{50, 5.91, 8018.23, 0.08},
		{100, 7.57, 12214.97, 0.08},
		{150, 9.81, 12988.89, 0.15},
		{200, 12.65, 13348.4, 0.2},
	} {
		ttft, itl, _ := closedLoop(m, int(x.n), in, out, 4)
		tokens := x.n * out / (ttft + (out-1)*itl) // by Little's law: clients do not begin at once here
		t.Logf("%3g clients: itl %.2f ms (%.2f), %.0f tokens/s (%.0f)", x.n, 1000*itl, x.itl, tokens, x.out)
		if math.Abs(1000*itl/x.itl-1) > 0.1 || math.Abs(tokens/x.out-1) > x.within {
			t.Errorf("%g clients: itl %.2f ms and %.0f tokens/s, measured %.2f and %.0f", x.n, 1000*itl, tokens, x.itl, x.out)
		}
	}
	// The roofline: 9.1 GB of fp8 weights and 131,072 B per token of context at 3.35 TB/s.
	if weights := 9.1e9 / 3.35e12; m.StepBase < weights || m.StepBase > 2*weights {
		t.Errorf("an idle iteration takes %.2f ms, reading the weights %.2f", 1000*m.StepBase, 1000*weights)
	}
	short, long := m.Iteration(0, 64, 64*300)-m.StepBase, m.Iteration(0, 64, 64*3000)-m.StepBase
	if want := 64 * 2700 * 131_072 / 3.35e12; math.Abs((long-short)/want-1) > 0.01 {
		t.Errorf("64 sequences of 3,000 tokens take %.2f ms more than those of 300: want %.2f", 1000*(long-short), 1000*want)
	}
}

// A prefix cache saves prefill and no memory, and servers count its tokens.
func TestPrefixCacheSavesPrefill(t *testing.T) {
	m := preset(t, "llama-8b-h100")
	var l requestLog
	serve := func(cached float64) (ttft, prompt, kv float64) {
		m.Cached = cached
		r := replica{m: &m, patience: math.Inf(1)}
		r.add(trace.Request{Prompt: 8000, Output: 100}, &l)
		kv = r.kv
		r.advance(10, &l)
		return l.ttft[len(l.ttft)-1], r.promptTokens, kv
	}
	ttft, prompt, kv := serve(0)
	half, promptHalf, kvHalf := serve(0.5)
	if math.Abs(half/ttft-0.5) > 1e-9 || math.Abs(promptHalf/prompt-1) > 1e-9 || kvHalf != kv {
		t.Errorf("cached: first token %v s, %v tokens, %v in the cache; else %v, %v, %v", half, promptHalf, kvHalf, ttft, prompt, kv)
	}
}

// iterations serves q on one replica and simulates every iteration and token. The replica
// is an approximation of it.
func iterations(m *Model, q []trace.Request) (l requestLog) {
	type seq struct {
		trace.Request
		left, tokens, first float64
	}
	var run, pre []*seq
	now, kv, next := 0.0, 0.0, 0
	var wait []*seq
	for len(l.at) < len(q) {
		for ; next < len(q) && q[next].At <= now; next++ {
			wait = append(wait, &seq{Request: q[next], left: m.Fresh(q[next].Prompt), tokens: q[next].Output})
		}
		if len(run)+len(pre)+len(wait) == 0 {
			now = q[next].At
			continue
		}
		pending := 0.0
		for _, s := range pre {
			pending += s.left
		}
		for len(wait) > 0 && pending < m.Chunk && len(run)+len(pre) < m.MaxSeqs {
			s := wait[0]
			if need := m.KV(s.Prompt, s.Output); kv+need <= m.KVTokens || len(run)+len(pre) == 0 {
				kv += need
				pre, wait, pending = append(pre, s), wait[1:], pending+s.left
				continue
			}
			break
		}
		budget := m.Chunk
		chunk := 0.0
		var first []*seq
		for _, s := range pre {
			n := min(budget, s.left)
			s.left -= n
			budget -= n
			chunk += n
			if s.left <= 0 {
				first = append(first, s)
			}
		}
		context := 0.0
		for _, s := range run {
			context += m.KV(s.Prompt, s.Output)
		}
		now += m.Iteration(chunk, float64(len(run)), context)
		keep := run[:0]
		end := func(s *seq) {
			kv -= m.KV(s.Prompt, s.Output)
			itl := 0.0
			if s.Output > 1 {
				itl = (now - s.first) / (s.Output - 1)
			}
			l.completed(s.At, s.first-s.At, itl)
		}
		for _, s := range run {
			if s.tokens--; s.tokens <= 0 {
				end(s)
				continue
			}
			keep = append(keep, s)
		}
		run = keep
		pre = pre[len(first):]
		for _, s := range first {
			s.first = now
			if s.tokens--; s.tokens <= 0 {
				end(s)
				continue
			}
			run = append(run, s)
		}
	}
	return l
}

func violations(m *Model, l *requestLog) float64 {
	n := 0
	for i := range l.ttft {
		if l.ttft[i] > m.TTFTLimit || l.itl[i] > m.ITLLimit {
			n++
		}
	}
	return 100 * float64(n) / float64(len(l.ttft))
}

func TestReplicaAgainstIterations(t *testing.T) {
	for _, m := range presets() {
		for _, x := range []struct{ load, prompt, output float64 }{{0.4, 1155, 211}, {0.8, 1155, 211}, {1, 1155, 211}, {1.3, 1155, 211}, {0.8, 150, 400}, {1, 5000, 500}} {
			rng := rand.New(rand.NewPCG(1, 2))
			rate := x.load * m.evenCapacity(x.prompt, x.output)
			var q []trace.Request
			for at := 0.0; len(q) < 4000; at += rng.ExpFloat64() / rate {
				one := trace.Request{At: at}
				one.Prompt, one.Output = trace.Tokens(rng, x.prompt, x.output)
				q = append(q, one)
			}
			exact := iterations(&m, q)
			var l requestLog
			r := replica{m: &m, patience: math.Inf(1)}
			for _, one := range q {
				r.advance(one.At, &l)
				r.add(one, &l)
			}
			r.advance(r.now+1e5, &l)
			a, b := violations(&m, &exact), violations(&m, &l)
			t.Logf("%s at %.1f of capacity, %g+%g tokens: ttft %.3f s (exact %.3f), itl %.2f ms (%.2f), violations %.2f %% (%.2f)",
				m.Name, x.load, x.prompt, x.output, mean(l.ttft), mean(exact.ttft), 1000*mean(l.itl), 1000*mean(exact.itl), b, a)
			if math.Abs(mean(l.itl)/mean(exact.itl)-1) > 0.06 || math.Abs(a-b) > 2+0.15*a {
				t.Errorf("%s at %.1f: itl %.2f ms, exact %.2f; violations %.2f %%, exact %.2f", m.Name, x.load, 1000*mean(l.itl), 1000*mean(exact.itl), b, a)
			}
		}
	}
}

func TestCapacity(t *testing.T) {
	for _, m := range presets() {
		for _, x := range [][2]float64{{1155, 211}, {150, 400}, {928, 141}, {1500, 1700}, {12000, 343}} {
			e, c := m.evenCapacity(x[0], x[1]), m.Capacity(x[0], x[1])
			t.Logf("%s %g+%g: even %.2f/s, capacity %.2f/s, idle miss %.2f %%", m.Name, x[0], x[1], e, c, m.missedPercent(0.02*e, x[0], x[1]))
			if c <= 0 || c > 1.3*e {
				t.Errorf("%s %g+%g: capacity %.2f/s, even %.2f/s", m.Name, x[0], x[1], c, e)
			}
		}
	}
}

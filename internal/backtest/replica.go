// SPDX-License-Identifier: Apache-2.0

package backtest

import "math"

// Request is one request of a load.
type Request struct {
	At             float64 // seconds from the replay's beginning
	Prompt, Output float64 // tokens, at least 1
}

// running is a sequence that decodes.
type running struct {
	end    float64 // of the replica's decode steps at which it is done
	first  float64 // when its first token came
	at     float64 // when it arrived
	output float64
	held   float64 // tokens of KV cache
	silent bool    // hopeless: not told of
}

// outcome is told of each request that ended.
type outcome interface {
	// done: ttft and itl in seconds; a request of one token has an itl of 0.
	// Of hopeless requests nothing is told.
	done(at, ttft, itl float64)
	// dropped: the client gave up after waiting for its first token.
	dropped(at float64)
}

// replica is one server with continuous batching. Its sequences all decode at
// one rate, so each ends at a known count of decode steps, and the state
// between two events is linear in time: advance jumps from event to event.
type replica struct {
	m        *Model
	patience float64
	blind    bool // nobody looks at the GPU: its integrals are left out
	now      float64
	steps    float64 // decode iterations so far, fractional
	decoding []running
	prefill  fifo    // admitted; the head is being prefilled
	left     float64 // tokens of the head that are not prefilled yet
	pending  float64 // tokens of all in prefill that are not prefilled yet
	wait     fifo    // not admitted yet
	kv       float64 // tokens held

	// Integrals over time, in seconds, for what GPUs report.
	busy, sm, tensor  float64
	served            float64 // requests that ended
	firstWait, firsts float64 // seconds that requests waited for their first token, and how many got it
	waited, tokens    float64 // seconds that sequences waited for tokens, and how many came
}

// load is the requests that the replica has, of any kind.
func (r *replica) load() int { return len(r.decoding) + r.prefill.len() + r.wait.len() }

// run and queue are what an inference server reports of itself.
func (r *replica) run() int { return len(r.decoding) + r.prefill.len() }

func (r *replica) queue() int { return r.wait.len() }

// add gives the replica a request at its present time.
func (r *replica) add(q Request, out outcome) {
	r.wait.push(q)
	r.admit(out)
}

// admit moves requests from the queue into prefill while the cache has room and
// the next iteration is not full.
func (r *replica) admit(out outcome) {
	for r.wait.len() > 0 && r.pending < r.m.Chunk && r.run() < r.m.MaxSeqs {
		q := *r.wait.head()
		if r.now-q.At > r.patience {
			r.giveUp(out)
			continue
		}
		need := r.m.held(q.Prompt, q.Output)
		if r.kv+need > r.m.KVTokens && r.run() > 0 {
			return
		}
		r.kv += need
		if r.prefill.len() == 0 {
			r.left = q.Prompt
		}
		r.pending += q.Prompt
		r.prefill.push(q)
		r.wait.pop()
	}
}

// advance brings the replica to time t.
func (r *replica) advance(t float64, out outcome) {
	for r.now < t {
		b := float64(len(r.decoding))
		chunk, step := 0.0, r.m.StepBase+r.m.StepPerSeq*b
		if r.prefill.len() > 0 {
			chunk = max(1, min(r.m.Chunk, r.pending))
			step = r.m.iteration(chunk, b)
		} else if b == 0 {
			r.now = t
			return
		}
		next := t - r.now
		finishes, prefilled := false, false
		if b > 0 {
			if dt := (r.decoding[0].end - r.steps) * step; dt <= next {
				next, finishes = max(0, dt), true
			}
		}
		if chunk > 0 {
			if dt := r.left * step / chunk; dt < next || dt == next && !finishes {
				next, prefilled, finishes = dt, true, false
			}
		}
		r.pass(next, step, chunk, b)
		switch {
		case prefilled:
			r.prefillDone(out)
		case finishes:
			r.decodeDone(out)
		default:
			r.now = t // exactly, whatever the additions came to
		}
	}
}

// pass lets dt seconds go by in which nothing ends.
func (r *replica) pass(dt, step, chunk, b float64) {
	r.now += dt
	r.steps += dt / step
	done := 0.0
	if chunk > 0 {
		done = chunk * dt / step
		r.left -= done
		r.pending -= done
	}
	if r.blind {
		return
	}
	r.busy += dt
	r.waited += b * dt
	r.tokens += b * dt / step
	r.tensor += r.m.FlopsShare / r.m.Prefill * done
	r.tensor += r.m.DecodeShare * b * dt / step
	r.sm += smActive(r.m, step, chunk, b) * dt
}

// smActive is the share of the SMs that have a warp while iterations like this
// one run. No public measurement of it over batch sizes is at hand: the shape
// is ours, from what is reported (a single request keeps a third to a half
// busy, prefill and large batches nearly all; NVIDIA/dcgm-exporter#301).
func smActive(m *Model, step, chunk, b float64) float64 {
	decode := 0.35 + 0.6*b/(b+24)
	if chunk == 0 {
		return decode
	}
	prefill := min(1, chunk/m.Prefill/step)
	return prefill*0.97 + (1-prefill)*decode
}

func (r *replica) prefillDone(out outcome) {
	q := r.prefill.pop()
	r.firstWait += r.now - q.At
	r.firsts++
	r.pending = max(0, r.pending-r.left)
	if r.prefill.len() > 0 {
		r.left = r.prefill.head().Prompt
	} else {
		r.left, r.pending = 0, 0
	}
	s := running{end: r.steps + q.Output - 1, first: r.now, at: q.At, output: q.Output, held: r.m.held(q.Prompt, q.Output), silent: r.m.hopeless(q.Prompt)}
	if q.Output <= 1 {
		r.end(s, out)
	} else {
		r.push(s)
	}
	r.admit(out)
}

func (r *replica) decodeDone(out outcome) {
	r.end(r.popRunning(), out)
	r.admit(out)
}

func (r *replica) end(s running, out outcome) {
	r.kv = max(0, r.kv-s.held)
	r.served++
	if s.silent {
		return
	}
	itl := 0.0
	if s.output > 1 {
		itl = (r.now - s.first) / (s.output - 1)
	}
	out.done(s.at, s.first-s.at, itl)
}

// push and popRunning keep decoding a binary heap with the next to end first.
func (r *replica) push(s running) {
	h := append(r.decoding, s)
	i := len(h) - 1
	for i > 0 {
		up := (i - 1) / 2
		if h[up].end <= s.end {
			break
		}
		h[i] = h[up]
		i = up
	}
	h[i] = s
	r.decoding = h
}

func (r *replica) popRunning() running {
	h := r.decoding
	top, last := h[0], h[len(h)-1]
	h = h[:len(h)-1]
	for i := 0; len(h) > 0; {
		k := 2*i + 1
		if k+1 < len(h) && h[k+1].end < h[k].end {
			k++
		}
		if k >= len(h) || h[k].end >= last.end {
			h[i] = last
			break
		}
		h[i] = h[k]
		i = k
	}
	r.decoding = h
	return top
}

// fifo is a queue of requests that reuses its memory.
type fifo struct {
	q     []Request
	start int
}

func (f *fifo) len() int       { return len(f.q) - f.start }
func (f *fifo) head() *Request { return &f.q[f.start] }

func (f *fifo) push(r Request) {
	if f.start > 64 && f.start*2 > len(f.q) {
		f.q = f.q[:copy(f.q, f.q[f.start:])]
		f.start = 0
	}
	f.q = append(f.q, r)
}

func (f *fifo) pop() Request {
	r := f.q[f.start]
	f.start++
	if f.start == len(f.q) {
		f.q, f.start = f.q[:0], 0
	}
	return r
}

// drop forgets the queue's dead: clients that gave up before now.
func (r *replica) drop(out outcome) {
	for r.wait.len() > 0 && r.now-r.wait.head().At > r.patience {
		r.giveUp(out)
	}
}

// giveUp is the head of the queue leaving it unserved.
func (r *replica) giveUp(out outcome) {
	if q := r.wait.pop(); !r.m.hopeless(q.Prompt) {
		out.dropped(q.At)
	}
}

// never is a time that does not come.
var never = math.Inf(1)

// SPDX-License-Identifier: Apache-2.0

package service

import "github.com/gpupilot/gpupilot/internal/replay/trace"

// sequence is a request that is decoding.
type sequence struct {
	end        float64 // count of the replica's decode steps at which it is complete
	firstToken float64 // time of its first token
	arrival    float64 // time
	output     float64 // tokens
	kv         float64 // tokens in the KV cache
	uncounted  bool    // not feasible, so it is not reported to the observer
}

// observer is informed of the end of each feasible request.
type observer interface {
	// completed gets the time of arrival, the time to the first token and the mean time
	// between tokens, in seconds. The latter is 0 for a request of one token.
	completed(at, ttft, itl float64)
	// abandoned gets the arrival of a request whose client gave up before the first token.
	abandoned(at float64)
}

// replica is a server with continuous batching. All its sequences decode at one rate, so
// each ends at a known count of decode steps. Between two events the state is linear in
// time, and advance jumps from event to event.
type replica struct {
	m        *Model
	patience float64 // seconds after which a client without a first token gives up
	// gaugesOnly leaves out the counters below: no autoscaler reads rates or GPU activity.
	gaugesOnly bool

	now           float64
	steps         float64 // decode iterations so far, fractional
	decoding      []sequence
	prefill       queue   // admitted; the head is being prefilled
	headTokens    float64 // tokens of the head that are not prefilled yet
	prefillTokens float64 // tokens of all of prefill that are not prefilled yet
	waiting       queue   // not admitted
	waitingTokens float64 // prompt tokens of all of waiting that are to be prefilled
	kv            float64 // tokens in the KV cache
	decodingKV    float64 // of those, the decoding sequences'

	counters
}

// counters are totals since the start of a replica, in seconds unless noted. Servers and
// GPUs report their increase.
type counters struct {
	busy, sm, tensor float64 // GPU activity, integrated over time
	completed        float64 // requests
	firstTokenWait   float64 // sum of the times to the first token
	firstTokens      float64 // number of first tokens
	decodeTime       float64 // sum over sequences
	tokens           float64 // number of decoded tokens
	promptTokens     float64 // number of tokens of the prompts, also those from the prefix cache
	ended            float64 // requests that ended or were given up
	late, slow       float64 // of those, over the limit of the first token, and of the time between tokens
	aborted          float64 // given up
}

// inFlight returns the number of requests that the replica has received and not answered.
func (r *replica) inFlight() int { return r.running() + r.waiting.len() }

// running returns the number of admitted requests, as inference servers report it.
func (r *replica) running() int { return len(r.decoding) + r.prefill.len() }

// add adds a request at the replica's current time.
func (r *replica) add(q trace.Request, out observer) {
	r.waiting.push(q)
	r.waitingTokens += r.m.Fresh(q.Prompt)
	r.admit(out)
}

// admit moves requests from the queue to the prefill while the KV cache has room and the
// next iteration is not full. A request that exceeds the cache is admitted alone.
func (r *replica) admit(out observer) {
	for r.waiting.len() > 0 && r.prefillTokens < r.m.Chunk && r.running() < r.m.MaxSeqs {
		q := *r.waiting.head()
		if r.now-q.At > r.patience {
			r.abandonHead(out)
			continue
		}
		need := r.m.KV(q.Prompt, q.Output)
		if r.kv+need > r.m.KVTokens && r.running() > 0 {
			return
		}
		r.kv += need
		if r.prefill.len() == 0 {
			r.headTokens = r.m.Fresh(q.Prompt)
		}
		r.prefillTokens += r.m.Fresh(q.Prompt)
		r.prefill.push(q)
		r.popWaiting()
	}
}

// advance simulates the replica until time t.
func (r *replica) advance(t float64, out observer) {
	for r.now < t {
		b := float64(len(r.decoding))
		chunk, step := 0.0, r.m.Iteration(0, b, r.decodingKV)
		if r.prefill.len() > 0 {
			chunk = max(1, min(r.m.Chunk, r.prefillTokens))
			step = r.m.Iteration(chunk, b, r.decodingKV)
		} else if b == 0 {
			r.now = t
			return
		}
		next := t - r.now
		decoded, prefilled := false, false
		if b > 0 {
			if dt := (r.decoding[0].end - r.steps) * step; dt <= next {
				next, decoded = max(0, dt), true
			}
		}
		if chunk > 0 {
			if dt := r.headTokens * step / chunk; dt < next || dt == next && !decoded {
				next, prefilled, decoded = dt, true, false
			}
		}
		r.pass(next, step, chunk, b)
		switch {
		case prefilled:
			r.endPrefill(out)
		case decoded:
			r.end(r.popDecoding(), out)
			r.admit(out)
		default:
			r.now = t // exact, without rounding errors of the additions
		}
	}
}

// pass advances the state by dt seconds without an event.
func (r *replica) pass(dt, step, chunk, b float64) {
	r.now += dt
	r.steps += dt / step
	prefilled := 0.0
	if chunk > 0 {
		prefilled = chunk * dt / step
		r.headTokens -= prefilled
		r.prefillTokens -= prefilled
	}
	if r.gaugesOnly {
		return
	}
	r.busy += dt
	r.decodeTime += b * dt
	r.tokens += b * dt / step
	r.promptTokens += prefilled / (1 - r.m.Cached) // servers count those from the cache too
	r.tensor += r.m.FlopsShare / r.m.Prefill * prefilled
	r.tensor += r.m.DecodeShare * b * dt / step
	r.sm += smActive(r.m, step, chunk, b) * dt
}

// smActive returns the share of the SMs that have a warp, during iterations of this kind. Prefill keeps nearly all active:
// that is an assumption too.
func smActive(m *Model, step, chunk, b float64) float64 {
	decode := m.SMActivity.at(b)
	if chunk == 0 {
		return decode
	}
	prefill := min(1, chunk/m.Prefill/step)
	return prefill*0.97 + (1-prefill)*decode
}

// endPrefill moves the head of the prefill to the decoding sequences.
func (r *replica) endPrefill(out observer) {
	q := r.prefill.pop()
	r.firstTokenWait += r.now - q.At
	r.firstTokens++
	r.prefillTokens = max(0, r.prefillTokens-r.headTokens)
	if r.prefill.len() > 0 {
		r.headTokens = r.m.Fresh(r.prefill.head().Prompt)
	} else {
		r.headTokens, r.prefillTokens = 0, 0
	}
	s := sequence{
		end: r.steps + q.Output - 1, firstToken: r.now, arrival: q.At, output: q.Output,
		kv: r.m.KV(q.Prompt, q.Output), uncounted: !r.m.Feasible(q.Prompt),
	}
	if q.Output <= 1 {
		r.end(s, out)
	} else {
		r.pushDecoding(s)
	}
	r.admit(out)
}

// end completes a sequence.
func (r *replica) end(s sequence, out observer) {
	r.kv = max(0, r.kv-s.kv)
	r.completed++
	if s.uncounted {
		return
	}
	itl := 0.0
	if s.output > 1 {
		itl = (r.now - s.firstToken) / (s.output - 1)
	}
	r.ended++
	if s.firstToken-s.arrival > r.m.TTFTLimit {
		r.late++
	}
	if itl > r.m.ITLLimit {
		r.slow++
	}
	out.completed(s.arrival, s.firstToken-s.arrival, itl)
}

// abandonExpired removes the waiting requests whose clients have given up.
func (r *replica) abandonExpired(out observer) {
	for r.waiting.len() > 0 && r.now-r.waiting.head().At > r.patience {
		r.abandonHead(out)
	}
}

// abandonHead removes the first waiting request.
func (r *replica) abandonHead(out observer) {
	if q := r.popWaiting(); r.m.Feasible(q.Prompt) {
		r.ended++
		r.aborted++
		out.abandoned(q.At)
	}
}

func (r *replica) popWaiting() trace.Request {
	q := r.waiting.pop()
	r.waitingTokens -= r.m.Fresh(q.Prompt)
	return q
}

// pushDecoding and popDecoding keep decoding as a binary heap, with the earliest end first.
func (r *replica) pushDecoding(s sequence) {
	r.decodingKV += s.kv
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

func (r *replica) popDecoding() sequence {
	h := r.decoding
	top, last := h[0], h[len(h)-1]
	h = h[:len(h)-1]
	if r.decodingKV -= top.kv; len(h) == 0 {
		r.decodingKV = 0 // exact, without rounding errors of the sum
	}
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

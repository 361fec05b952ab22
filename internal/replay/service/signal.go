// SPDX-License-Identifier: Apache-2.0

package service

// Signal is a value that a pod reports.
type Signal uint8

// The signals. Those of the server are reported while it serves, those of the GPUs while
// the containers run.
const (
	Running      Signal = iota // requests in the batch
	Waiting                    // requests in the server's queue
	Concurrency                // Running + Waiting
	KVUse                      // share of the KV cache, 0 to 1
	GPUUtil                    // percent of the time with a running kernel
	SMActive                   // percent of the SMs, averaged over time
	TensorActive               // percent of the tensor cores' peak
	Served                     // completed requests/s
	signalCount
)

func (s Signal) String() string {
	return [...]string{"running", "waiting", "running+waiting", "kv", "GPU_UTIL", "SM_ACTIVE", "TENSOR_ACTIVE", "served"}[s]
}

// OfGPU reports whether GPUs report the signal, rather than the server.
func (s Signal) OfGPU() bool { return s == GPUUtil || s == SMActive || s == TensorActive }

// PodReport is what one pod reports at one second. Rates are over the last second.
type PodReport struct {
	Values  [signalCount]float32 // by Signal
	Serving bool                 // the server reports its signals

	ArrivalsPerSecond    float32
	FirstTokenSeconds    float32 // mean time to the first token
	FirstTokensPerSecond float32
	Batch                float32 // mean number of decoding sequences
	TokenSeconds         float32 // mean time between tokens; 0: no sequence decoded

	// WaitingTokens are the prompt tokens of the requests in the server's queue, and
	// PrefillTokens those of running requests that are not prefilled yet.
	WaitingTokens, PrefillTokens float32

	PromptTokensPerSecond, OutputTokensPerSecond float32
	EndedPerSecond, MissedPerSecond              float32

	pod        int32
	sm, tensor float64 // integrals of the activity, in seconds
}

// Value returns the value of a signal; ok is false if the pod did not report it.
func (s *PodReport) Value(sig Signal) (v float64, ok bool) {
	if s == nil || !s.Serving && !sig.OfGPU() {
		return 0, false
	}
	return float64(s.Values[sig]), true
}

// Snapshot holds the samples of all pods at one second.
type Snapshot struct {
	second  int
	samples []PodReport
}

// Of returns the sample of a pod; nil if there is none.
func (s *Snapshot) Of(podID int) *PodReport {
	for i := range s.samples {
		if s.samples[i].pod == int32(podID) {
			return &s.samples[i]
		}
	}
	return nil
}

// snapshotSeconds is how long snapshots are kept. The longest lag is 90 s, and 30 s more
// are needed for the mean since the collection before.
const snapshotSeconds = 128

// At returns the snapshot of a second, or an empty one if it is not kept.
func (d *Deployment) At(second int) *Snapshot {
	if second < 0 {
		return &d.empty
	}
	if s := &d.snapshots[second%snapshotSeconds]; s.second == second {
		return s
	}
	return &d.empty
}

// Collected returns the value of a pod as a collector with this interval in seconds reads
// it. DCGM's profiling fields are means since the previous collection.
func (d *Deployment) Collected(s *Snapshot, x *PodReport, sig Signal, interval int) (v float64, ok bool) {
	v, ok = x.Value(sig)
	if !ok || interval <= 1 || !x.Serving || sig != SMActive && sig != TensorActive {
		return v, ok
	}
	previous := d.At(s.second - interval).Of(int(x.pod))
	if previous == nil || !previous.Serving {
		return v, ok
	}
	sum := x.sm - previous.sm
	if sig == TensorActive {
		sum = x.tensor - previous.tensor
	}
	return 100 * min(1, sum/float64(interval)), true
}

// Total returns the sum of a signal over the pods that report it, and their number. The
// interval is that of Collected.
func (d *Deployment) Total(s *Snapshot, sig Signal, interval int) (sum float64, n int) {
	for i := range s.samples {
		if v, ok := d.Collected(s, &s.samples[i], sig, interval); ok {
			sum += v
			n++
		}
	}
	return sum, n
}

// observe takes the snapshot of a second.
func (d *Deployment) observe(now int) {
	s := &d.snapshots[now%snapshotSeconds]
	s.second, s.samples = now, s.samples[:0]
	for _, p := range d.pods {
		if p.Phase != Loading && p.Phase != Serving {
			continue
		}
		x := PodReport{pod: int32(p.ID), Serving: p.Phase == Serving}
		if p.warmingUp(float64(now)) {
			x.Values[GPUUtil], x.Values[SMActive], x.Values[TensorActive] = 100, 60, 10
		}
		if x.Serving {
			p.report(&x)
		}
		s.samples = append(s.samples, x)
	}
}

// reading is the state of a pod's counters when they were last read.
type reading struct {
	at       float64
	inFlight int
	counters
}

// report fills in what a serving pod reports: gauges, and the increases of its counters
// since the last reading.
func (p *Pod) report(x *PodReport) {
	running, waiting := float32(p.running()), float32(p.waiting.len())
	x.Values[Running], x.Values[Waiting], x.Values[Concurrency] = running, waiting, running+waiting
	x.sm, x.tensor = p.sm, p.tensor
	x.WaitingTokens, x.PrefillTokens = float32(p.waitingTokens), float32(p.prefillTokens)
	x.Values[KVUse] = float32(min(1, p.kv/p.m.KVTokens))
	if p.gaugesOnly {
		return
	}
	last := &p.lastRead
	if dt := p.now - last.at; dt > 0 {
		x.Values[GPUUtil] = float32(100 * min(1, (p.busy-last.busy)/dt))
		x.Values[SMActive] = float32(100 * min(1, (p.sm-last.sm)/dt))
		x.Values[TensorActive] = float32(100 * min(1, (p.tensor-last.tensor)/dt))
		completed := p.completed - last.completed
		x.Values[Served] = float32(completed / dt)
		x.PromptTokensPerSecond = float32((p.promptTokens - last.promptTokens) / dt)
		x.OutputTokensPerSecond = float32((p.tokens - last.tokens) / dt)
		// A server's histograms do not say which requests miss both limits: the larger number counts.
		missed := max(p.late-last.late, p.slow-last.slow, p.aborted-last.aborted)
		x.EndedPerSecond, x.MissedPerSecond = float32((p.ended-last.ended)/dt), float32(missed/dt)
		x.ArrivalsPerSecond = float32((completed + float64(p.inFlight()-last.inFlight)) / dt)
	}
	if tokens := p.tokens - last.tokens; tokens > 0 && p.now > last.at {
		dt, decodeTime, firstTokens := p.now-last.at, p.decodeTime-last.decodeTime, p.firstTokens-last.firstTokens
		if firstTokens > 0 {
			x.FirstTokenSeconds = float32((p.firstTokenWait - last.firstTokenWait) / firstTokens)
			x.FirstTokensPerSecond = float32(firstTokens / dt)
		}
		x.Batch, x.TokenSeconds = float32(decodeTime/dt), float32(decodeTime/tokens)
	}
	*last = reading{at: p.now, inFlight: p.inFlight(), counters: p.counters}
}

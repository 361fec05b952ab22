// SPDX-License-Identifier: Apache-2.0

package peers

import "math/rand/v2"

// hpaQuestion is a sequence of syncs of a HorizontalPodAutoscaler. The real one is asked for
// its results: test/kube/podautoscaler reads this JSON.
type hpaQuestion struct {
	Kind     Kind
	Target   int64 // thousandths
	Min, Max int
	Up, Down Rules
	Syncs    []hpaSync // 15 s apart
}

// hpaSync holds the values of one sync. The replicas are those of the previous sync,
// unless Spec sets them, as in the first sync.
type hpaSync struct {
	Spec   *int `json:",omitempty"`
	Status int
	Pods   []Pod
	Milli  int64
	Told   bool
}

const hpaPeriod = 15 // seconds

// generateHPA returns a random sequence and the answers of the model. The first sequences
// are the situations of TestHPACountsStartingPods.
func generateHPA(seed uint64) (q hpaQuestion, answer []int) {
	if seed < 2*uint64(len(situations)) {
		return situationQuestion(Kind(seed%2), situations[seed/2])
	}
	rng := rand.New(rand.NewPCG(seed, 0x4a9a))
	q = hpaQuestion{
		Kind: Kind(rng.IntN(3)), Target: pick(rng, 1000, 2000, 8000, 3333, 60000, 100, rng.Int64N(90000)+1),
		Min: 1 + rng.IntN(3), Max: 4 + rng.IntN(60), Up: DefaultUp(), Down: DefaultDown(),
	}
	if rng.IntN(4) > 0 {
		vary(rng, &q.Up, 1000)
	}
	if rng.IntN(4) > 0 {
		vary(rng, &q.Down, 100)
	}
	h := &HPA{Kind: q.Kind, MilliTarget: q.Target, Min: q.Min, Max: q.Max, Up: q.Up, Down: q.Down}
	replicas := 1 + rng.IntN(20)
	need := float64(replicas)
	f := podSet{rng: rng}
	for i := range 20 + rng.IntN(60) {
		s := hpaSync{}
		if i == 0 || rng.IntN(40) == 0 {
			replicas = rng.IntN(q.Max + 5)
			s.Spec = new(replicas)
		}
		need = nextNeed(rng, need, float64(q.Max))
		s.Pods = f.step(replicas, need, q.Target)
		s.Status = max(0, replicas+pick(rng, 0, 0, 0, rng.IntN(5)-2))
		s.Milli, s.Told = f.value(q.Kind, s.Pods, need, q.Target)
		replicas = h.Sync(i*hpaPeriod, &Reading{Spec: replicas, Status: s.Status, Pods: s.Pods, Milli: s.Milli, HasValue: s.Told})
		q.Syncs, answer = append(q.Syncs, s), append(answer, replicas)
	}
	return q, answer
}

// situationQuestion returns a situation as a question of one sync.
func situationQuestion(kind Kind, x situation) (hpaQuestion, []int) {
	free := Rules{Tolerance: defaultTolerance, Policies: []RatePolicy{{Value: 1000, Period: hpaPeriod}}}
	q := hpaQuestion{Kind: kind, Target: x.milliTarget, Min: 1, Max: 100, Up: free, Down: free}
	r := x.reading()
	h := &HPA{Kind: kind, MilliTarget: q.Target, Min: q.Min, Max: q.Max, Up: free, Down: free}
	q.Syncs = []hpaSync{{Spec: &r.Spec, Status: r.Status, Pods: r.Pods, Milli: r.Milli, Told: r.HasValue}}
	return q, []int{h.Sync(0, &r)}
}

func pick[T any](rng *rand.Rand, of ...T) T { return of[rng.IntN(len(of))] }

// vary sets random rules. Rate policies in percent have at most this percentage.
func vary(rng *rand.Rand, r *Rules, percent int) {
	r.Tolerance = float64(pick(rng, 0, 10, 10, 5, rng.IntN(60))) / 100
	r.Window = pick(rng, 0, 15, 60, 100, 300, 900, rng.IntN(400))
	r.Select = pick(rng, MaxChange, MaxChange, MaxChange, MinChange, MinChange, Disabled)
	r.Policies = nil
	for range 1 + rng.IntN(3) {
		p := RatePolicy{Percent: rng.IntN(2) == 0, Value: 1 + rng.IntN(10), Period: pick(rng, 15, 30, 60, 45, 300, 1+rng.IntN(200))}
		if p.Percent {
			p.Value = 1 + rng.IntN(percent)
		}
		r.Policies = append(r.Policies, p)
	}
}

// nextNeed returns the next need in replicas: mostly near the last one, sometimes any.
func nextNeed(rng *rand.Rand, need, most float64) float64 {
	switch rng.IntN(12) {
	case 0:
		return rng.Float64() * most * 1.3
	case 1:
		return 0
	case 2, 3, 4:
		return need
	}
	return max(0, need*(0.8+0.4*rng.Float64()))
}

// podSet is a set of pods that changes over time.
type podSet struct {
	rng  *rand.Rand
	pods []Pod
}

// step moves each pod to its next phase and the set towards a number of pods. It divides
// the load among the ready pods.
func (f *podSet) step(replicas int, need float64, target int64) []Pod {
	rng := f.rng
	var next []Pod
	live := 0
	for _, p := range f.pods {
		switch {
		case p.Terminating || live >= replicas && rng.IntN(4) > 0:
			if p.Terminating = !p.Terminating; !p.Terminating {
				continue
			}
		default:
			live++
		}
		if p.Pending && rng.IntN(3) == 0 {
			p.Pending = false
		} else if !p.Pending && !p.Ready {
			p.Ready = rng.IntN(2) == 0
		}
		next = append(next, p)
	}
	for ; live < replicas && rng.IntN(20) > 0; live++ {
		p := Pod{Pending: rng.IntN(3) > 0}
		p.Ready = !p.Pending && rng.IntN(2) == 0
		next = append(next, p)
	}
	ready := 0
	for _, p := range next {
		if p.Ready {
			ready++
		}
	}
	missing := pick(rng, 0, 0, 10, 50, 100) // percent of the samples
	for i := range next {
		p := &next[i]
		p.HasSample = rng.IntN(100) >= missing && (!p.Pending || rng.IntN(4) == 0)
		p.Milli = pick(rng, 0, 0, target, rng.Int64N(2*target+1))
		if p.Ready {
			p.Milli = int64(need * float64(target) / float64(ready) * pick(rng, 1, 1, 0.5+rng.Float64()))
		}
		if !p.HasSample {
			p.Milli = 0
		}
	}
	f.pods = next
	return append([]Pod(nil), next...)
}

// value returns the value of an object or external metric.
func (f *podSet) value(kind Kind, pods []Pod, need float64, target int64) (milli int64, ok bool) {
	switch {
	case kind == PodsAverage || f.rng.IntN(15) == 0:
		return 0, false
	case kind == ObjectValue:
		return mean(pods)
	}
	return int64(need * float64(target) * pick(f.rng, 1, 1, 1, 0.9+0.2*f.rng.Float64())), true
}

// kpaQuestion is a sequence of seconds of Knative's autoscaler. The real one is asked for
// its results: test/knative reads this JSON.
type kpaQuestion struct {
	Target        float64
	Window, Delay int // seconds
	Ready         int // pods at the start
	Seconds       []kpaSecond
}

// kpaSecond is one second. Concurrency is recorded if Told. Every KPATick seconds, from the
// first one on, the autoscaler decides with this number of ready pods.
type kpaSecond struct {
	Ready       int
	Concurrency float64
	Told        bool
}

// generateKPA returns a random sequence and the answers of the model; -1 is no decision.
func generateKPA(seed uint64) (q kpaQuestion, answer []int) {
	rng := rand.New(rand.NewPCG(seed, 0x6a6a))
	q = kpaQuestion{
		Target: pick(rng, 1.0, 2, 8, 16, 0.7, 0.1+50*rng.Float64()),
		Window: pick(rng, 30, 60, 120, 6+rng.IntN(200)), Delay: pick(rng, 0, 0, 60, 300, 2+rng.IntN(200)), Ready: rng.IntN(10),
	}
	k := NewKPA(q.Target, q.Window, q.Delay, 0, q.Ready)
	ready, wanted, silent := q.Ready, q.Ready, 0
	need := float64(ready)
	for now := range 200 + rng.IntN(600) {
		if rng.IntN(8) == 0 { // pods start and end one by one
			ready += min(1, max(-1, wanted-ready))
		}
		if rng.IntN(10) == 0 {
			need = nextNeed(rng, need+0.2, 40)
		}
		if rng.IntN(50) == 0 {
			silent = rng.IntN(max(10, q.Window+q.Window/4))
		}
		s := kpaSecond{Ready: ready, Told: silent == 0}
		if silent = max(0, silent-1); s.Told {
			s.Concurrency = need * q.Target * pick(rng, 1, 0.9+0.2*rng.Float64())
			k.Record(now, s.Concurrency)
		}
		q.Seconds = append(q.Seconds, s)
		if now%KPATick != 0 {
			continue
		}
		n, ok := k.Scale(now, ready)
		if wanted = n; !ok {
			n, wanted = -1, ready
		}
		answer = append(answer, n)
	}
	return q, answer
}

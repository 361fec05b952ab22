// SPDX-License-Identifier: Apache-2.0

package peers

import "math/rand/v2"

// hpaQuestion is a sequence of syncs that a HorizontalPodAutoscaler is asked;
// test/kube/podautoscaler reads the same JSON.
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

// askHPA makes up a sequence and answers it by the model. The first are the
// situations of TestHPACountsStartingPods.
func askHPA(seed uint64) (q hpaQuestion, answer []int) {
	if seed < 2*uint64(len(situations)) {
		return askSituation(Kind(seed%2), situations[seed/2])
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
	f := fleet{rng: rng}
	for i := range 20 + rng.IntN(60) {
		s := hpaSync{}
		if i == 0 || rng.IntN(40) == 0 {
			replicas = rng.IntN(q.Max + 5)
			s.Spec = new(replicas)
		}
		need = wander(rng, need, float64(q.Max))
		s.Pods = f.step(replicas, need, q.Target)
		s.Status = max(0, replicas+pick(rng, 0, 0, 0, rng.IntN(5)-2))
		s.Milli, s.Told = f.value(q.Kind, s.Pods, need, q.Target)
		replicas = h.Sync(i*hpaPeriod, &Reading{Spec: replicas, Status: s.Status, Pods: s.Pods, Milli: s.Milli, HasValue: s.Told})
		q.Syncs, answer = append(q.Syncs, s), append(answer, replicas)
	}
	return q, answer
}

func askSituation(kind Kind, x situation) (hpaQuestion, []int) {
	free := Rules{Tolerance: defaultTolerance, Policies: []RatePolicy{{Value: 1000, Period: hpaPeriod}}}
	q := hpaQuestion{Kind: kind, Target: x.milliTarget, Min: 1, Max: 100, Up: free, Down: free}
	r := x.reading()
	h := &HPA{Kind: kind, MilliTarget: q.Target, Min: q.Min, Max: q.Max, Up: free, Down: free}
	q.Syncs = []hpaSync{{Spec: &r.Spec, Status: r.Status, Pods: r.Pods, Milli: r.Milli, Told: r.HasValue}}
	return q, []int{h.Sync(0, &r)}
}

func pick[T any](rng *rand.Rand, of ...T) T { return of[rng.IntN(len(of))] }

// vary makes rules up; a policy of percents has that many at most.
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

// wander is a load, in replicas, that drifts and sometimes leaps.
func wander(rng *rand.Rand, need, most float64) float64 {
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

// fleet is pods that come, start and go.
type fleet struct {
	rng  *rand.Rand
	pods []Pod
}

// step brings the fleet nearly to a number of pods, each a step further in its
// life, and spreads the load over those that are ready.
func (f *fleet) step(replicas int, need float64, target int64) []Pod {
	rng := f.rng
	var kept []Pod
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
		kept = append(kept, p)
	}
	for ; live < replicas && rng.IntN(20) > 0; live++ {
		p := Pod{Pending: rng.IntN(3) > 0}
		p.Ready = !p.Pending && rng.IntN(2) == 0
		kept = append(kept, p)
	}
	ready := 0
	for _, p := range kept {
		if p.Ready {
			ready++
		}
	}
	silent := pick(rng, 0, 0, 10, 50, 100)
	for i := range kept {
		p := &kept[i]
		p.HasSample = rng.IntN(100) >= silent && (!p.Pending || rng.IntN(4) == 0)
		p.Milli = pick(rng, 0, 0, target, rng.Int64N(2*target+1))
		if p.Ready {
			p.Milli = int64(need * float64(target) / float64(ready) * pick(rng, 1, 1, 0.5+rng.Float64()))
		}
		if !p.HasSample {
			p.Milli = 0
		}
	}
	f.pods = kept
	return append([]Pod(nil), kept...)
}

// value returns the fleet's value of an object or external metric.
func (f *fleet) value(kind Kind, pods []Pod, need float64, target int64) (milli int64, ok bool) {
	switch {
	case kind == PodsAverage || f.rng.IntN(15) == 0:
		return 0, false
	case kind == ObjectValue:
		return mean(pods)
	}
	return int64(need * float64(target) * pick(f.rng, 1, 1, 1, 0.9+0.2*f.rng.Float64())), true
}

// kpaQuestion is a sequence of seconds that Knative's autoscaler is asked;
// test/knative reads the same JSON.
type kpaQuestion struct {
	Target        float64
	Window, Delay int // seconds
	Ready         int // when it begins
	Seconds       []kpaSecond
}

// kpaSecond is what is recorded in one second, if anything, and how many pods
// are ready when it decides, every KPATick seconds from the first on.
type kpaSecond struct {
	Ready       int
	Concurrency float64
	Told        bool
}

// askKPA makes up a sequence and answers it by the model; -1 is no decision.
func askKPA(seed uint64) (q kpaQuestion, answer []int) {
	rng := rand.New(rand.NewPCG(seed, 0x6a6a))
	q = kpaQuestion{
		Target: pick(rng, 1.0, 2, 8, 16, 0.7, 0.1+50*rng.Float64()),
		Window: pick(rng, 30, 60, 120, 6+rng.IntN(200)), Delay: pick(rng, 0, 0, 60, 300, 2+rng.IntN(200)), Ready: rng.IntN(10),
	}
	k := NewKPA(q.Target, q.Window, q.Delay, 0, q.Ready)
	ready, wanted, silent := q.Ready, q.Ready, 0
	need := float64(ready)
	for now := range 200 + rng.IntN(600) {
		if rng.IntN(8) == 0 { // pods come and go one by one
			ready += min(1, max(-1, wanted-ready))
		}
		if rng.IntN(10) == 0 {
			need = wander(rng, need+0.2, 40)
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

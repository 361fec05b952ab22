// SPDX-License-Identifier: Apache-2.0

package promise

import (
	"encoding/json"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// truth is a server whose costs are known.
var truth = Cost{Idle: 8e-3, PerPrompt: 0.05e-3, PerOutput: 0.25e-3}

// tokenSeconds is the time between tokens at a load of one replica.
func tokenSeconds(c Cost, l Load) float64 { return c.Idle / (1 - c.Busy(l)) }

func TestWorkIsLearned(t *testing.T) {
	f := func(name string, truth Cost, load func(*rand.Rand) Load, noise, within float64) {
		t.Helper()
		rng := rand.New(rand.NewPCG(1, 2))
		var w Work
		for range 480 { // two hours
			l := load(rng)
			w = w.next(l, tokenSeconds(truth, l)*math.Exp(noise*rng.NormFloat64()), 4, StepSeconds)
		}
		c, ok := w.Cost()
		if !ok {
			t.Fatalf("%s: not learned", name)
		}
		// What counts is how busy a replica is with loads like these.
		for range 100 {
			l := load(rng)
			if got, want := c.Busy(l), truth.Busy(l); math.Abs(got-want) > within {
				t.Errorf("%s: %v keeps %.3f of a replica busy, want %.3f (cost %+v)", name, l, got, want, c)
			}
		}
		if math.Abs(c.Idle/truth.Idle-1) > within {
			t.Errorf("%s: idle %v, want %v", name, c.Idle, truth.Idle)
		}
	}
	mixed := func(rng *rand.Rand) Load { return Load{Prompt: 3000 * rng.Float32(), Output: 1000 * rng.Float32()} }
	fixedMix := func(rng *rand.Rand) Load { x := rng.Float32(); return Load{Prompt: 3000 * x, Output: 600 * x} }
	f("mixed", truth, mixed, 0.03, 0.02)
	f("one mix, so that prompt and output cannot be told apart", truth, fixedMix, 0.03, 0.05)
	f("a small model", Cost{Idle: 2e-3, PerPrompt: 0.01e-3, PerOutput: 0.05e-3}, func(rng *rand.Rand) Load { return Load{Prompt: 15000 * rng.Float32(), Output: 5000 * rng.Float32()} }, 0.03, 0.03)
	f("a large model", Cost{Idle: 30e-3, PerPrompt: 0.11e-3, PerOutput: 0.23e-3}, mixed, 0.03, 0.05)
	held := func(rng *rand.Rand) Load { // by requests of 500 to 4000 tokens in a cache of 500,000
		l := Load{Prompt: 10_000 * rng.Float32(), Output: 3000 * rng.Float32()}
		l.Cache = l.Output * (500 + 3500*rng.Float32()) / 500_000
		return l
	}
	f("a cache that takes long to read", Cost{Idle: 5e-3, PerPrompt: 0.02e-3, PerOutput: 0.01e-3, PerCache: 19e-3}, held, 0.03, 0.03)
	f("a cache that is read for nothing", truth, held, 0.03, 0.03)
	f("free prompts", Cost{Idle: 8e-3, PerPrompt: 0, PerOutput: 0.25e-3}, mixed, 0.03, 0.03)
}

// Requests that hold the whole cache leave no room for others, however little time they take: such
// replicas count as full. More of them hold less each, as each is less busy.
func TestFullCachesAreFullReplicas(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	for range 1000 {
		c := truth
		c.PerCache, c.Knee = 0.02*rng.Float64(), 0.1+0.7*rng.Float64()
		replicas, share := 1+20*rng.Float64(), 0.1+0.8*rng.Float64()
		cache := replicas * (1 - share) / c.Idle // each is read once per iteration
		output := (replicas*share - c.PerCache*cache) / c.PerOutput
		if output < 0 {
			continue // reading the cache alone takes more
		}
		l := Load{Output: float32(output), Cache: float32(cache)}
		if got, want := c.Busy(l), replicas*max(share, c.Knee); math.Abs(got/want-1) > 1e-3 {
			t.Fatalf("%v busy replicas of %v whose caches are full, want %v (cost %+v)", got, replicas, want, c)
		}
		known := c.Busy(l)
		l.Cache, c.CachePerOutput = 0, float64(l.Cache/max(l.Output, 1))
		if got := c.Busy(l); l.Output > 1 && math.Abs(got/known-1) > 1e-3 {
			t.Fatalf("%v busy replicas with the usual caches, want %v", got, known)
		}
	}
}

// While requests wait, the load is up to twice that of those that run.
func TestAQueueIsLoad(t *testing.T) {
	s := drive(State{}, Load{Prompt: 4000, Output: 2000}, 5, 900)
	r := Reading{Serving: 5, Read: 5, Prompt: 4000, Output: 2000, TokenSeconds: 0.02, First: 10, Ended: 10, Held: 5, Wanted: 5, Most: 50}
	demand := func(queued float64) float64 {
		s := s
		r.Queued = queued
		for range 60 {
			s = s.Next(r, 1, terms)
		}
		d, _ := s.Demand(terms, 120)
		return d.Busy
	}
	none, half, twice, long := demand(0), demand(0.5), demand(1), demand(100)
	for range 60 {
		s = s.Next(r, 1, terms)
	}
	if l, _ := s.Last(); l.Prompt < 3999 || l.Output < 3999 {
		t.Errorf("the record has %+v", l)
	}
	if math.Abs(half/none-1.4) > 0.1 || math.Abs(twice/none-1.8) > 0.2 || long != twice {
		t.Errorf("busy replicas: %v, with half as many waiting %v, with as many %v, with a hundred times %v", none, half, twice, long)
	}
}

// Servers that begin to tell what their caches hold, as after an upgrade, are not busier than before: what tokens took
// had the caches. From then on, what they tell counts; while they do not, it is the usual.
func TestCachesThatAreToldLater(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 8))
	c := Cost{Idle: 8e-3, PerPrompt: 0.03e-3, PerOutput: 0.05e-3, PerCache: 16e-3}
	serve := func(s State, tokens, held float64, tells bool) State {
		for range StepSeconds {
			l := Load{Prompt: float32(tokens), Output: float32(tokens)}
			token := c.Idle
			for range 100 { // what is held is read as often as there are tokens
				l.Cache = float32(held / token)
				token += (c.Idle/max(0.05, 1-c.Busy(l)) - token) / 4
			}
			r := Reading{Serving: 1, Read: 1, Prompt: tokens, Output: tokens, TokenSeconds: token, First: 5, Ended: 5, Wanted: 1, Most: 50}
			if tells {
				r.Held = held
			}
			s = s.Next(r, 1, terms)
		}
		return s
	}
	var s State
	for range 960 {
		tokens := 500 + 1500*rng.Float64()
		s = serve(s, tokens, tokens/10_000, false)
	}
	busy := func() float64 { d, _ := s.Demand(terms, 120); return d.Busy }
	s = serve(s, 1500, 0.15, false)
	before := busy()
	for range 4 {
		if s = serve(s, 1500, 0.15, true); math.Abs(busy()/before-1) > 0.5 {
			t.Errorf("%v busy replicas with the caches, %v before", busy(), before)
		}
	}
	told, _ := s.Last()
	s = serve(s, 1500, 0.15, false)
	if l, _ := s.Last(); told.Cache == 0 || math.Abs(float64(l.Cache/told.Cache-1)) > 0.3 {
		t.Errorf("full caches read per second: %v while it is not told, %v before", l.Cache, told.Cache)
	}
}

// The caches hold what they hold, whatever a limit allows: with a stricter one, and the same plan, no fewer replicas.
func TestAStricterLimitNeverGetsFewerCaches(t *testing.T) {
	rng := rand.New(rand.NewPCG(9, 10))
	var s State
	r := Reading{Serving: 5, Read: 5, First: 10, Ended: 10, Wanted: 5, Most: 50}
	for i := range 15_000 { // reading the caches takes no time
		x := 0.2 + 0.8*rng.Float64()
		r.Prompt, r.Output, r.Held = 2000*x, 1000*x, 4.9*rng.Float64()
		if i > 14_900 {
			r.Prompt, r.Output, r.Held = 1000, 500, 4.9
		}
		r.TokenSeconds = tokenSeconds(truth, Load{Prompt: float32(r.Prompt / 5), Output: float32(r.Output / 5)})
		s = s.Next(r, 1, terms)
	}
	s.Plan = Plan{Target: 0.8, Average: 60, Window: 600, AtOnce: 0.8}
	for limit := 0.03; limit > 0.009; limit -= 0.001 {
		strict := terms
		strict.Token = limit
		if d, _ := s.Demand(strict, 120); d.Replicas < 4.9 {
			t.Errorf("%v replicas at a limit of %v s, whose caches hold 4.9", d.Replicas, limit)
		}
	}
}

// A constant load does not tell what a token costs: the usual costs count.
func TestWorkOfAConstantLoad(t *testing.T) {
	var w Work
	if _, ok := w.Cost(); ok {
		t.Error("a cost without a reading")
	}
	l := Load{Prompt: 1000, Output: 300}
	for range 20 {
		w = w.next(l, tokenSeconds(truth, l), 1, StepSeconds)
	}
	c, ok := w.Cost()
	if got, want := c.Busy(l), truth.Busy(l); !ok || math.Abs(got-want) > 0.06 {
		t.Errorf("busy %v, want about %v (%+v)", got, want, c)
	}
}

// Prompts that stop a replica for seconds do not change what tokens cost.
func TestOutliersAndOverloadAreNotLearned(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	var w Work
	for i := range 960 {
		l := Load{Prompt: 3000 * rng.Float32(), Output: 1000 * rng.Float32()}
		took := tokenSeconds(truth, l)
		switch {
		case i > 100 && i%10 == 0:
			l, took = Load{Prompt: 1000, Output: 20}, 2*truth.Idle
		case i > 100 && i%10 == 1:
			l, took = Load{Prompt: 9000, Output: 200}, 5*truth.Idle
		}
		w = w.next(l, took, 4, StepSeconds)
	}
	c, _ := w.Cost()
	if l := (Load{Prompt: 2000, Output: 600}); math.Abs(c.Busy(l)-truth.Busy(l)) > 0.04 {
		t.Errorf("busy %v, want %v (%+v)", c.Busy(l), truth.Busy(l), c)
	}
}

func TestClasses(t *testing.T) {
	for i := range classes {
		if got := classOf(float32(middle(i))); got != i {
			t.Errorf("the middle %v of class %d is in class %d", middle(i), i, got)
		}
	}
	for _, x := range []float32{0, 1e-9, -1, float32(math.Inf(-1))} {
		if got := classOf(x); got != 0 && x >= 0 {
			t.Errorf("class of %v = %d", x, got)
		}
	}
	if got := classOf(float32(math.Inf(1))); got != classes-1 {
		t.Errorf("class of infinity = %d", got)
	}
}

// randomCurve has random counts.
func randomCurve(rng *rand.Rand) (c Curve) {
	for i := range c.Ended {
		if rng.IntN(3) > 0 {
			c.Ended[i] = float32(rng.IntN(10_000))
			c.Missed[i] = c.Ended[i] * rng.Float32()
		}
	}
	return c
}

func TestSharesNeverFall(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	for range 1000 {
		c := randomCurve(rng)
		s := c.Shares(0.05 + 0.8*rng.Float64())
		if !slices.IsSorted(s[:]) || s[0] < 0 || s[classes-1] > 1 {
			t.Fatalf("shares %v of %+v", s, c)
		}
	}
}

// The busy share at which the assumed curve misses a share of the requests is its inverse.
func TestFullest(t *testing.T) {
	for _, share := range []float64{1e-6, 0.001, 0.01, 0.3, 0.5} {
		if got := assumedShare(fullest(share, 0.4), 0.4); math.Abs(got/share-1) > 1e-9 {
			t.Errorf("%g of the requests: %g", share, got)
		}
	}
	if got := fullest(0.9, 0.4); got != 0.4 {
		t.Errorf("nine tenths: %g, want at most the knee", got)
	}
}

// What was counted outweighs what is assumed.
func TestSharesFollowTheCounts(t *testing.T) {
	var c Curve
	for i := range classes {
		c.Ended[i] = 1e6
		if middle(i) > 0.7 {
			c.Missed[i] = 5e5
		}
	}
	s := c.Shares(0.3)
	if below, above := s[classOf(0.6)], s[classOf(0.8)]; below > 0.001 || math.Abs(float64(above)-0.5) > 0.01 {
		t.Errorf("shares below and above: %v, %v", below, above)
	}
}

// randomReplay is a day of steps and random knowledge.
func randomReplay(rng *rand.Rand) Replay {
	c := randomCurve(rng)
	knee := 0.1 + 0.7*rng.Float64()
	r := Replay{
		Seconds: 60, Cost: truth, Shares: c.Shares(knee), Startup: 600 * rng.Float64(), Min: 1, Max: 1 + rng.IntN(60), Price: 3 * rng.Float64(),
		Loads: make([]Load, 300),
	}
	r.Cost.Knee = knee
	x := 2000.0
	for i := range r.Loads {
		if x *= math.Exp(0.2 * rng.NormFloat64()); rng.IntN(50) == 0 {
			x *= 5
		}
		x = min(x, 1e6)
		r.Loads[i] = Load{Prompt: float32(x), Output: float32(x / 4)}
	}
	return r
}

// A stricter objective never gets fewer replicas.
func TestAStricterObjectiveGetsNoFewerReplicas(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 8))
	for range 60 {
		r := randomReplay(rng)
		replicas := 0.0
		for _, allowed := range []float64{0.5, 0.2, 0.1, 0.05, 0.02, 0.01, 0.005, 0.001, 0.0001} {
			p := r.Choose(allowed)
			if p.Replicas < replicas-1e-9 {
				t.Fatalf("with %g allowed: %+v, and %v replicas with more allowed", allowed, p, replicas)
			}
			replicas = p.Replicas
			if p.Looser > p.Replicas+1e-9 || p.Stricter < p.Replicas-1e-9 || p.Short != (p.Share > allowed) ||
				p.Needs != 0 && (!p.Short || p.Needs < p.Replicas-1e-9) {
				t.Fatalf("with %g allowed: %+v", allowed, p)
			}
		}
	}
}

// A stricter limit makes more requests miss at each load: it never gets fewer replicas, as
// long as they can keep the objective.
func TestAStricterLimitGetsNoFewerReplicas(t *testing.T) {
	rng := rand.New(rand.NewPCG(9, 10))
	for range 60 {
		r := randomReplay(rng)
		r.Price = 1e9
		stricter := r
		for i := range stricter.Shares {
			stricter.Shares[i] += (1 - stricter.Shares[i]) * 0.3 * rng.Float32()
		}
		slices.Sort(stricter.Shares[:])
		for _, allowed := range []float64{0.3, 0.1, 0.03} {
			loose, strict := r.Choose(allowed), stricter.Choose(allowed)
			if strict.Share <= allowed && strict.Replicas < loose.Replicas-1e-9 {
				t.Fatalf("stricter %+v, looser %+v", strict, loose)
			}
		}
	}
}

// Nothing is known yet of what a workload's load does: its objective counts all the same.
func TestAStricterObjectiveGetsMoreFromTheFirstMinute(t *testing.T) {
	bounds := Bounds{1, 50, 120}
	f := func(seconds float64, learns bool) {
		t.Helper()
		s, before, first := drive(State{}, Load{Prompt: 4000, Output: 2000}, 5, seconds), 0.0, 0.0
		for _, objective := range []float64{0.9, 0.95, 0.98, 0.99, 0.999} {
			if learns {
				s = s.Learn(termsOf(objective), bounds)
			}
			d, ok := s.Demand(termsOf(objective), 120)
			if !ok || (s.Plan.Target > 0) != learns || d.Replicas < before || !learns && d.Replicas == before {
				t.Errorf("after %g s, %g: %+v of %+v, and %v replicas for a looser objective", seconds, objective, d, s.Plan, before)
			}
			if before = d.Replicas; first == 0 {
				first = before
			}
		}
		if !(before > 1.1*first) {
			t.Errorf("after %g s: %v replicas for the strictest objective, %v for the loosest", seconds, before, first)
		}
	}
	f(60, false)
	f(900, true)
}

// A load that nobody knows may rise before a replica starts, and come back within the hour.
func TestTheFirstPlanLeavesRoom(t *testing.T) {
	terms := termsOf(0.99)
	s := drive(State{}, Load{Prompt: 4000, Output: 2000}, 5, 900)
	d, _ := s.Demand(terms, 120)
	cost, _ := s.Work.Cost()
	if share := assumedShare(1.4*d.Busy/d.Replicas, s.knee(&cost, terms.Limits)); share > terms.allowed() {
		t.Errorf("a rise to 1.4 times the load misses %.2f %% of the requests", 100*share)
	}
	later, _ := drive(s, Load{Prompt: 400, Output: 200}, 5, 3000).Demand(terms, 120)
	if later.Replicas < 0.95*d.Replicas {
		t.Errorf("%.1f replicas 50 minutes after a load of %.1f", later.Replicas, d.Replicas)
	}
}

// While the record is short, a rise of a minute counts for ten: replicas do not come and go with each.
func TestRisesComeAgain(t *testing.T) {
	terms := termsOf(0.99)
	s := drive(State{}, Load{Prompt: 4000, Output: 2000}, 5, 900)
	s.Plan = Plan{Target: 0.8, Average: 900, Window: 60, AtOnce: 0.3}
	rise, _ := drive(s, Load{Prompt: 12000, Output: 6000}, 15, 60).Demand(terms, 120)
	after, _ := drive(drive(s, Load{Prompt: 12000, Output: 6000}, 15, 60), Load{Prompt: 4000, Output: 2000}, 15, 300).Demand(terms, 120)
	if later, _ := drive(drive(s, Load{Prompt: 12000, Output: 6000}, 15, 60), Load{Prompt: 4000, Output: 2000}, 15, 900).Demand(terms, 120); after.Replicas < 0.9*rise.Replicas || later.Replicas > 0.5*rise.Replicas {
		t.Errorf("%.1f replicas at a rise, %.1f five minutes later, %.1f after fifteen", rise.Replicas, after.Replicas, later.Replicas)
	}
}

// What the record begins with is no jump: who knows what served before?
func TestARecordBeginsWithoutAJump(t *testing.T) {
	r := Replay{Seconds: StepSeconds, Cost: Cost{Idle: 0.008, PerOutput: 1e-3, Knee: 0.7}, First: 0.45, Startup: 420, Min: 1, Max: 50, Price: 5}
	for i := range r.Shares {
		r.Shares[i] = float32(assumedShare(middle(i), 0.7))
	}
	for i := range 80 { // twenty minutes, of which the first one rises from nothing
		r.Loads = append(r.Loads, Load{Output: 4000 * float32(min(1, float64(i)/4))})
	}
	if p := r.Choose(0.003); p.Share > 0.003 || p.Replicas > 4/0.2 {
		t.Errorf("%+v: want few misses with the replicas of a steady load", p)
	}
}

// A few hundred requests replace the assumed curve for the load of the last minute, if they are worse.
func TestMeasuredMissesCountAtOnce(t *testing.T) {
	s := drive(State{}, Load{Prompt: 4000, Output: 2000}, 5, 900)
	worse := s
	for i := range worse.Curve.Ended {
		worse.Curve.Ended[i], worse.Curve.Missed[i] = 1000, float32(10*max(0, i-10))
	}
	terms, bounds := termsOf(0.99), Bounds{1, 50, 120}
	s, worse = s.Learn(terms, bounds), worse.Learn(terms, bounds)
	assumed := s.atOnce(0.45, true)
	if x := worse.atOnce(0.45, true); !(x < 0.7*assumed) || x < worse.atOnce(0.01, true) {
		t.Errorf("the last minute may fill replicas to %v, where few requests missed to %v", x, assumed)
	}
	if x := worse.atOnce(0.45, false); x != 0.45 {
		t.Errorf("with a long record, to %v: want the higher one", x)
	}
}

// What is missed too often is avoided at a price that grows as much, and no more.
func TestMissesThatWereMeasuredMakeAMissDearer(t *testing.T) {
	f := func(share, factor, worth float64) {
		t.Helper()
		s := State{Ended: 1e6, Aimed: 3500, Missed: Misses{Planned: share * 3500}}
		r, allowed := s.replay(&Cost{Idle: 0.01}, terms, Bounds{1, 50, 120})
		if got := allowed / (s.Aim(terms) * margin); math.Abs(got/factor-1) > 1e-9 {
			t.Errorf("%g of the misses that are wanted: a plan may have %g times as many, want %g", share, got, factor)
		}
		if got := r.Price / allowed / (price / 0.01); math.Abs(got/worth-1) > 1e-9 {
			t.Errorf("%g of the misses that are wanted: one is worth %g times as much, want %g", share, got, worth)
		}
	}
	f(1, 1, 1)
	f(2, 0.25, 2)
	f(100, leastCorrection, mostPrice)
	f(0.1, mostCorrection, leastPrice)
}

// A short record and a limit next to what an idle server takes leave one plan at least.
func TestThereIsAlwaysAPlan(t *testing.T) {
	r := Replay{Seconds: 15, Cost: Cost{Idle: truth.Idle, PerPrompt: truth.PerPrompt, PerOutput: truth.PerOutput, Knee: leastKnee}, Startup: 30, Min: 1, Max: 8, Price: 1, Loads: make([]Load, leastLearned)}
	if p := r.Choose(0.01); p.Target <= 0 {
		t.Errorf("plan %+v", p)
	}
}

// A replay is what happens: one start-up after the load rises, its replicas serve.
func TestPlay(t *testing.T) {
	r := Replay{
		Seconds: 15, Cost: Cost{PerOutput: 1, Knee: 1}, Startup: 120, Min: 1, Max: 10,
		Loads: make([]Load, 90), // ticks of 45 s; a start takes three
	}
	for i := range r.Shares {
		if middle(i) > 0.9 {
			r.Shares[i] = 1
		}
	}
	for i := range r.Loads {
		r.Loads[i].Output = 0.5
		if i >= 45 {
			r.Loads[i].Output = 4
		}
	}
	f := r.fluid()
	level := f.level(StepSeconds)
	share, replicas := f.share(runs(nil, lowest(level, f.in(r.Startup))), 1.25), f.replicas(runs(nil, level), 1.25)
	// The load misses while the replicas that are asked for in its first tick start: that
	// tick, and the next one. Before and after, replicas are at their target.
	weighed := func(from, to int, value float64) float64 { return value * (f.weight[to] - f.weight[from]) }
	if want := weighed(15, 17, 4) / f.load; math.Abs(share-want) > 1e-6 {
		t.Errorf("share %v, want %v", share, want)
	}
	if want := (weighed(0, 15, 1) + weighed(15, 30, 5)) / f.weight[30]; math.Abs(replicas-want) > 1e-6 {
		t.Errorf("%v replicas, want %v", replicas, want)
	}
}

func TestSlide(t *testing.T) {
	rng := rand.New(rand.NewPCG(11, 12))
	for range 200 {
		x := make([]float32, rng.IntN(40))
		for i := range x {
			x[i] = float32(rng.IntN(10))
		}
		n := 1 + rng.IntN(12)
		high, low := highest(x, n), lowest(x, n)
		for i := range x {
			w := x[max(0, i-n+1) : i+1]
			if high[i] != slices.Max(w) || low[i] != slices.Min(w) {
				t.Fatalf("%v over %d at %d: %v and %v", x, n, i, high[i], low[i])
			}
		}
	}
}

// terms are those of most tests: 99 % over four weeks.
var terms = termsOf(0.99)

func termsOf(objective float64) Terms {
	return Terms{Limits: Limits{Token: 0.015}, Objective: objective, Over: 28 * 24 * 3600, Use: 0.8}
}

// drive feeds the state a load of some replicas for a while.
func drive(s State, l Load, replicas, seconds float64) State {
	each := Load{Prompt: l.Prompt / float32(replicas), Output: l.Output / float32(replicas)}
	busy := truth.Busy(each)
	requests := float64(l.Output) / 200
	missed := requests / (1 + math.Pow(busy/0.45, -16))
	for range int(seconds) {
		s = s.Next(Reading{
			Serving: replicas, Read: replicas, Prompt: float64(l.Prompt), Output: float64(l.Output), TokenSeconds: truth.Idle / max(0.1, 1-busy), Wanted: replicas, Most: 50,
			Arrived: requests, First: requests, Ended: requests, Missed: missed,
		}, 1, terms)
	}
	return s
}

func TestAPlanIsLearnedAndKept(t *testing.T) {
	var s State
	if _, ok := s.Demand(terms, 120); ok {
		t.Error("demand without a reading")
	}
	for i := range 40 {
		x := 1 + 0.8*math.Sin(float64(i)/3)
		s = drive(s, Load{Prompt: float32(4000 * x), Output: float32(2000 * x)}, 5, 120)
	}
	before := s
	learned := s.Learn(terms, Bounds{Min: 1, Max: 50, Startup: 120})
	p := learned.Plan
	if p.Target <= 0 || p.Share > 0.01 || p.Replicas < 1 {
		t.Fatalf("plan %+v", p)
	}
	if !slices.Equal(before.Loads, s.Loads) || s.Plan != (Plan{}) {
		t.Error("Learn changed the state that it was given")
	}
	d, ok := learned.Demand(terms, 120)
	cost, _ := learned.Work.Cost()
	if !ok || d.Replicas < max(d.Highest, d.Reserve)/d.Target-1e-9 || d.Replicas*learned.knee(&cost, terms.Limits) < d.Busy {
		t.Errorf("demand %+v", d)
	}
	// A load that jumps counts within a minute, and one that falls after the window.
	jumped := drive(learned, Load{Prompt: 20000, Output: 10000}, 5, 60)
	if up, _ := jumped.Demand(terms, 120); up.Replicas < 1.5*d.Replicas {
		t.Errorf("after a jump: %+v, before it %+v", up, d)
	}
	fallen, _ := drive(learned, Load{Prompt: 40, Output: 20}, 5, 20).Demand(terms, 120)
	if fallen.Replicas < d.Replicas*0.9 {
		t.Errorf("after a fall: %+v", fallen)
	}
	later, _ := drive(learned, Load{Prompt: 40, Output: 20}, 5, p.Window+60).Demand(terms, 120)
	if later.Replicas >= d.Replicas && p.Reserve < d.Highest {
		t.Errorf("after the window: %+v", later)
	}
}

// A plan's highest load is that of a fluid: means within a window, of which now is the last.
func TestHighestIsTheFluids(t *testing.T) {
	rng := rand.New(rand.NewPCG(13, 14))
	cost := Cost{PerOutput: 1}
	for range 300 {
		var s State
		var busy []float64
		for range 1 + rng.IntN(200) {
			x := 10 * rng.Float32()
			s.Loads, busy = append(s.Loads, Load{Output: x}), append(busy, float64(x))
		}
		average, window, now := 1+rng.IntN(60), rng.IntN(200), 10*rng.Float64()
		busy = append(busy, now)
		want := 0.0
		for end := max(1, len(busy)-window); end <= len(busy); end++ {
			sum, n := 0.0, min(average, end)
			if n < average && end < len(busy) {
				continue // the load before is not known
			}
			for _, x := range busy[end-n : end] {
				sum += x
			}
			want = max(want, sum/float64(n))
		}
		if got := s.highest(&cost, now, average, window); math.Abs(got-want) > 1e-4 {
			t.Fatalf("means of %d within %d of %d steps: %v, want %v", average, window, len(busy), got, want)
		}
	}
}

// Each miss has one cause.
func TestMissesAreAttributed(t *testing.T) {
	planned := drive(State{}, Load{Prompt: 4000, Output: 2000}, 5, 3600)
	planned.Plan = Plan{Target: 0.3, Average: 60, Window: 600}
	f := func(want func(*Misses) *float64, wanted, most, missed float64) {
		t.Helper()
		s := planned
		for range 300 {
			s = s.Next(Reading{Serving: 5, Read: 5, Prompt: 4000, Output: 2000, TokenSeconds: 0.01, Arrived: 10, First: 10, Ended: 10, Missed: missed, Wanted: wanted, Most: most}, 1, terms)
		}
		if got := *want(&s.Missed); math.Abs(got/s.Missed.Sum()-1) > 0.1 || math.Abs(s.Missed.Sum()/(290*missed)-1) > 0.1 {
			t.Errorf("wanted %g of at most %g: %+v", wanted, most, s.Missed)
		}
		if got := s.Missed.of(s.Ended); math.Abs(got.Sum()*10/missed-1) > 0.1 {
			t.Errorf("shares %+v, want %g in all", got, missed/10)
		}
	}
	f(func(m *Misses) *float64 { return &m.Starting }, 7, 50, 5)
	f(func(m *Misses) *float64 { return &m.Bounded }, 7, 5, 5)
	f(func(m *Misses) *float64 { return &m.Server }, 5, 50, 1)
	for i := range planned.Curve.Missed { // a tenth is usual
		planned.Curve.Missed[i] = planned.Curve.Ended[i] / 10
	}
	f(func(m *Misses) *float64 { return &m.Planned }, 5, 50, 1)
}

// The states of two futures share no array.
func TestStatesShareNothing(t *testing.T) {
	s := drive(State{}, Load{Prompt: 4000, Output: 2000}, 5, 600)
	a, b := drive(s, Load{Prompt: 1, Output: 1}, 5, 60), drive(s, Load{Prompt: 9, Output: 9}, 5, 60)
	if slices.Equal(a.Loads, b.Loads) || len(a.Loads) != len(b.Loads) || len(s.Loads) >= len(a.Loads) {
		t.Error("one state's steps are another's")
	}
}

func totals(c *Curve) (ended, missed float64) {
	for i := range c.Ended {
		ended += float64(c.Ended[i])
		missed += float64(c.Missed[i])
	}
	return ended, missed
}

func TestStateSurvivesJSON(t *testing.T) {
	s := drive(State{}, Load{Prompt: 4000, Output: 2000}, 5, 3600).Learn(terms, Bounds{1, 50, 120})
	b, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	if len(b) > 1200 {
		t.Errorf("%d bytes: %s", len(b), b)
	}
	var got State
	if err := json.Unmarshal(b, &got); err != nil {
		t.Fatal(err)
	}
	if got.Work != s.Work || got.Plan != s.Plan || got.Sizes != s.Sizes {
		t.Errorf("got %+v, want %+v", got, s)
	}
	ended, missed := totals(&s.Curve)
	e, m := totals(&got.Curve)
	if math.Abs(e/ended-1) > 0.01 || math.Abs(m-missed) > classes {
		t.Errorf("%v requests, %v missed; want %v, %v", e, m, ended, missed)
	}
}

// FuzzState feeds what a status may hold, which users write, and what pods may report.
func FuzzState(f *testing.F) {
	s, _ := json.Marshal(drive(State{}, Load{Prompt: 4000, Output: 2000}, 5, 3600))
	f.Add(s, 5.0, 4000.0, 2000.0, 0.01, 10.0, 3.0, 2.5, 0.5)
	f.Add([]byte(`{"curve":{"first":47,"ended":[9],"missed":[10]},"plan":{"target":1e-300,"window":1e300}}`), 1.0, 1e300, -1.0, 1e-300, 1e9, 1e9, 1e9, 1e9)
	f.Add([]byte(`{"ended":-5,"aimed":-1e300,"pace":{"ended":-864000,"missed":1e300},"plan":{"target":0.5,"atOnce":-1}}`), 5.0, 4000.0, 2000.0, 0.01, 10.0, 3.0, 5.0, 0.0)
	f.Add([]byte(`{"curve":{"first":-1,"ended":[],"missed":[]},"work":{"weight":1e308,"y":-1}}`), math.MaxFloat64, 0.0, 0.0, 0.0, 0.0, 0.0, math.Inf(1), -1.0)
	f.Fuzz(func(t *testing.T, b []byte, serving, prompt, output, token, requests, missed, held, queued float64) {
		var s State
		if json.Unmarshal(b, &s) != nil {
			return
		}
		for range 60 {
			s = s.Next(Reading{time.Time{}, serving, 1, prompt, output, token, requests, requests, requests, missed, held, queued, prompt, output}, 5, terms)
		}
		s = s.Learn(terms, Bounds{0, 100, 120})
		if d, ok := s.Demand(terms, 120); ok && (math.IsNaN(d.Replicas) || d.Replicas < 0) {
			t.Fatalf("demand %+v of %+v", d, s)
		}
		if _, err := json.Marshal(s); err != nil {
			t.Fatalf("the state of %s: %v", b, err)
		}
		if shares := s.Curve.Shares(0.4); !slices.IsSorted(shares[:]) {
			t.Fatalf("shares %v", shares)
		}
	})
}

func BenchmarkLearn(b *testing.B) {
	rng := rand.New(rand.NewPCG(1, 2))
	s := drive(State{}, Load{Prompt: 4000, Output: 2000}, 5, 3600)
	for len(s.Loads) < keptSteps {
		x := rng.Float32()
		s.Loads = append(s.Loads, Load{Prompt: 9000 * x, Output: 3000 * x})
	}
	for b.Loop() {
		s.Learn(terms, Bounds{1, 50, 120})
	}
}

func BenchmarkNextAndDemand(b *testing.B) {
	s := drive(State{}, Load{Prompt: 4000, Output: 2000}, 5, 26*3600)
	s.Plan = Plan{Target: 0.3, Window: 7200}
	r := Reading{Serving: 5, Read: 5, Prompt: 4000, Output: 2000, TokenSeconds: 0.01, Arrived: 10, First: 10, Ended: 10, Missed: 0.1, Held: 2, Wanted: 5, Most: 9}
	for b.Loop() {
		next := s.Next(r, 1, terms)
		next.Demand(terms, 120)
	}
}

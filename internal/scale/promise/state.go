// SPDX-License-Identifier: Apache-2.0

package promise

import (
	"math"
	"strings"
	"time"

	"github.com/gpupilot/gpupilot/internal/scale/words"
)

// Reading is what a workload's replicas did together over some seconds. Rates are per
// second, over the replicas that were read.
type Reading struct {
	At             time.Time // the end of these seconds; zero: unknown
	Serving, Read  float64   // replicas that serve, and those of them that were read
	Prompt, Output float64   // tokens/s that were processed
	TokenSeconds   float64   // mean seconds between tokens; 0: none was generated
	Arrived        float64   // requests/s; 0: none, or not known
	First, Ended   float64   // requests/s that got their first token, and that ended
	Missed         float64   // requests/s that ended and missed a limit
	Held           float64   // full KV caches that requests hold; 0: none, or not known
	Queued         float64   // requests that wait, as a multiple of those that run
	Wanted, Most   float64   // replicas that the plan asked for, and that the bounds allow
}

// StepSeconds is the length of a step, over which readings are averaged. With a record in
// minutes, 0.2 points more were missed in two of three cells with long answers. firstStepSeconds
// is that of the first step of a new workload: with one replica, it has the leastWork that the
// fit needs.
const StepSeconds, firstStepSeconds = 15, 5

// Where a comment names a trial, docs/design/0014-promise.md has it. A cell is a replay of 12
// hours of ServeGen's loads on llama-8b with starts of 2 or 7 minutes. GPU-hours are ÷ those of
// the cheapest oracle. Of the other constants, no trial is recorded: they are judgements.
const (
	// levelSeconds is the time constant of the load that counts at once.
	levelSeconds = 8
	// sizeSeconds is that of the mean size of requests, and leastSized how many requests
	// it needs.
	sizeSeconds, leastSized = 600, 8
	// longestStay bounds the time that a request stays, in seconds. Demand that ignored that
	// time took 8 % more GPU-hours where answers are long.
	longestStay = 300
	// mostQueued is by how much requests that wait raise the load at most, as a multiple of what
	// those that run ask for: a queue says that it is more, and not for how long. Without it,
	// 16 instead of 20 of 24 cells were kept on three engines.
	mostQueued = 1
	// lag is how many steps back, a minute in all, a request may have met busier replicas
	// than those of the step in which it ended.
	lag = 4
	// backlogFrom is the share of missed requests from which there may be a backlog, and ease
	// how much of the busy share that caused it counts one step later: half after 9 minutes.
	backlogFrom, ease = 0.05, 0.98
	// leastLearned is how many steps Learn needs: ten minutes.
	leastLearned = 600 / StepSeconds
	// firstShare is the share of the allowed misses that the assumed curve may have before a plan is chosen. Without
	// history, 99 % was kept in 18 of 24 cells, with 0.45 and with 0.2 in 17, and with three quarters of the knee for
	// any objective in 16. That busy share is divided by 1 and a rise that nobody has seen yet; firstAverage is the
	// average then, in seconds, and mostFirstWindow the window. Both are those of a start-up of longStart seconds or
	// more: with a shorter one, a load rises less meanwhile, and a replica that was removed is soon back. The window is
	// startsWindow start-ups at least. Of 40 replays of two hours without history, before there was rises, a rise of
	// 1.4 and an hour kept 99 % in 28, a rise of 2 in 30 for 5 % more GPU-hours, and a rise of 1 and six start-ups in
	// 24.
	firstShare, unseenRise, firstAverage, mostFirstWindow, longStart, startsWindow = 0.3, 0.4, 30, 3600, 120, 6
	// atOnceShare is the share of the allowed misses that the load of the last minute may cause, whatever the average
	// of the plan: a rise that the record lacks. With 0.35, the hour lunch of gpupilot demo missed up to 1.07 %; with
	// 0.1, it took 6 % more GPU-hours. In 48 cells, 0.2 took 1.14 × and 0.35 took 1.15 ×.
	atOnceShare = 0.2
	// mostRises and startsRises bound for how long the load of a minute counts at once while the record is short, in
	// seconds and in start-ups. Without it, a load of few long prompts turned 71 times an hour.
	mostRises, startsRises = 600, 5
	// mostBusy is the highest knee: queues grow long where replicas are busier.
	mostBusy, leastKnee = 0.85, 0.05
	// margin is the share of the misses aimed at that a plan may have in its replay, which knows neither the requests
	// nor the replicas one by one. It is multiplied by a factor within leastCorrection and mostCorrection that follows
	// the misses that were measured. With 0.75 and a use of 0.8, six days of three loads use 0.77 to 1.11 of what is
	// allowed; 0.35, and feedback towards 0.45, used 0.54 to 0.90 for up to 10 % more GPU-hours.
	margin                          = 0.75
	leastCorrection, mostCorrection = 0.1, 2.0
	// price is that of a replay, times a factor within leastPrice and mostPrice that follows the misses that were measured,
	// for as many misses as the objective allows. With 8, and planned 0.8, six days used up to 132 instead of
	// 102 % of it, for as many GPU-hours.
	price, leastPrice, mostPrice = 5, 0.3, 4
	// mostOnce is the share of the budget that the load may cost by one jump, without a change of the plan, and
	// mostJumps bounds the misses while replicas started, as a share of those aimed at, that count as the plan's: a
	// jump that it did not see is paid from the budget. Both follow what is left of it. The same whatever is left: two
	// of four replays of six days missed more than is allowed.
	mostOnce, mostJumps = 0.06, 0.5
	// confident is for how long, in seconds of the traffic of the last minutes, the objective
	// counts as kept with a margin before misses were measured.
	confident = 3600
)

// State is what is learned about a workload. The zero State knows nothing. Its methods
// change no state in place.
type State struct {
	Work  Work  `json:"work"`
	Curve Curve `json:"curve"`
	Plan  Plan  `json:"plan,omitzero"`
	Sizes Sizes `json:"sizes"`
	// Requests that ended under a plan, and those of them that missed a limit. Those of the
	// last day count most.
	Ended  float64 `json:"ended"`
	Missed Misses  `json:"misses"`
	Aimed  float64 `json:"aimed"` // of the ended, those that should have missed one
	Pace   Pace    `json:"pace"`

	Level   Load         `json:"-"` // what is asked for now
	Asked   float32      `json:"-"` // output tokens/s that arrivals ask for
	Busy    [lag]float32 `json:"-"` // share of the last steps, newest first
	Busiest float32      `json:"-"` // share that the last step's misses were counted at
	Short   Shortage     `json:"-"` // of replicas
	Step    Step         `json:"-"` // under way
	Loads   []Load       `json:"-"` // of the last steps, oldest first; the array is never changed
	At      time.Time    `json:"-"` // the end of the last step; zero: unknown
}

// Sizes holds sums over the last minutes, with older ones weighing less: tokens that were
// processed, and requests that got their first token or that ended.
type Sizes struct {
	Prompt float64 `json:"prompt"`
	First  float64 `json:"first"`
	Output float64 `json:"output"`
	Ended  float64 `json:"ended"`
}

func (z Sizes) next(r *Reading, seconds float64) Sizes {
	keep := math.Exp(-seconds / sizeSeconds)
	return Sizes{
		Prompt: z.Prompt*keep + r.Prompt*seconds, First: z.First*keep + r.First*seconds,
		Output: z.Output*keep + r.Output*seconds, Ended: z.Ended*keep + r.Ended*seconds,
	}
}

// of is what some requests/s take of tokens/s; nothing while the size is not known.
func (z *Sizes) of(requests float64) Load {
	if z.First < leastSized || z.Ended < leastSized {
		return Load{}
	}
	return Load{Prompt: float32(requests * z.Prompt / z.First), Output: float32(requests * z.Output / z.Ended)}
}

// Step holds the sums of a step under way.
type Step struct {
	Seconds       float64
	Read, Serving float64 // replica-seconds
	Done, Asked   Load    // sums, of all replicas
	Tokens        float64 // output tokens of the replicas that were read
	Decoding      float64 // seconds between them, summed up
	Ended, Missed float64 // requests
	Wanted, Most  float64 // replica-seconds, and replicas
}

// most is the highest number and rate that counts: sums of it have exact squares.
const most = 1e12

// isValid reports whether the reading is of replicas and has possible rates.
func (r *Reading) isValid() bool {
	for _, x := range []float64{r.Serving, r.Prompt, r.Output, r.TokenSeconds, r.Arrived, r.First, r.Ended, r.Missed, r.Held, r.Queued, r.Wanted, r.Most} {
		if !(x >= 0 && x <= most) {
			return false
		}
	}
	return r.Read > 0 && r.Read <= r.Serving
}

// Next is the state after a reading of some seconds.
func (s State) Next(r Reading, seconds float64, t Terms) State {
	if !r.isValid() || !(seconds > 0 && seconds <= most) {
		return s
	}
	s.Sizes = s.Sizes.next(&r, seconds)
	all := r.Serving / r.Read // those that were not read do as much as the others
	done, asked := Load{Prompt: float32(r.Prompt * all), Output: float32(r.Output * all)}, s.Sizes.of(r.Arrived*all)
	if r.Held > 0 && r.TokenSeconds > 0 {
		done.Cache = float32(min(r.Held*all/r.TokenSeconds, most))
	} else if s.Work.C > 0 && s.Work.O > 0 { // not known: as much as usual
		done.Cache = done.Output * float32(s.Work.C/s.Work.O)
	}
	// A request's output tokens are asked for over the time that it takes to generate them.
	if s.Sizes.Ended > 0 {
		stay := min(s.Sizes.Output/s.Sizes.Ended*r.TokenSeconds, longestStay)
		s.Asked += (asked.Output - s.Asked) * float32(1-math.Exp(-seconds/max(stay, least)))
		asked.Output = s.Asked
	}
	// Requests that wait ask for as many tokens as those that run, and those for as much of the caches.
	asked.Prompt = max(asked.Prompt, done.Prompt)
	if asked.Output = max(asked.Output, done.Output*float32(1+min(r.Queued, mostQueued))); done.Output > 0 {
		asked.Cache = min(done.Cache*(asked.Output/done.Output), most)
	}
	weight := float32(1 - math.Exp(-seconds/levelSeconds))
	s.Level.Prompt += (asked.Prompt - s.Level.Prompt) * weight
	s.Level.Output += (asked.Output - s.Level.Output) * weight
	s.Level.Cache += (asked.Cache - s.Level.Cache) * weight
	x, dt := &s.Step, float32(seconds)
	x.Seconds += seconds
	x.Read += r.Read * seconds
	x.Serving += r.Serving * seconds
	x.Done.Prompt += done.Prompt * dt
	x.Done.Output += done.Output * dt
	x.Done.Cache += done.Cache * dt
	x.Asked.Prompt += asked.Prompt * dt
	x.Asked.Output += asked.Output * dt
	x.Asked.Cache += asked.Cache * dt
	x.Tokens += r.Output * seconds
	x.Decoding += r.Output * r.TokenSeconds * seconds
	x.Ended += r.Ended * all * seconds
	x.Missed += r.Missed * all * seconds
	x.Wanted += r.Wanted * seconds
	x.Most = r.Most
	if x.Seconds > StepSeconds-0.5 || s.IsNew() && x.Seconds > firstStepSeconds-0.5 {
		s.endStep(r.At, t)
	}
	return s
}

// IsNew reports whether tokens are generated, and their cost is known after the first step.
func (s *State) IsNew() bool { return s.Work.Weight < leastWork && s.Step.Decoding > 0 }

// endStep learns from the step under way and begins the next one.
func (s *State) endStep(at time.Time, t Terms) {
	x := s.Step
	s.Step = Step{}
	perSecond := func(l Load, by float64) Load {
		return Load{l.Prompt / float32(by), l.Output / float32(by), l.Cache / float32(by)}
	}
	if x.Tokens > 0 && x.Decoding > 0 {
		s.Work = s.Work.next(perSecond(x.Done, x.Serving), x.Decoding/x.Tokens, x.Read/x.Seconds, x.Seconds)
	}
	load, asked := perSecond(x.Done, x.Seconds), perSecond(x.Asked, x.Seconds)
	cost, ok := s.cost(t.Limits)
	if ok && cost.Busy(asked) > cost.Busy(load) {
		load = asked
	}
	s.record(load, at, x.Seconds)
	if !ok {
		return
	}
	copy(s.Busy[1:], s.Busy[:lag-1])
	s.Busy[0] = float32(cost.Busy(load) * x.Seconds / x.Serving)
	busiest := s.Busy[0]
	for _, b := range s.Busy[1:] {
		busiest = max(busiest, b)
	}
	// A backlog outlasts what caused it: its misses are those of the busiest time.
	if s.Busiest *= ease; x.Missed > backlogFrom*x.Ended {
		busiest = max(busiest, s.Busiest)
	}
	s.Busiest = busiest
	usual := s.Curve.of(busiest)
	s.Curve = s.Curve.next(float64(busiest), x.Ended, x.Missed, x.Seconds)
	if s.Plan.Target > 0 { // misses of the time before are not the plan's
		keep := math.Exp(-x.Seconds / curveMemory)
		s.Ended, s.Missed, s.Short = s.Ended*keep+x.Ended, s.Missed.times(keep), s.Short.next(&x)
		s.Aimed = s.Aimed*keep + s.Aim(t)*x.Ended
		s.Missed.attribute(&x, s.Short, usual)
		s.Pace = s.Pace.next(x.Ended, x.Missed, x.Seconds, t.Over)
	}
}

// Limits are those of a request's latency, in seconds; 0: none.
type Limits struct{ Token, FirstToken float64 }

// String names the limits that there are.
func (l Limits) String() string {
	var all []string
	if l.FirstToken > 0 {
		all = append(all, words.Latency(l.FirstToken)+" to the first token")
	}
	if l.Token > 0 {
		all = append(all, words.Latency(l.Token)+" between tokens")
	}
	return strings.Join(all, " and ")
}

// Terms are what was promised.
type Terms struct {
	Limits
	Objective float64 // the share of the requests that keeps the limits, below 1
	Over      float64 // seconds over which it is judged
	Use       float64 // the share of the allowed misses that is to be used
}

// allowed is the share of the requests that may miss a limit.
func (t *Terms) allowed() float64 { return max(1-t.Objective, 1e-6) }

// cost is what tokens take, with the knee of the limits.
func (s *State) cost(l Limits) (c Cost, ok bool) {
	if c, ok = s.Work.Cost(); ok {
		c.Knee = s.knee(&c, l)
	}
	return c, ok
}

// knee is the busy share at which a replica's mean request just keeps its limits: the time
// between tokens, and the prompt's processing beside others.
func (s *State) knee(c *Cost, l Limits) float64 {
	knee := mostBusy
	if l.Token > 0 {
		knee = min(knee, 1-c.Idle/l.Token)
	}
	if l.FirstToken > 0 && s.Sizes.First >= leastSized {
		knee = min(knee, 1-c.PerPrompt*s.Sizes.Prompt/s.Sizes.First/l.FirstToken)
	}
	return max(leastKnee, knee)
}

// Demand is a load in replicas.
type Demand struct {
	Replicas float64 // that the plan asks for, as a fraction
	Busy     float64 // replicas that the load now keeps busy
	Caches   bool    // by what it holds of their KV caches
	Average  float64 // seconds
	Target   float64 // busy share of a replica
	Window   float64 // seconds
	Highest  float64 // busy replicas of the highest step within the window
	Reserve  float64 // busy replicas
	Missed   Misses  // shares of the requests of the last day
	Young    bool    // the record is too short to say how soon a load comes back
}

// Demand is what the plan of an objective asks for, where a replica serves after startup seconds. ok is
// false while it is not known what a token costs.
func (s State) Demand(t Terms, startup float64) (d Demand, ok bool) {
	cost, ok := s.cost(t.Limits)
	if !ok {
		return Demand{}, false
	}
	d = Demand{Target: s.Plan.Target, Average: s.Plan.Average, Window: s.Plan.Window, Reserve: s.Plan.Reserve, Missed: s.Causes(), Young: len(s.Loads) < trusted/StepSeconds}
	if d.Target <= 0 {
		d.Target, d.Average, d.Window, d.Reserve = fullest(firstShare*t.allowed(), cost.Knee)/firstRoom(startup), firstAverage, firstWindow(startup), 0
	}
	busy, caches := cost.busy(s.Level)
	d.Busy, d.Caches = max(busy, caches), caches > busy
	d.Highest = s.highest(&cost, d.Busy, int(d.Average/StepSeconds), int(d.Window/StepSeconds))
	// The record may not have a rise like the one under way, which a long mean shows late. While it
	// is short, rises that fall at once come again.
	window := 0
	if d.Young {
		window = int(min(mostRises, startsRises*startup) / StepSeconds)
	}
	full := s.highest(&cost, d.Busy, 60/StepSeconds, window) / s.atOnce(fullest(atOnceShare*t.allowed(), cost.Knee), d.Young)
	d.Replicas = max(max(d.Highest, d.Reserve)/d.Target, full, caches/cost.Knee) // whose caches are just full
	return d, true
}

// firstWindow is the window before a plan is chosen.
func firstWindow(startup float64) float64 {
	long := min(1, startup/longStart)
	return min(mostFirstWindow, max(startsWindow*startup, mostFirstWindow*long*long))
}

// firstRoom is by how much a load may rise within a start-up that nobody has seen yet.
func firstRoom(startup float64) float64 { return 1 + unseenRise*min(1, startup/longStart) }

// atOnce is the busy share to which the load of the last minute may fill replicas: by the misses
// that were measured or by the assumed curve. The lower one counts while the record is short.
func (s *State) atOnce(assumed float64, young bool) float64 {
	if young && s.Plan.AtOnce > 0 {
		return min(s.Plan.AtOnce, assumed)
	}
	return max(s.Plan.AtOnce, assumed)
}

// Bounds are those of a workload.
type Bounds struct {
	Min, Max int     // replicas
	Startup  float64 // seconds until a replica serves
}

// Learn is the state with the plan that keeps the objective by what was recorded. It takes
// milliseconds, and is called every few minutes.
func (s State) Learn(t Terms, b Bounds) State {
	cost, ok := s.cost(t.Limits)
	if !ok || known(s.Loads) < leastLearned {
		return s
	}
	r, allowed := s.replay(&cost, t, b)
	s.Plan = r.Choose(allowed)
	s.Plan.AtOnce = r.Shares.fullest(atOnceShare * t.allowed())
	return s
}

// replay returns the replay of what was recorded, and the share of the requests that a plan may miss in it.
func (s *State) replay(cost *Cost, t Terms, b Bounds) (Replay, float64) {
	aim, left := s.aim(t)
	spare := min(1, left*left)
	over := s.over(aim, spare)
	allowed := aim * margin * min(max(math.Pow(over, -2), leastCorrection), mostCorrection)
	return Replay{
		Loads: s.Loads, Seconds: StepSeconds, Cost: *cost, Shares: s.Curve.Shares(cost.Knee), First: fullest(firstShare*t.allowed(), cost.Knee),
		Startup: b.Startup, Min: b.Min, Max: b.Max,
		Price:    price * min(max(over, leastPrice), mostPrice) * allowed / t.allowed(), // for as many misses as the plan may have
		Forgiven: mostOnce * spare * t.Use * t.allowed() * t.Over / max(float64(known(s.Loads))*StepSeconds, 1),
	}, allowed
}

// Aim is the share of the requests that should miss a limit from now on, by what is left of
// the budget.
func (s *State) Aim(t Terms) float64 {
	aim, _ := s.aim(t)
	return aim
}

func (s *State) aim(t Terms) (aim, left float64) { return s.Pace.aim(&t, s.Sizes.Ended/sizeSeconds) }

// over is what was missed within a day, as a multiple of what was aimed at. Before misses
// were measured, it is 1.
func (s *State) over(aim, spare float64) float64 {
	usual := aim * s.Sizes.Ended / sizeSeconds * confident
	m := &s.Missed
	jumps := min(m.Starting+m.Bounded, mostJumps/spare*s.Aimed)
	return (m.Planned + m.Server + jumps + usual) / max(s.Aimed+usual, least)
}

// SPDX-License-Identifier: Apache-2.0

package scale

import (
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

var (
	worlds     = flag.Int("worlds", 60, "worlds of TestChurn")
	firstWorld = flag.Int("first-world", 0, "the first world of TestChurn")
)

// sickness is what is wrong with one replica.
type sickness int

const (
	well    sickness = iota
	silent           // it serves and has no value
	busy             // its value is the highest that there is
	looping          // it serves for 20 s of each minute, and has not served before
	broken           // it never serves
	wild             // its value is absurd, where no range bounds it
)

// reconcileOrdered is a StatefulSet's controller with parallel pod management.
func (w *simWorkload) reconcileOrdered() {
	exists := map[int32]bool{}
	for _, p := range w.pods {
		exists[p.ordinal] = true
		if int(p.ordinal) >= w.replicas && p.deleted.IsZero() {
			p.deleted = w.now
		}
	}
	for n := range int32(w.replicas) {
		if !exists[n] {
			w.create(w.current(), 1)
			p := w.pods[len(w.pods)-1]
			p.ordinal, p.name = n, fmt.Sprint("pod-", n)
		}
	}
}

// churnCase is one generated fleet whose replicas come and go.
type churnCase struct {
	seed           uint64
	kinds          string // of signals
	n, need, again int    // replicas that the load needs: before it falls, after that, and once it has risen again
	formula        bool
	life           time.Duration // of a replica, on average
	startup        time.Duration
	declared       bool          // the start-up is known
	window         time.Duration // downward
	interval       time.Duration // between readings
	tick           time.Duration // between decisions
	every          time.Duration // node drains; 0: none
	share          float64       // of the replicas that a node drain takes
	unplaced       time.Duration // that a replacement waits for a node at most
	sick           []sickness
	surge          float64 // of a rollout; 0: there is none
	ordered        bool
	drain          time.Duration // Policy.Drain
	pair           bool
	restarts       bool // the controller restarts now and then
	flicker        bool // a signal has no value for a few seconds, every two minutes
}

func newChurnCase(seed uint64) churnCase {
	rnd := rand.New(rand.NewPCG(seed, 40))
	pick := func(all ...time.Duration) time.Duration { return all[rnd.IntN(len(all))] }
	seconds := func(all ...float64) time.Duration {
		return time.Duration(all[rnd.IntN(len(all))] * float64(time.Second))
	}
	c := churnCase{
		seed: seed, kinds: []string{"u", "b", "l", "q", "v", "m", "ub", "bq", "uq"}[rnd.IntN(9)], n: 12 + rnd.IntN(40),
		startup: seconds(10, 30, 120, 600), declared: rnd.IntN(4) > 0, window: pick(Auto, Auto, 0, 3*time.Second, 30*time.Second, 5*time.Minute),
		interval: seconds(1, 1, 5, 15), tick: seconds(1, 1, 3, 10),
		pair: rnd.IntN(4) == 0, restarts: rnd.IntN(4) == 0, flicker: rnd.IntN(4) == 0, formula: rnd.IntN(5) == 0,
	}
	c.need = 2 + rnd.IntN(c.n/2)
	c.again = c.need + rnd.IntN(c.n-c.need+1)
	c.life = time.Duration(float64(c.startup) * (4 + 40*rnd.Float64()*rnd.Float64()))
	c.life = max(c.life, 8*c.interval+150*time.Second)
	if rnd.IntN(3) == 0 {
		c.every, c.share = time.Duration(2+rnd.IntN(6))*c.startup+time.Duration(rnd.IntN(200))*time.Second, 0.05+0.1*rnd.Float64()
	}
	if rnd.IntN(3) == 0 {
		c.unplaced = time.Duration(rnd.IntN(int(c.startup)))
	}
	for range max(0, rnd.IntN(5)-2) {
		c.sick = append(c.sick, sickness(1+rnd.IntN(5)))
	}
	switch rnd.IntN(6) {
	case 0:
		c.surge = 0.25
	case 1:
		c.ordered = true
	}
	if rnd.IntN(4) == 0 {
		c.drain = time.Minute
	}
	return c
}

func (c *churnCase) policy() Policy {
	p := Policy{Min: 1, Max: 100, Up: Rules{Tolerance: AutoTolerance}, Down: Rules{Window: c.window, Tolerance: AutoTolerance}, Drain: c.drain}
	if c.declared {
		p.Startup = c.startup * 12 / 10
	}
	zero := 0.0
	for _, k := range c.kinds {
		p.Signals = append(p.Signals, map[rune]Signal{
			'u': {Name: "Utilization", Unit: "%", Target: 70, Ceiling: 100, Aggregate: gpu.Mean},
			'b': {Name: "requests", Target: 8, Law: Batching, Aggregate: gpu.Sum},
			'l': {Name: "metric", Target: 8, Aggregate: gpu.Sum},
			'q': {Name: "gateway", Target: 10, Activation: &zero},
			'v': {Name: "mean", Target: 60, Type: Value, Activation: &zero},
			'm': {Name: "mean", Target: 70, Type: Value, Ceiling: 100, Aggregate: gpu.Mean},
		}[k])
	}
	if c.formula {
		p.Formula = formulaOf(3, p.Signals)
	}
	if c.pair {
		p.Pair = Pair{With: "other", PerPartner: 1}
	}
	return p
}

// value is what a replica with this share of the load at its target shows.
func (c *churnCase) value(k rune, share float64) float64 {
	switch k {
	case 'u', 'm':
		return min(100, 70*share)
	case 'b':
		used := min(0.4*share, 0.95)
		return 12 * used / (1 - used)
	case 'l':
		return 8 * share
	}
	return 60 * share
}

// churnWorld is a fleet in virtual time.
type churnWorld struct {
	simWorkload
	c     churnCase
	means []Reading // of queries
}

// churn has replicas end, alone or with their node, and some of their successors wait for a node.
func (w *churnWorld) churn(passed, step time.Duration) {
	before := w.made
	for _, p := range w.live("") {
		if p.sick == well && w.rnd.Float64() < float64(step)/float64(w.c.life) {
			p.deleted = w.now
		}
	}
	if e := w.c.every; e > 0 && passed/e != (passed-step)/e {
		for _, p := range w.live("") {
			if p.sick == well && w.rnd.Float64() < w.c.share {
				p.deleted = w.now
			}
		}
	}
	w.reconcile(nil)
	for _, p := range w.pods {
		if p.created.Equal(w.now) && w.made > before && w.c.unplaced > 0 && w.rnd.IntN(3) == 0 {
			p.placed = w.now.Add(w.c.unplaced)
			p.startup += w.c.unplaced
		}
	}
}

// settle makes pods ready, and unready, and reads them.
func (w *churnWorld) settle() {
	w.pods = slices.DeleteFunc(w.pods, func(p *simPod) bool { return !p.deleted.IsZero() && w.now.Sub(p.deleted) > w.grace })
	for _, p := range w.pods {
		up := w.now.Sub(p.created) - p.startup
		ready := up >= 0 && p.deleted.IsZero() && p.sick != broken && (p.sick != looping || int(up.Seconds())%60 < 20)
		switch {
		case !ready && !p.readySince.IsZero():
			p.readySince, p.unready = time.Time{}, w.now
		case ready && p.readySince.IsZero():
			p.readySince = w.now
		}
	}
	serving := float64(w.available(w.live("")))
	share := w.load / max(1, serving) * (1 + 0.01*(w.rnd.Float64()-0.5))
	for i, p := range w.pods {
		if p.readySince.IsZero() || int(w.now.Sub(t0).Seconds()+float64(i))%int(w.c.interval.Seconds()) != 0 {
			continue
		}
		p.readings = nil
		for _, k := range w.c.kinds {
			r := Reading{Value: w.c.value(k, share), At: w.now, MaxAge: 3 * w.c.interval, OK: p.sick != silent && k != 'q' && k != 'v'}
			if p.sick == busy || p.sick == wild {
				r.Value = w.c.value(k, 1.43)
			}
			if p.sick == wild && (k == 'l' || k == 'b') {
				r.Value = 1e6
			}
			p.readings = append(p.readings, r)
		}
	}
	w.means = nil
	for _, k := range w.c.kinds {
		r := Reading{At: w.now.Add(-time.Second), OK: true}
		switch k {
		case 'q':
			r.Value = 10 * w.load
		case 'v':
			r.Value = 60 * share
		default:
			r.OK = false
		}
		w.means = append(w.means, r)
	}
}

func (w *churnWorld) observe(p *Policy, blind bool) Observation {
	o := Observation{Replicas: int32(w.replicas), Ordered: w.ordered, Partner: Reading{Value: 1, At: w.now, OK: true}, Totals: slices.Clone(w.means)}
	var newest time.Time
	for _, p := range w.pods {
		r := Replica{Name: p.name, Version: p.version, Since: p.created, Phase: Starting, Ordinal: p.ordinal, Gated: w.c.drain > 0, Readings: slices.Clone(p.readings)}
		switch {
		case !p.deleted.IsZero():
			r.Phase = Terminating
		case !p.leaving.IsZero():
			r.Phase, r.Since, r.Out, r.InFlight = Leaving, p.leaving, w.now.Sub(p.leaving) > time.Second, Reading{At: w.now, OK: w.now.Sub(p.leaving) > 9*time.Second}
		case !p.readySince.IsZero():
			r.Phase, r.Since = Serving, p.readySince
		case w.now.Before(p.placed):
			r.Phase = Unschedulable
		case !p.unready.IsZero():
			r.Since = p.unready
		case !p.placed.IsZero():
			r.Since = p.placed
		}
		if p.deleted.IsZero() && !p.created.Before(newest) {
			newest, o.Version = p.created, p.version
		}
		if blind {
			r.Readings = nil
		}
		o.Pods = append(o.Pods, r)
	}
	if w.c.surge == 0 {
		o.Version = ""
	}
	if blind {
		o.Totals = nil
	}
	return o
}

// apply does what the decision says.
func (w *churnWorld) apply(d *Decision) {
	for _, p := range w.live("") {
		switch leaves := slices.Contains(d.Leave, p.name); {
		case !leaves:
			p.leaving = time.Time{}
		case p.leaving.IsZero():
			p.leaving = w.now
		}
	}
	w.replicas = int(d.Replicas)
	w.reconcile(d.Victims)
	w.scaled = w.replicas
}

// descent is how long the steps of scale-downs take.
func descentOf(p *Policy, from, to int) (all time.Duration) {
	for r := from; r > to; r = max(to, min(r-1, r*(100-descent)/100)) {
		if len(p.downPolicies()) > 0 {
			all += p.downPolicies()[0].Period + 10*time.Second
		}
	}
	return all
}

// run plays the world. It returns what is wrong; empty: nothing.
func (c churnCase) run(t *testing.T) string {
	w := &churnWorld{c: c, simWorkload: simWorkload{
		rnd: rand.New(rand.NewPCG(c.seed, 1)), now: t0, replicas: c.n, scaled: c.n, ordered: c.ordered, surge: c.surge,
		startup: c.startup, grace: 10 * time.Second, load: float64(c.n) - 0.6,
	}}
	w.reconcile(nil)
	for i, p := range w.pods {
		p.created, p.startup, p.readySince = t0.Add(-2*time.Hour), time.Minute, t0.Add(-time.Hour)
		if i < len(c.sick) {
			p.sick = c.sick[i]
		}
	}
	w.settle()
	p, s := c.policy(), State{}
	calm := p.DownWindow() + 5*time.Minute
	late := p.DownWindow() + c.startup*12/10 + descentOf(&p, c.n*12/10+1, c.need) + 45*time.Second + 3*(c.interval+c.tick)
	if c.drain > 0 {
		late += descentOf(&p, c.n, c.need) + c.drain
	}
	low, high := late+10*time.Minute+c.startup, 8*(c.startup*12/10+45*time.Second)
	var d Decision
	var story []string
	fail := func(passed time.Duration, format string, args ...any) string {
		return fmt.Sprintf("%+v\n%v: %s\n%d live, %d serve: %s\n%s", c, passed, fmt.Sprintf(format, args...), len(w.live("")), w.available(w.live("")), d.Sentence(), strings.Join(story[max(0, len(story)-12):], "\n"))
	}
	turns, fell, overloaded := 0, false, -time.Hour
	for passed := time.Duration(0); passed < calm+low+high; passed += c.tick {
		need := c.n
		switch {
		case passed >= calm+low:
			need = c.again
		case passed >= calm:
			need = c.need
		}
		w.load = float64(need) - 0.6
		if c.surge > 0 && passed >= calm && passed%(4*c.startup+10*time.Minute) < c.tick {
			w.version++
		}
		for range int(c.tick / time.Second) {
			w.now = w.now.Add(time.Second)
			w.churn(w.now.Sub(t0), time.Second)
			w.settle()
		}
		o := w.observe(&p, c.flicker && passed%(2*time.Minute) < 5*time.Second)
		if c.restarts && w.rnd.IntN(100) == 0 {
			s = clone(t, s)
		}
		last := w.replicas
		d, s = Decide(p, o, s, w.now)
		w.apply(&d)
		if w.replicas != last {
			story = append(story, fmt.Sprintf("%v %d→%d (%d serve, %d start): %s", passed, last, w.replicas, d.Serving, d.Starting, d.Sentence()))
		}
		// What the workload controller cannot remove first stays beside what is needed.
		most := int(math.Ceil(float64(need)/0.9)) + 1 + 2*len(c.sick)
		if slices.Contains(c.sick, silent) || slices.Contains(c.sick, wild) { // among few, they count
			most = max(most, sickOf*len(c.sick)+1) + 3*len(c.sick)
		}
		if c.ordered || c.surge > 0 {
			most += max(0, w.replicas-w.available(w.live("")))
		}
		// The readings show no load that the replicas cannot carry.
		least := w.load
		if passed >= calm+low && passed < calm+low+high-c.tick { // on the way up
			least = float64(c.need) - 0.6
		}
		if c.window >= 0 && c.window < c.interval { // a reading that lacks a load counts at once
			least *= 0.9
		}
		if passed >= calm+low {
			least *= 0.85
		} else if overloaded >= 0 { // too few may be within the tolerance after that
			least *= 0.9
		}
		if serving := float64(w.available(w.live(""))); w.load > 1.3*serving || serving < 0.7*float64(w.replicas) {
			overloaded = passed
		}
		switch isCalm := passed-overloaded > p.DownWindow()+c.startup*12/10+time.Minute; {
		case w.replicas < int(math.Ceil(least)) && passed-overloaded > time.Minute:
			return fail(passed, "%d replicas, and the load needs %d", w.replicas, need)
		case passed >= calm+late && passed < calm+low && w.replicas > most && isCalm:
			return fail(passed, "%d replicas %v after the load fell, and it needs %d", w.replicas, passed-calm, need)
		}
		if passed >= calm && passed < calm+low && w.replicas != last && passed-overloaded > time.Minute {
			if up := w.replicas > last; up == fell {
				turns, fell = turns+1, !up
			}
		}
	}
	if turns > 6 && c.window != 0 && c.life > 40*c.interval {
		return fail(calm+low, "%d turns", turns)
	}
	return ""
}

// A fleet whose replicas come and go follows its load as one that is calm: within a window and
// a start after the load has fallen the replicas are those that it needs, and never fewer. So it
// is whatever is wrong with some of them, and whoever replaces them.
func TestChurn(t *testing.T) {
	failed := 0
	for i := *firstWorld; i < *firstWorld+*worlds; i++ {
		if wrong := newChurnCase(uint64(i)).run(t); wrong != "" {
			t.Errorf("world %d: %s", i, wrong)
			if failed++; failed >= 8 {
				t.FailNow()
			}
		}
	}
}

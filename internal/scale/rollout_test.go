// SPDX-License-Identifier: Apache-2.0

package scale

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

// fate is what becomes of the pods of a version.
type fate int

const (
	healthy fate = iota
	neverReady
	crashing // ready for 20 s of each minute once it has started
)

// simPod is a pod of the simulated workload.
type simPod struct {
	name, version string
	fate          fate
	created       time.Time
	readySince    time.Time // zero: not ready
	unready       time.Time // when it was last ready; zero: never
	deleted       time.Time // zero: not
	startup       time.Duration

	// Of TestChurn.
	placed   time.Time // until then no node has room
	leaving  time.Time // its readiness gate is closed; zero: it is not
	ordinal  int32
	sick     sickness
	readings []Reading
}

// simWorkload is a Deployment, its controller and its servers in virtual time, one second a
// step.
type simWorkload struct {
	rnd      *rand.Rand
	now      time.Time
	replicas int
	scaled   int // replicas at the last step
	version  int
	fates    map[string]fate
	recreate bool
	ordered  bool    // a StatefulSet
	surge    float64 // shares of the replicas
	missing  float64
	startup  time.Duration
	grace    time.Duration
	pods     []*simPod
	made     int

	queue float64 // requests that wait, at a gateway or at the servers
	load  float64 // in replicas that are at their target
}

func (w *simWorkload) current() string { return fmt.Sprint("v", w.version) }

func (w *simWorkload) live(of string) (out []*simPod) {
	for _, p := range w.pods {
		if p.deleted.IsZero() && (of == "" || p.version == of) {
			out = append(out, p)
		}
	}
	return out
}

func (w *simWorkload) create(version string, n int) {
	for range n {
		w.made++
		took := time.Duration(float64(w.startup) * (0.8 + 0.4*w.rnd.Float64()))
		w.pods = append(w.pods, &simPod{name: fmt.Sprint("pod-", w.made), version: version, fate: w.fates[version], created: w.now, startup: took})
	}
}

// remove deletes n pods of a version, as a ReplicaSet does: those that are not ready, then
// the victims, then the youngest.
func (w *simWorkload) remove(version string, n int, victims []string) {
	pods := w.live(version)
	slices.SortStableFunc(pods, func(a, b *simPod) int {
		rank := func(p *simPod) int {
			isVictim, rank := slices.Contains(victims, p.name), 0
			switch {
			case p.readySince.IsZero():
			case !p.leaving.IsZero(): // not ready either
			default:
				rank = 2
			}
			if isVictim {
				return rank
			}
			return rank + 1
		}
		if d := rank(a) - rank(b); d != 0 {
			return d
		}
		return b.created.Compare(a.created)
	})
	for _, p := range pods[:min(max(n, 0), len(pods))] {
		p.deleted = w.now
	}
}

func (w *simWorkload) available(pods []*simPod) (n int) {
	for _, p := range pods {
		if !p.readySince.IsZero() && p.leaving.IsZero() {
			n++
		}
	}
	return n
}

// reconcile is the Deployment controller's part. A change of replicas in a rollout is
// shared out in proportion.
func (w *simWorkload) reconcile(victims []string) {
	if w.ordered {
		w.reconcileOrdered()
		return
	}
	fresh := w.live(w.current())
	var old []*simPod
	for _, p := range w.live("") {
		if p.version != w.current() {
			old = append(old, p)
		}
	}
	if w.recreate {
		for _, p := range old {
			p.deleted = w.now
		}
		if !slices.ContainsFunc(w.pods, func(p *simPod) bool { return p.version != w.current() }) {
			w.create(w.current(), w.replicas-len(fresh))
			w.remove(w.current(), len(fresh)-w.replicas, victims)
		}
		return
	}
	surge, unavailable := int(math.Ceil(w.surge*float64(w.replicas))), int(w.missing*float64(w.replicas))
	if surge+unavailable == 0 {
		unavailable = 1
	}
	if len(old) == 0 {
		w.create(w.current(), w.replicas-len(fresh))
		w.remove(w.current(), len(fresh)-w.replicas, victims)
		return
	}
	if over := len(old) + len(fresh) - w.replicas - surge; over > 0 { // scaled down in the rollout
		part := int(math.Round(float64(over*len(old)) / float64(len(old)+len(fresh))))
		for _, version := range []string{old[0].version} {
			w.remove(version, part, victims)
		}
		w.remove(w.current(), over-part, victims)
		return
	}
	if more := w.replicas + surge - len(old) - len(fresh); w.replicas > w.scaled && more > 0 { // scaled up in the rollout
		part := int(math.Round(float64(more*len(old)) / float64(len(old)+len(fresh))))
		w.create(old[0].version, part)
		w.create(w.current(), more-part)
		return
	}
	w.create(w.current(), min(w.replicas-len(fresh), w.replicas+surge-len(old)-len(fresh)))
	least := w.replicas - unavailable
	most := len(old) + len(fresh) - least - (len(fresh) - w.available(fresh))
	broken := max(0, min(most, len(old)-w.available(old)))
	w.remove(old[0].version, min(len(old), broken+max(0, w.available(w.live(""))-least)), victims)
}

// step lets a second pass.
func (w *simWorkload) step(victims []string) {
	w.now = w.now.Add(time.Second)
	w.pods = slices.DeleteFunc(w.pods, func(p *simPod) bool { return !p.deleted.IsZero() && w.now.Sub(p.deleted) > w.grace })
	for _, p := range w.pods {
		up := w.now.Sub(p.created) - p.startup
		ready := up >= 0 && p.deleted.IsZero()
		switch p.fate {
		case neverReady:
			ready = false
		case crashing:
			ready = ready && int(up.Seconds())%60 < 20
		}
		switch {
		case !ready && !p.readySince.IsZero():
			p.readySince, p.unready = time.Time{}, w.now
		case !ready:
		case p.readySince.IsZero():
			p.readySince = w.now
		}
	}
	w.reconcile(victims)
	w.scaled = w.replicas
	// What the servers cannot do waits. Clients give up after 30 s.
	can := float64(w.available(w.live(""))) / 0.7
	w.queue = min(max(0, w.queue+w.load-can), 30*w.load)
}

// observe is what the controller reads: a utilisation, requests in flight that slow each
// other down, and the requests at a gateway. A reading is a second old.
func (w *simWorkload) observe(kinds string) Observation {
	o := Observation{Replicas: int32(w.replicas)}
	serving := max(1, float64(w.available(w.live(""))))
	noise := 1 + 0.02*(w.rnd.Float64()-0.5)
	share := w.load / serving * noise // of the target
	var newest time.Time
	for _, p := range w.pods {
		r := Replica{Name: p.name, Version: p.version, Since: p.created, Phase: Starting}
		switch {
		case !p.deleted.IsZero():
			r.Phase = Terminating
		case !p.readySince.IsZero():
			r.Phase, r.Since = Serving, p.readySince
		case !p.unready.IsZero():
			r.Since = p.unready
		}
		if p.deleted.IsZero() && !p.created.Before(newest) {
			newest, o.Version = p.created, p.version
		}
		for _, k := range kinds {
			at := Reading{At: w.now.Add(-time.Second), OK: r.Phase == Serving}
			switch k {
			case 'u':
				at.Value = min(100, 70*share)
				if w.queue > 0 {
					at.Value = 100
				}
			case 'b': // at the target of 8, a replica carries 0.4 of the load that it cannot carry
				busy := min(0.4*share, 0.95)
				at.Value = 8 * 1.5 * busy / (1 - busy)
			case 'q':
				at = Reading{}
			}
			r.Readings = append(r.Readings, at)
		}
		o.Pods = append(o.Pods, r)
	}
	if o.Version == "" && len(w.pods) > 0 {
		o.Version = w.pods[0].version
	}
	for _, k := range kinds {
		total := Reading{}
		if k == 'q' {
			total = Reading{Value: 10*w.load*noise + 10*w.queue, At: w.now, OK: true}
		}
		o.Totals = append(o.Totals, total)
	}
	return o
}

// rolloutCase is one generated rollout.
type rolloutCase struct {
	seed     uint64
	n        int // replicas that the load needs
	kinds    string
	recreate bool
	surge    float64
	missing  float64
	startup  time.Duration
	window   time.Duration
	fate     fate
	none     bool          // no rollout at all
	rollback time.Duration // after the start; 0: none
	scale    []float64     // factors of the load, in equal parts of the time
}

// rolloutRun is what came of it.
type rolloutRun struct {
	before, after    int // replicas
	most, least      int // from the start of the rollout on
	inProgress       time.Duration
	mostDuring       int           // replicas while the rollout was in progress
	downs            time.Duration // from the fall of the load to the first scale-down; 0: none
	endedWithRollout bool
	sentences        []string
	need             int
}

func (c rolloutCase) policy() Policy {
	p := Policy{
		Min: 1, Max: 40, Startup: c.startup * 12 / 10,
		Up: Rules{Tolerance: AutoTolerance}, Down: Rules{Window: c.window, Tolerance: AutoTolerance},
	}
	for _, k := range c.kinds {
		switch k {
		case 'u':
			p.Signals = append(p.Signals, Signal{Name: "Utilization", Unit: "%", Target: 70, Ceiling: 100, Aggregate: gpu.Mean})
		case 'b':
			p.Signals = append(p.Signals, Signal{Name: "requests", Target: 8, Law: Batching, Aggregate: gpu.Sum})
		case 'q':
			p.Signals = append(p.Signals, Signal{Name: "gateway", Target: 10, Aggregate: gpu.Sum})
		}
	}
	return p
}

// run rolls out once, after ten minutes of calm, and decides once a second.
func (c rolloutCase) run() (r rolloutRun) {
	w := &simWorkload{
		rnd: rand.New(rand.NewPCG(c.seed, 1)), now: t0, replicas: c.n, fates: map[string]fate{"v1": c.fate},
		recreate: c.recreate, surge: c.surge, missing: c.missing, startup: c.startup, grace: 30 * time.Second, load: float64(c.n) - 0.4,
	}
	w.create("v0", c.n)
	for _, p := range w.pods {
		p.created, p.startup = t0.Add(-2*time.Hour), time.Minute
	}
	p, s := c.policy(), State{}
	var victims []string
	base, calm := w.load, 10*time.Minute
	part := max(20*time.Minute, 3*c.startup)
	all := calm + part*time.Duration(len(c.scale))
	if c.fate == healthy && c.rollback == 0 && !c.recreate {
		all += time.Duration(c.n) * c.startup / 2
	}
	if c.window <= 0 {
		all += time.Hour
	}
	last := w.replicas
	for passed := time.Duration(0); passed < all; passed += time.Second {
		factor := 1.0
		if passed >= calm {
			factor = c.scale[min(int((passed-calm)/part), len(c.scale)-1)]
		}
		w.load = base * factor
		switch passed {
		case calm:
			r.before, r.most, r.least = w.replicas, w.replicas, w.replicas
			if !c.none {
				w.version++
			}
		case calm + c.rollback:
			w.version++
			w.fates[w.current()] = healthy
		}
		w.step(victims)
		var d Decision
		d, s = Decide(p, w.observe(c.kinds), s, w.now)
		victims = d.Victims
		w.replicas = int(d.Replicas)
		if passed < calm {
			continue
		}
		need := int(math.Ceil(w.load - 1e-9))
		r.most, r.least = max(r.most, w.replicas), min(r.least, w.replicas)
		r.need = need
		if d.Rollout.InProgress {
			r.inProgress += time.Second
			r.mostDuring = max(r.mostDuring, w.replicas)
		}
		if factor < 1 && w.replicas < last && r.downs == 0 {
			r.downs = passed - calm
		}
		if w.replicas != last && len(r.sentences) < 12 {
			r.sentences = append(r.sentences, fmt.Sprintf("%v %d→%d (%d of %d live serve, rollout %v): %s", passed, last, w.replicas, d.Serving, len(w.live("")), d.Rollout, d.Sentence()))
		}
		last = w.replicas
		if passed == all-time.Second {
			r.sentences = append(r.sentences, fmt.Sprintf("%v (%d of %d live serve, rollout %v): %s", passed, d.Serving, len(w.live("")), d.Rollout, d.Sentence()))
		}
	}
	r.after = w.replicas
	r.endedWithRollout = len(w.live(w.current())) != len(w.live(""))
	return r
}

// Under steady load a rollout of any kind changes nothing: no replica more, none fewer,
// whether the new version serves, never does, or crashes.
func TestRolloutsAtSteadyLoad(t *testing.T) {
	rnd := rand.New(rand.NewPCG(7, 7))
	for i := range 40 {
		c := rolloutCase{
			seed: uint64(i), n: 2 + rnd.IntN(14), kinds: []string{"u", "b", "q", "ub", "bq"}[rnd.IntN(5)],
			recreate: rnd.IntN(4) == 0, surge: []float64{0, 0.25, 1}[rnd.IntN(3)], missing: []float64{0, 0.25}[rnd.IntN(2)],
			startup: []time.Duration{20 * time.Second, 2 * time.Minute, 10 * time.Minute}[rnd.IntN(3)],
			window:  []time.Duration{Auto, 0, 5 * time.Minute}[rnd.IntN(3)], fate: fate(rnd.IntN(3)), scale: []float64{1},
		}
		if rnd.IntN(3) == 0 {
			c.rollback = time.Duration(1+rnd.IntN(15)) * time.Minute
		}
		if i < 12 { // 8 replicas that take ten minutes to start, of each fate and strategy
			c.n, c.startup, c.fate, c.rollback = 8, 10*time.Minute, fate(i%3), 0
			c.recreate, c.surge = i/3 == 3, []float64{0, 0.25, 1, 0}[i/3]
		}
		r := c.run()
		most := r.before
		if c.fate == crashing { // requests pile up, and the old version may serve more of them
			most *= 2
		}
		if r.most > most || r.least < r.before {
			t.Errorf("%+v\n%d replicas before, then %d to %d:\n%s", c, r.before, r.least, r.most, strings.Join(r.sentences, "\n"))
		}
		if r.inProgress == 0 {
			t.Errorf("%+v\nno rollout was seen", c)
		}
	}
}

// A load that changes meanwhile is followed: up at once, also if the new version is broken,
// and down after the stabilisation window, also if the rollout takes longer.
func TestLoadChangesDuringRollouts(t *testing.T) {
	rnd := rand.New(rand.NewPCG(8, 8))
	for i := range 20 {
		c := rolloutCase{
			seed: uint64(i), n: 4 + rnd.IntN(8), kinds: []string{"u", "b", "q", "ub", "bq"}[rnd.IntN(5)],
			surge: 0.25, missing: []float64{0, 0.25}[rnd.IntN(2)],
			startup: []time.Duration{20 * time.Second, 2 * time.Minute, 10 * time.Minute}[rnd.IntN(3)],
			window:  []time.Duration{Auto, 0, 5 * time.Minute}[rnd.IntN(3)], fate: fate(rnd.IntN(2)),
			scale: [][]float64{{1, 2}, {1, 0.35}, {1.5, 0.4}}[rnd.IntN(3)],
		}
		r := c.run()
		falls := c.scale[1] < 1
		calm := c
		calm.none = true
		if most := max(calm.run().most, 4*r.before); r.mostDuring > most {
			t.Errorf("%+v\n%d replicas, and without a rollout at most %d:\n%s", c, r.most, most, strings.Join(r.sentences, "\n"))
		}
		if least := 0.8 * c.scale[1] * (float64(c.n) - 0.4); float64(r.after) < least { // of replicas that are overloaded, the load is estimated
			t.Errorf("%+v\n%d replicas, and the load needs %d:\n%s", c, r.after, r.need, strings.Join(r.sentences, "\n"))
		}
		if falls && r.after > r.need+1 {
			t.Errorf("%+v\n%d replicas in the end, and the load needs %d:\n%s", c, r.after, r.need, strings.Join(r.sentences, "\n"))
		}
		if p := c.policy(); falls {
			part := max(20*time.Minute, 3*c.startup)
			if late := r.downs - part; r.downs == 0 || late > p.DownWindow()+5*time.Minute {
				t.Errorf("%+v\nthe first scale-down came %v after the fall, and the window is %v:\n%s", c, late, p.DownWindow(), strings.Join(r.sentences, "\n"))
			}
			if c.fate == neverReady && !r.endedWithRollout {
				t.Errorf("%+v\nthe broken rollout ended", c)
			}
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package service

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/gpupilot/gpupilot/internal/replay/trace"
	replicas "github.com/gpupilot/gpupilot/internal/scale/replica"
)

// Config is the service that a deployment simulates.
type Config struct {
	Model    Model
	Startup  Startup
	Patience float64 // seconds after which a client without a first token gives up
	Seconds  float64 // duration of the replay; later nothing is decided or counted
	Warmup   float64 // seconds at the start that are not counted
	Seed     uint64
	Need     []float64 // replicas that the load needs, per bin of NeedSeconds
	Replicas int       // ready at the start
	// RoundRobin routes to the ready pods in turn, instead of to the less busy of two.
	RoundRobin bool
	// OneTokenMisses counts a request with one output token as missed: it has no time
	// between tokens that could meet a limit.
	OneTokenMisses bool
	// GaugesOnly leaves out rates and GPU activity, because no autoscaler reads them.
	GaugesOnly bool
}

// Autoscaler scales a deployment. It is called once per second.
type Autoscaler interface {
	// Decide returns the wanted replicas and the names of the pods to delete first.
	// Unchanged keeps the replicas.
	Decide(d *Deployment, now int) (replicas int, victims []string)
}

// Drainer is an autoscaler that takes pods out of the endpoints before it removes them.
type Drainer interface {
	// Leave returns the names of the pods that are out of the endpoints after the last
	// Decide.
	Leave() []string
}

// Unchanged is the result of a Decide that changes nothing.
const Unchanged = -1

// Deployment is a simulated Deployment behind a load balancer. Several autoscalers can
// share one while all of them want the same; it forks when they differ.
type Deployment struct {
	cfg         *Config
	shortages   []interval
	routing     *rand.PCG // state of router
	router      *rand.Rand
	autoscalers []Autoscaler
	turn        int // requests that were routed, for RoundRobin

	now            int // last simulated second
	end            int // last second with decisions
	replicas       int // spec.replicas
	pods           []*Pod
	ready          []*Pod
	gateway        queue // requests that arrived while no pod was ready
	created        int   // pods
	starts         replicas.Durations
	snapshots      [snapshotSeconds]Snapshot
	empty          Snapshot
	stats          stats
	decisionBuffer struct {
		decisions []decision
		index     []int
	}
}

// New returns a deployment with cfg.Replicas ready pods.
func New(cfg *Config, autoscalers ...Autoscaler) *Deployment {
	d := &Deployment{
		cfg: cfg, routing: rand.NewPCG(cfg.Seed, 0x10ad), autoscalers: autoscalers,
		end: int(cfg.Seconds), replicas: cfg.Replicas, shortages: cfg.Startup.shortages(cfg.Seed, cfg.Seconds),
	}
	d.router = rand.New(d.routing)
	for i := range d.snapshots {
		d.snapshots[i].second = -1
	}
	d.stats = newStats(cfg)
	for range cfg.Replicas {
		p := d.create(0)
		p.Phase, p.StartTimes, p.Since = Serving, StartTimes{}, -3600
		d.ready = append(d.ready, p)
	}
	return d
}

func (d *Deployment) create(now float64) *Pod {
	p := d.newPod(now)
	d.pods = append(d.pods, p)
	return p
}

// Run simulates the requests of a slice of time. It returns the deployments that forked
// off meanwhile, at the same time.
func (d *Deployment) Run(q []trace.Request, until float64) (forks []*Deployment) {
	for {
		next := float64(d.now + 1)
		for len(q) > 0 && q[0].At < next {
			d.receive(q[0])
			q = q[1:]
		}
		if next > until {
			return forks
		}
		for _, f := range d.tick(d.now + 1) {
			forks = append(forks, f)
			forks = append(forks, f.Run(q, until)...)
		}
	}
}

// Finish serves the requests that have arrived, for ten minutes at most.
func (d *Deployment) Finish() {
	for range 600 {
		if !d.Busy() {
			return
		}
		d.tick(d.now + 1)
	}
}

// receive routes a request, or queues it while no pod is ready.
func (d *Deployment) receive(q trace.Request) {
	if d.cfg.Model.Feasible(q.Prompt) {
		d.stats.arrived(q.At)
	} else {
		d.stats.infeasibleArrived(q.At)
	}
	if len(d.ready) == 0 {
		d.gateway.push(q)
		return
	}
	d.route(q, q.At)
}

// route picks two random pods and sends the request to the one with fewer requests in
// flight, as Envoy's LEAST_REQUEST does.
func (d *Deployment) route(q trace.Request, now float64) {
	if d.cfg.RoundRobin {
		p := d.ready[d.turn%len(d.ready)]
		d.turn++
		p.advance(now, &d.stats)
		p.add(q, &d.stats)
		return
	}
	n := uint32(len(d.ready))
	p := d.ready[d.router.Uint32N(n)]
	p.advance(now, &d.stats)
	if n > 1 {
		other := d.ready[d.router.Uint32N(n)]
		other.advance(now, &d.stats)
		if other.inFlight() < p.inFlight() {
			p = other
		}
	}
	p.add(q, &d.stats)
}

// tick simulates the whole second now: pods change phase, the gateway is emptied, signals
// are read and autoscalers decide.
func (d *Deployment) tick(now int) (forks []*Deployment) {
	d.now = now
	d.advancePods(float64(now))
	d.drainGateway(float64(now))
	if now > d.end {
		return nil
	}
	d.observe(now)
	forks = d.decide(now)
	d.stats.endSecond(d)
	for _, f := range forks {
		f.stats.endSecond(f)
	}
	return forks
}

func (d *Deployment) advancePods(t float64) {
	for _, p := range d.pods {
		switch {
		case p.Phase == Serving || p.Phase == Draining:
			p.advance(t, &d.stats)
			p.abandonExpired(&d.stats)
			if p.Phase == Draining && p.inFlight() == 0 {
				p.Phase = Deleted
			}
		case p.advanceStart(t):
			d.ready = append(d.ready, p)
			d.starts.Add(time.Duration((p.Ready - p.Bound) * float64(time.Second)))
		}
	}
	d.pods = slices.DeleteFunc(d.pods, func(p *Pod) bool { return p.Phase == Deleted })
}

// drainGateway routes the queued requests once a pod is ready.
func (d *Deployment) drainGateway(t float64) {
	for len(d.ready) > 0 && d.gateway.len() > 0 {
		q := d.gateway.pop()
		if t-q.At > d.cfg.Patience {
			if d.cfg.Model.Feasible(q.Prompt) {
				d.stats.abandoned(q.At)
			}
			continue
		}
		d.route(q, t)
	}
}

// scale creates or deletes pods.
func (d *Deployment) scale(replicas int, victims []string) {
	all, starting := d.Live()
	d.stats.scaled(d, replicas, starting)
	d.replicas = replicas
	for ; all < replicas; all++ {
		d.create(float64(d.now))
	}
	if all > replicas {
		d.delete(all-replicas, victims)
	}
}

// leave takes these pods out of the endpoints, and has all others serve.
func (d *Deployment) leave(names []string) {
	changed := false
	for _, p := range d.pods {
		leaves := p.Phase == Serving && slices.Contains(names, p.Name)
		switch {
		case leaves && p.LeftAt == 0:
			p.LeftAt, changed = float64(d.now), true
		case !leaves && p.LeftAt > 0 && p.Phase == Serving:
			p.LeftAt, changed = 0, true
		}
	}
	if !changed {
		return
	}
	d.ready = d.ready[:0]
	for _, p := range d.pods {
		if p.Phase == Serving && p.LeftAt == 0 {
			d.ready = append(d.ready, p)
		}
	}
}

// delete deletes n pods: first the victims, then in the order of the ReplicaSet controller
// (unscheduled, pending, not ready, youngest).
func (d *Deployment) delete(n int, victims []string) {
	live := make([]*Pod, 0, len(d.pods))
	for _, p := range d.pods {
		if p.Phase < Draining {
			live = append(live, p)
		}
	}
	rank := func(p *Pod) int {
		if slices.Contains(victims, p.Name) {
			return 0
		}
		return 1
	}
	slices.SortStableFunc(live, func(a, b *Pod) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(a.Phase, b.Phase), cmp.Compare(b.Since, a.Since), cmp.Compare(b.ID, a.ID))
	})
	for _, p := range live[:n] {
		if p.starting() {
			if p.Phase != Unschedulable { // such a pod has no node yet: nothing was started
				d.stats.startingDeleted(float64(d.now))
			}
			p.Phase = Deleted
			continue
		}
		p.Phase = Draining
		if p.inFlight() == 0 {
			p.Phase = Deleted
		}
	}
	d.ready = slices.DeleteFunc(d.ready, func(p *Pod) bool { return p.Phase != Serving || p.LeftAt > 0 })
	d.pods = slices.DeleteFunc(d.pods, func(p *Pod) bool { return p.Phase == Deleted })
}

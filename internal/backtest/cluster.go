// SPDX-License-Identifier: Apache-2.0

package backtest

import (
	"cmp"
	"math/rand/v2"
	"slices"
)

// cluster is one service under autoscalers that have all asked for the same so
// far: where they begin to differ it forks.
type cluster struct {
	m        *Model
	startup  Startup
	patience float64
	seed     uint64
	blind    bool // the autoscalers look at no GPU
	full     []spell
	chance   *rand.PCG // of the routing
	route    *rand.Rand
	scalers  []entrant

	now    int // whole seconds that are over
	end    int // when the replay ends; afterwards nothing is decided or counted
	spec   int // replicas that are asked for
	pods   []*pod
	ready  []*pod
	buffer fifo // requests that nobody can take, in a gateway
	made   int
	starts []float64 // how long the last pods took from a node to readiness

	seen [kept]snapshot
	none snapshot

	stats stats

	scratch struct { // of choices
		choices []choice
		whose   []int
	}
}

// autoscaler is a policy at work. It is asked once a second.
type autoscaler interface {
	// decide returns the replicas that there should be, and the names of pods
	// that should go first. want < 0: as they are.
	decide(c *cluster, now int) (want int, victims []string)
}

// entrant is one of a run's contenders.
type entrant struct {
	autoscaler
	index int // among the contenders
}

// newCluster starts a service with some replicas that serve.
func newCluster(cfg *Config, replicas int, need []float64, blind bool, scalers ...entrant) *cluster {
	c := &cluster{
		m: &cfg.Model, startup: cfg.Startup, patience: cfg.Patience, seed: cfg.Seed,
		chance: rand.NewPCG(cfg.Seed, 0x10ad), scalers: scalers, blind: blind,
		end: int(cfg.Seconds), spec: replicas,
	}
	c.route = rand.New(c.chance)
	c.full = c.startup.spells(cfg.Seed, cfg.Seconds)
	for i := range c.seen {
		c.seen[i].at = -1
	}
	c.stats.begin(cfg, need)
	for range replicas {
		p := c.create(0)
		p.phase, p.bound, p.runs, p.ready, p.since = serving, 0, 0, 0, -3600
		c.ready = append(c.ready, p)
	}
	return c
}

func (c *cluster) create(now float64) *pod {
	p := c.startup.newPod(c.m, c.patience, c.seed, c.made, now, c.full)
	p.blind = c.blind
	c.made++
	c.pods = append(c.pods, p)
	return p
}

// run takes in the requests of a slice that lasts until then, and returns the
// clusters that have forked off meanwhile, which are as far.
func (c *cluster) run(q []Request, until float64) (forks []*cluster) {
	for {
		next := float64(c.now + 1)
		for len(q) > 0 && q[0].At < next {
			c.offer(q[0])
			q = q[1:]
		}
		if next > until {
			return forks
		}
		for _, f := range c.tick(c.now + 1) {
			forks = append(forks, f)
			forks = append(forks, f.run(q, until)...)
		}
	}
}

// offer routes a request: of two replicas that chance names, to the one that
// has less to do, as Envoy's LEAST_REQUEST does.
func (c *cluster) offer(q Request) {
	if c.m.hopeless(q.Prompt) {
		if q.At >= c.stats.warm {
			c.stats.hopeless++
		}
	} else {
		c.stats.arrived(q.At)
	}
	if len(c.ready) == 0 {
		c.buffer.push(q)
		return
	}
	c.give(q, q.At)
}

func (c *cluster) give(q Request, now float64) {
	n := uint32(len(c.ready))
	p := c.ready[c.route.Uint32N(n)]
	p.advance(now, &c.stats)
	if n > 1 {
		other := c.ready[c.route.Uint32N(n)]
		other.advance(now, &c.stats)
		if other.load() < p.load() {
			p = other
		}
	}
	p.add(q, &c.stats)
}

// tick is the whole second now: pods move on, are looked at and are decided about.
func (c *cluster) tick(now int) (forks []*cluster) {
	t := float64(now)
	c.now = now
	for _, p := range c.pods {
		switch {
		case p.phase == serving || p.phase == draining:
			p.advance(t, &c.stats)
			p.drop(&c.stats)
			if p.phase == draining && p.load() == 0 {
				p.phase = gone
			}
		case p.tick(t):
			c.ready = append(c.ready, p)
			if c.starts = append(c.starts, p.ready-p.bound); len(c.starts) > 20 {
				c.starts = c.starts[1:]
			}
		}
	}
	c.pods = slices.DeleteFunc(c.pods, func(p *pod) bool { return p.phase == gone })
	for len(c.ready) > 0 && c.buffer.len() > 0 {
		q := c.buffer.pop()
		if t-q.At > c.patience {
			if !c.m.hopeless(q.Prompt) {
				c.stats.dropped(q.At)
			}
			continue
		}
		c.give(q, t)
	}
	if now > c.end {
		return nil
	}
	c.observe(now)
	forks = c.decide(now)
	c.stats.second(c)
	for _, f := range forks {
		f.stats.second(f)
	}
	return forks
}

// live is how many pods are not on their way out, and of those on the way in.
func (c *cluster) live() (all, starting int) {
	for _, p := range c.pods {
		if p.phase < draining {
			all++
			if p.starting() {
				starting++
			}
		}
	}
	return all, starting
}

// scale makes or deletes pods.
func (c *cluster) scale(want int, victims []string) {
	all, starting := c.live()
	c.stats.scaled(c, want, starting)
	c.spec = want
	for ; all < want; all++ {
		c.create(float64(c.now))
	}
	if all > want {
		c.delete(all-want, victims)
	}
}

// delete takes n pods away: those named first, then in the ReplicaSet
// controller's order (unscheduled, pending, not ready, youngest).
func (c *cluster) delete(n int, victims []string) {
	live := make([]*pod, 0, len(c.pods))
	for _, p := range c.pods {
		if p.phase < draining {
			live = append(live, p)
		}
	}
	named := func(p *pod) int {
		if slices.Contains(victims, p.name) {
			return 0
		}
		return 1
	}
	slices.SortStableFunc(live, func(a, b *pod) int {
		return cmp.Or(cmp.Compare(named(a), named(b)), cmp.Compare(a.phase, b.phase), cmp.Compare(b.since, a.since), cmp.Compare(b.id, a.id))
	})
	for _, p := range live[:n] {
		if p.starting() {
			if p.phase != waiting { // which holds nothing and is nothing on the way
				c.stats.gone(float64(c.now))
			}
			p.phase = gone
			continue
		}
		p.phase = draining
		if p.load() == 0 {
			p.phase = gone
		}
	}
	c.ready = slices.DeleteFunc(c.ready, func(p *pod) bool { return p.phase != serving })
	c.pods = slices.DeleteFunc(c.pods, func(p *pod) bool { return p.phase == gone })
}

// finish lets what has arrived be served, for ten minutes at most.
func (c *cluster) finish() {
	for range 600 {
		busy := c.buffer.len() > 0
		for _, p := range c.pods {
			busy = busy || p.load() > 0
		}
		if !busy {
			return
		}
		c.tick(c.now + 1)
	}
}

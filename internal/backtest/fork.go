// SPDX-License-Identifier: Apache-2.0

package backtest

import (
	"math/rand/v2"
	"slices"
)

// choice is what some of a cluster's autoscalers want.
type choice struct {
	want    int
	victims []string
	scalers []entrant
}

// decide asks the autoscalers and does what they want. The clusters that it
// returns are forks, for those that want something else than the first.
//
// Most settings of a grid do the same for a while, and some to the end: what
// they do is simulated once.
func (c *cluster) decide(now int) (forks []*cluster) {
	choices := c.choices(now)
	for i := 1; i < len(choices); i++ { // before anything is done
		forks = append(forks, c.fork(choices[i].scalers))
	}
	if len(choices) > 1 {
		c.scalers = choices[0].scalers
	}
	c.do(&choices[0])
	for i, f := range forks {
		f.do(&choices[i+1])
	}
	return forks
}

func (c *cluster) do(x *choice) {
	if x.want != c.spec {
		c.scale(x.want, x.victims)
	}
}

// choices is what the autoscalers want now. Whose each is, is filled in where
// there are several.
func (c *cluster) choices(now int) []choice {
	out, whose := c.scratch.choices[:0], c.scratch.whose[:0]
	for _, s := range c.scalers {
		want, victims := s.decide(c, now)
		if want < 0 || want == c.spec {
			want, victims = c.spec, nil
		}
		k := slices.IndexFunc(out, func(x choice) bool { return x.want == want && slices.Equal(x.victims, victims) })
		if k < 0 {
			k = len(out)
			out = append(out, choice{want: want, victims: victims})
		}
		whose = append(whose, k)
	}
	if len(out) > 1 {
		for i, k := range whose {
			out[k].scalers = append(out[k].scalers, c.scalers[i])
		}
	}
	c.scratch.choices, c.scratch.whose = out, whose
	return out
}

// fork copies the cluster for some of its autoscalers.
func (c *cluster) fork(scalers []entrant) *cluster {
	f := *c
	f.scalers = scalers
	f.scratch.choices, f.scratch.whose = nil, nil
	chance := *c.chance
	f.chance, f.route = &chance, rand.New(&chance)
	f.starts = slices.Clone(c.starts)
	f.buffer = c.buffer.clone()
	f.stats.points = slices.Clone(c.stats.points)
	for i := range f.seen {
		f.seen[i].pods = slices.Clone(c.seen[i].pods)
	}
	copies := make(map[*pod]*pod, len(c.pods))
	f.pods = make([]*pod, len(c.pods))
	for i, p := range c.pods {
		f.pods[i] = p.clone()
		copies[p] = f.pods[i]
	}
	f.ready = make([]*pod, len(c.ready))
	for i, p := range c.ready {
		f.ready[i] = copies[p]
	}
	return &f
}

func (p *pod) clone() *pod {
	q := *p
	q.decoding, q.prefill, q.wait = slices.Clone(p.decoding), p.prefill.clone(), p.wait.clone()
	return &q
}

func (f *fifo) clone() fifo { return fifo{q: slices.Clone(f.q[f.start:])} }

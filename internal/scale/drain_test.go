// SPDX-License-Identifier: Apache-2.0

package scale

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpupilot/gpupilot/internal/scale/drain"
)

// drainingPod is a pod with a server that counts its requests. It fails those that it has when
// it is deleted.
type drainingPod struct {
	name          string
	gated, silent bool
	closedAt      time.Time   // of its readiness gate; zero: open
	readyAt       time.Time   // when it serves
	requests      []time.Time // ends
	ordinal       int32
	unready       bool // although it has served
}

// How long the cluster takes: the kubelet to make a pod unready, proxies to send it no
// more requests.
const kubeletLag, proxyLag = time.Second, 3 * time.Second

// cluster is a workload with its controller and clients, one second at a time.
type cluster struct {
	t        *testing.T
	p        Policy
	state    State
	now      time.Time
	replicas int32
	servers  []*drainingPod
	created  int
	gated    bool
	ordered  bool
	budgets  []drain.Budget
	size     int // pods of a replica, which the budgets count; 0: 1
	random   *rand.Rand
	rate     float64 // requests/s of each server
	cut      int
	last     Decision
	restart  bool // the controller restarts in this second
}

func newCluster(t *testing.T, replicas int32) *cluster {
	t.Helper()
	p := Policy{
		Min: replicas, Max: replicas, Drain: 5 * time.Minute,
		Signals: []Signal{{Name: "requests", Target: 8, Law: Batching}}, Up: Rules{Tolerance: 0.1}, Down: Rules{Tolerance: 0.1},
	}
	c := &cluster{t: t, p: p, now: t0, replicas: replicas, gated: true, random: rand.New(rand.NewPCG(1, 2))}
	c.reconcile()
	for _, s := range c.servers {
		s.readyAt = t0.Add(-time.Hour)
	}
	return c
}

// want sets how many replicas are to serve.
func (c *cluster) want(n int32) { c.p.Min, c.p.Max = n, n }

func (c *cluster) observe() Observation {
	o := Observation{Replicas: c.replicas, Ordered: c.ordered, Disruptions: c.budgets}
	for _, s := range c.servers {
		r := Replica{Name: s.name, Gated: s.gated, Since: s.readyAt, Ordinal: s.ordinal}
		value := Reading{Value: float64(len(s.requests)), At: c.now, OK: !s.silent}
		switch {
		case !s.closedAt.IsZero():
			r.Phase, r.Since, r.Out, r.InFlight = Leaving, s.closedAt, c.now.Sub(s.closedAt) >= kubeletLag, value
		case c.now.Before(s.readyAt):
			r.Phase, r.Since = Starting, s.readyAt.Add(-3*time.Second)
		case s.unready:
			r.Phase, r.Out, r.InFlight = Starting, true, value
		}
		r.Readings = []Reading{value}
		for _, b := range c.budgets {
			r.Disrupts = append(r.Disrupts, slices.Repeat([]string{b.Name}, max(1, c.size))...)
		}
		o.Pods = append(o.Pods, r)
	}
	return o
}

// second is one second: requests end and arrive, the controller decides, the cluster follows.
func (c *cluster) second() {
	c.now = c.now.Add(time.Second)
	for _, s := range c.servers {
		s.requests = slices.DeleteFunc(s.requests, func(end time.Time) bool { return !end.After(c.now) })
		inEndpoints := !c.now.Before(s.readyAt) && (s.closedAt.IsZero() || c.now.Sub(s.closedAt) < proxyLag)
		if inEndpoints && c.random.Float64() < c.rate {
			s.requests = append(s.requests, c.now.Add(time.Duration(1+c.random.IntN(90))*time.Second))
		}
	}
	if c.restart {
		c.state, c.restart = State{}, false
	}
	c.last, c.state = Decide(c.p, c.observe(), c.state, c.now)
	for _, s := range c.servers {
		leaves := slices.Contains(c.last.Leave, s.name)
		switch {
		case leaves && s.closedAt.IsZero():
			s.closedAt = c.now
		case !leaves:
			s.closedAt = time.Time{}
		}
	}
	c.replicas = c.last.Replicas
	c.reconcile()
}

// reconcile creates and deletes pods as a ReplicaSet or a StatefulSet does.
func (c *cluster) reconcile() {
	for int32(len(c.servers)) < c.replicas {
		s := &drainingPod{name: fmt.Sprintf("p%d", c.created), gated: c.gated, readyAt: c.now.Add(3 * time.Second), ordinal: int32(len(c.servers))}
		c.created++
		c.servers = append(c.servers, s)
	}
	rank := func(s *drainingPod) int {
		marked, unready := slices.Contains(c.last.Victims, s.name), !s.closedAt.IsZero() && c.now.Sub(s.closedAt) >= kubeletLag || c.now.Before(s.readyAt)
		switch {
		case unready && marked:
			return 0
		case unready:
			return 1
		case marked:
			return 2
		}
		return 3
	}
	for int32(len(c.servers)) > c.replicas {
		order := slices.Clone(c.servers)
		slices.SortStableFunc(order, func(a, b *drainingPod) int {
			if c.ordered {
				return cmp.Compare(b.ordinal, a.ordinal)
			}
			return cmp.Compare(rank(a), rank(b))
		})
		gone := order[0]
		c.cut += len(gone.requests)
		c.servers = slices.DeleteFunc(c.servers, func(s *drainingPod) bool { return s == gone })
	}
}

// until runs until the replicas are n, and returns how long that took.
func (c *cluster) until(n int32, most time.Duration) time.Duration {
	c.t.Helper()
	began := c.now
	for c.replicas != n {
		if c.now.Sub(began) > most {
			c.t.Fatalf("%d replicas after %v, want %d: %s", c.replicas, most, n, c.last.Sentence())
		}
		c.second()
	}
	return c.now.Sub(began)
}

// 200 scale-downs of replicas with requests of 1 to 90 s cut none, whatever the workload
// is, and although the controller restarts: each waits no longer than the longest request,
// and the seconds that endpoints and readings take.
func TestDrainCutsNothing(t *testing.T) {
	for _, ordered := range []bool{false, true} {
		c := newCluster(t, 8)
		c.ordered, c.rate = ordered, 0.2
		longest := time.Duration(0)
		for i := range 200 {
			for range 20 {
				c.second()
			}
			n := c.replicas - 1 - int32(i%3)
			c.want(n)
			c.restart = i%10 == 9
			longest = max(longest, c.until(n, 2*time.Minute))
			c.want(8)
			c.until(8, time.Minute)
		}
		if c.cut > 0 || longest > 90*time.Second+10*time.Second {
			t.Errorf("ordered %v: %d requests cut, the longest scale-down took %v", ordered, c.cut, longest)
		}
		t.Logf("ordered %v: 200 scale-downs, %d requests cut, the longest took %v", ordered, c.cut, longest)
	}
}

// The same without the gate cuts many: the test can fail.
func TestWithoutTheGateRequestsAreCut(t *testing.T) {
	c := newCluster(t, 8)
	c.rate = 0.2
	for _, s := range c.servers {
		s.gated = false
	}
	for range 20 {
		c.second()
	}
	c.want(6)
	if took := c.until(6, time.Second); took > time.Second || c.cut == 0 {
		t.Errorf("took %v, %d requests cut", took, c.cut)
	}
	if got := c.last.Sentence(); !strings.Contains(got, "does not declare the readiness gate gpupilot.dev/serving") {
		t.Error(got)
	}
}

func TestDrainEndsAtItsDeadline(t *testing.T) {
	f := func(what string, change func(*drainingPod)) {
		t.Helper()
		c := newCluster(t, 4)
		c.p.Drain = time.Minute
		for _, s := range c.servers {
			change(s)
		}
		c.second()
		c.want(3)
		if took := c.until(3, 2*time.Minute); took < time.Minute || took > time.Minute+2*time.Second {
			t.Errorf("%s: the replica was removed after %v", what, took)
		}
	}
	f("a request that never ends", func(s *drainingPod) { s.requests = []time.Time{t0.Add(time.Hour)} })
	f("no metrics", func(s *drainingPod) { s.silent = true })
}

// A load that returns takes the replica back in the same second, although the policy
// wants scale-ups to wait.
func TestLoadTakesADrainingReplicaBack(t *testing.T) {
	c := newCluster(t, 4)
	c.p.Min, c.p.Max = 1, 8
	c.p.Down.Window, c.p.Up.Window = 0, 5*time.Minute
	load := func(n int) {
		for _, s := range c.servers {
			s.requests = nil
			for range n {
				s.requests = append(s.requests, c.now.Add(time.Hour))
			}
		}
	}
	load(8)
	for range 400 {
		c.second()
	}
	load(5)
	for range 60 {
		c.second()
	}
	if c.last.Leaving == 0 || c.replicas != 4 {
		t.Fatalf("%d leave, %d replicas: %s", c.last.Leaving, c.replicas, c.last.Sentence())
	}
	load(20)
	c.second()
	if c.last.Leaving != 0 || c.replicas != 4 || c.cut != 0 || !strings.Contains(c.last.Sentence(), "serve") || c.last.Rule != RuleDrain {
		t.Errorf("%d leave, %d replicas, %d cut: %s: %s", c.last.Leaving, c.replicas, c.cut, c.last.Rule, c.last.Sentence())
	}
	for range 20 {
		c.second()
	}
	if c.replicas < 4 || c.last.Leaving != 0 {
		t.Errorf("later %d leave, %d replicas", c.last.Leaving, c.replicas)
	}
}

func TestDisruptionBudgetHoldsTheScaleDown(t *testing.T) {
	c := newCluster(t, 4)
	c.budgets = []drain.Budget{{Name: "chat", Allowed: 0}}
	c.second()
	c.want(2)
	for range 10 {
		c.second()
	}
	if c.replicas != 4 || c.last.Leaving != 0 || c.last.Rule != RuleDisruption || !strings.Contains(c.last.Sentence(), "keep 4 instead of 2: PodDisruptionBudget chat allows no removal now") {
		t.Errorf("%d replicas, %d leave: %s", c.replicas, c.last.Leaving, c.last.Sentence())
	}
	c.budgets[0].Allowed = 1 // its controller does not see yet what left
	for range 5 {
		c.second()
	}
	if c.last.Leaving != 1 {
		t.Errorf("%d leave with one disruption allowed", c.last.Leaving)
	}
	c.until(2, time.Minute)
	unknown := c.observe()
	unknown.DisruptionsLost = true
	c.p.Min, c.p.Max = 1, 1
	if d, _ := Decide(c.p, unknown, c.state, c.now.Add(time.Second)); d.Replicas != 2 || len(d.Leave) != 0 {
		t.Errorf("budgets unknown: %s", d.Sentence())
	}
}

// A group of four pods leaves when a budget allows four disruptions.
func TestDisruptionBudgetCountsPodsOfGroups(t *testing.T) {
	c := newCluster(t, 4)
	c.size, c.budgets = 4, []drain.Budget{{Name: "chat", Allowed: 7}}
	c.second()
	c.want(1)
	for range 5 {
		c.second()
	}
	if c.last.Leaving != 1 || !strings.Contains(c.last.Sentence(), "PodDisruptionBudget chat allows no removal now") {
		t.Errorf("%d groups leave with 7 disruptions allowed: %s", c.last.Leaving, c.last.Sentence())
	}
}

// A StatefulSet loses its highest ordinals: exactly they leave, whatever others carry.
func TestOrderedDrain(t *testing.T) {
	c := newCluster(t, 4)
	c.ordered = true
	c.servers[3].requests = []time.Time{t0.Add(40 * time.Second)}
	c.second()
	c.want(2)
	c.second()
	if got := c.last.Leave; !slices.Equal(got, []string{"p2", "p3"}) {
		t.Fatalf("%q leave", got)
	}
	for c.now.Before(t0.Add(38 * time.Second)) { // p2 is idle, and waits for p3
		c.second()
	}
	if c.replicas != 4 {
		t.Errorf("%d replicas while p3 has a request", c.replicas)
	}
	c.until(2, 20*time.Second)
	if c.cut != 0 {
		t.Errorf("%d requests cut", c.cut)
	}
}

// A starting replica goes at once, and before one that serves.
func TestStartingReplicasDoNotDrain(t *testing.T) {
	c := newCluster(t, 3)
	c.second()
	c.want(4)
	c.second()
	c.want(3)
	c.second()
	if c.replicas != 3 || c.last.Leaving != 0 {
		t.Errorf("%d replicas, %d leave", c.replicas, c.last.Leaving)
	}
}

// A replica that has served and is no longer ready, such as one that is too busy for its probe, has requests: it is the
// first to go, and leaves as others do. A PodDisruptionBudget does not protect it.
func TestUnreadyReplicasDrain(t *testing.T) {
	for _, ordered := range []bool{false, true} {
		c := newCluster(t, 3)
		c.ordered = ordered
		c.servers[2].unready, c.servers[2].requests = true, []time.Time{t0.Add(40 * time.Second)}
		c.budgets = []drain.Budget{{Name: "chat", Allowed: 0}}
		c.second()
		c.want(2)
		c.second()
		if c.replicas != 3 || c.last.Leaving != 1 || !slices.Equal(c.last.Leave, []string{"p2"}) {
			t.Fatalf("ordered %v: %d replicas, %q leave: %s", ordered, c.replicas, c.last.Leave, c.last.Sentence())
		}
		if took := c.until(2, time.Minute); took < 35*time.Second || took > 45*time.Second || c.cut != 0 {
			t.Errorf("ordered %v: removed after %v, %d requests cut", ordered, took, c.cut)
		}
	}
}

// A workload of a thousand replicas drains a bounded number at a time.
func TestDrainIsBounded(t *testing.T) {
	c := newCluster(t, 1000)
	for _, s := range c.servers {
		s.requests = []time.Time{t0.Add(20 * time.Second)}
	}
	c.second()
	c.want(1)
	most := 0
	for range 600 {
		c.second()
		most = max(most, len(c.last.Leave))
	}
	if most > 2*drain.Most || c.replicas != 1 || c.cut != 0 {
		t.Errorf("up to %d leave, %d replicas are left, %d cut", most, c.replicas, c.cut)
	}
}

// Without spec.drain, what an earlier spec took out of the endpoints serves again.
func TestDrainTakenFromTheSpec(t *testing.T) {
	c := newCluster(t, 4)
	for _, s := range c.servers {
		s.requests = []time.Time{t0.Add(time.Hour)}
	}
	c.second()
	c.want(3)
	c.second()
	if c.last.Leaving != 1 {
		t.Fatal(c.last.Sentence())
	}
	c.p.Drain = 0
	c.want(4)
	c.second()
	if c.replicas != 4 || len(c.last.Leave) != 0 {
		t.Errorf("%d replicas, %q leave", c.replicas, c.last.Leave)
	}
}

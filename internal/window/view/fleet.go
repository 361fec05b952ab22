// SPDX-License-Identifier: Apache-2.0

package view

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/gpupilot/gpupilot/internal/base/excerpt"
	"github.com/gpupilot/gpupilot/internal/gpu"
)

// The limits of a view. They keep it below 300 kB for any fleet size and any length
// of names: the bytes add up to 297 kB. The page requests the rest in pages.
const (
	maxWholeGPUs   = 400 // the largest fleet that is sent whole
	maxPools       = 100
	maxProblems    = 50
	maxNamespaces  = 400
	bytesNodes     = 125_000
	bytesPools     = 25_000
	bytesProblems  = 20_000
	BytesTargets   = 25_000
	bytesWorkloads = 50_000
	bytesHPAs      = 12_000
	bytesRecent    = 30_000
	bytesNames     = 10_000 // of namespaces

	maxHPAs         = 10  // of a namespace
	maxModels       = 8   // of a pool
	maxCells        = 128 // of a node
	maxNodeProblems = 3
	maxProblemBytes = 200
)

// The refresh interval of a view, and of one of a fleet that is not sent whole.
const (
	RefreshSmall = time.Second
	RefreshLarge = 2 * time.Second
)

// staleAfter returns the age above which a value does not count. The page uses the
// same rule.
func (v *View) staleAfter() time.Duration { return max(5*time.Second, v.MaxAge) }

// State says whether a pod holds a GPU, and whether it uses it.
type State string

// The states of a GPU.
const (
	Active State = "active"    // a pod holds it, and its fresh utilisation is at least 1 %
	Idle   State = "idle-held" // a pod holds it, and its fresh utilisation is below 1 %
	Free   State = "free"      // no pod holds it, and it has a fresh utilisation
	Stale  State = "stale"     // it has no fresh utilisation, or it is lost
)

// State returns the state of one of the view's GPUs.
func (v *View) State(g *GPU) State { return g.state(v.staleAfter()) }

func (g *GPU) state(staleAfter time.Duration) State {
	switch {
	case g.Lost || g.Utilization == nil || g.Age > staleAfter:
		return Stale
	case len(g.Owners) == 0:
		return Free
	case gpu.IsActive(*g.Utilization):
		return Active
	}
	return Idle
}

// Temperature returns the temperature of one of the view's GPUs in °C; nil: it has no fresh one.
func (v *View) Temperature(g *GPU) *float64 { return g.freshTemperature(v.staleAfter()) }

func (g *GPU) freshTemperature(staleAfter time.Duration) *float64 {
	if g.Lost || g.Age > staleAfter {
		return nil
	}
	return g.TemperatureC
}

// hottest returns the GPU with the highest fresh temperature, of the first of several nodes; nil:
// there is none.
func (v *View) hottest(nodes []NodeSummary) *Hottest {
	at := -1
	for i := range nodes {
		if c := nodes[i].MaxTemperatureC; c != nil && (at < 0 || *c > *nodes[at].MaxTemperatureC) {
			at = i
		}
	}
	if at < 0 {
		return nil
	}
	for i := range v.Nodes[at].GPUs { // nodes are in the view's order
		if g := &v.Nodes[at].GPUs[i]; v.Temperature(g) != nil && *g.TemperatureC == *nodes[at].MaxTemperatureC {
			return &Hottest{Node: nodes[at].Name, UUID: g.UUID, Index: g.Index, Cell: i, TemperatureC: *g.TemperatureC}
		}
	}
	return nil
}

// count adds a GPU to the node's counts and cells.
func (n *NodeSummary) count(g *GPU, staleAfter time.Duration) {
	n.GPUs++
	if c := g.freshTemperature(staleAfter); c != nil && (n.MaxTemperatureC == nil || *c > *n.MaxTemperatureC) {
		n.MaxTemperatureC = c
	}
	state := g.state(staleAfter)
	if len(g.Owners) > 0 {
		n.Allocated++
	}
	n.cost.count(g, state, g.USDPerHour)
	cell := byte('.')
	switch state {
	case Stale:
		n.Stale++
		if cell = '-'; g.Lost {
			cell = 'x'
		}
	case Free:
		n.Free++
	case Active:
		n.Active++
		cell = n.used(*g.Utilization)
	case Idle:
		n.Idle++
		cell = n.used(*g.Utilization)
	}
	if len(n.Cells) < maxCells {
		n.Cells += string(cell)
	}
}

// used adds the utilisation of an allocated GPU, and returns its cell.
func (n *NodeSummary) used(utilization float64) byte {
	n.sum += utilization
	n.fresh++
	return '0' + byte(min(4, max(0, utilization/20)))
}

// add adds a node's counts.
func (c *Counts) add(n *Counts) {
	c.Nodes += n.Nodes
	c.ProblemNodes += n.ProblemNodes
	c.ProblemGPUs += n.ProblemGPUs
	c.GPUs += n.GPUs
	c.Allocated += n.Allocated
	c.Active += n.Active
	c.Idle += n.Idle
	c.Free += n.Free
	c.Stale += n.Stale
	c.sum += n.sum
	c.fresh += n.fresh
	c.cost.add(&n.cost)
	if n.MaxTemperatureC != nil && (c.MaxTemperatureC == nil || *n.MaxTemperatureC > *c.MaxTemperatureC) {
		c.MaxTemperatureC = n.MaxTemperatureC
	}
}

// mean sets Utilization and Cost.
func (c *Counts) mean() {
	c.Cost = c.cost.known()
	if c.fresh > 0 {
		u := c.sum / float64(c.fresh)
		c.Utilization = &u
	}
}

// NodeSummaries counts each node's GPUs and lists its problems, in the view's order.
func (v *View) NodeSummaries() []NodeSummary {
	faults := v.faultsByNode()
	out := make([]NodeSummary, len(v.Nodes))
	stale := v.staleAfter()
	for i := range v.Nodes {
		from, n := &v.Nodes[i], &out[i]
		n.Name, n.Pool, n.Model, n.Nodes = from.Name, from.Pool, from.Model, 1
		for j := range from.GPUs {
			n.count(&from.GPUs[j], stale)
		}
		n.mean()
		n.severe = n.Stale > 0 || from.Fault != ""
		if from.Fault != "" {
			n.problem(from.Fault, from.FaultSince)
		}
		for _, t := range faults[from.Name] {
			since := time.Time{}
			if !t.Up {
				since = t.LastSuccess
			}
			n.problem(t.Kind+": "+t.fault(), since)
		}
		if n.Stale > 0 {
			n.problem(fmt.Sprintf("%d of %d GPUs stale", n.Stale, n.GPUs), time.Time{})
		}
		if len(n.Problems) > 0 {
			n.ProblemNodes, n.ProblemGPUs = 1, cmp.Or(v.troubled(from), n.GPUs)
		}
	}
	return out
}

// troubled returns the number of a node's GPUs that are stale or that its condition names.
func (v *View) troubled(n *Node) (gpus int) {
	for i := range n.GPUs {
		g := &n.GPUs[i]
		whole, _, _ := strings.Cut(g.UUID, "/") // as of gpu.IsLost
		if v.State(g) == Stale || n.Fault != "" && strings.Contains(n.Fault, whole) {
			gpus++
		}
	}
	return gpus
}

// problem adds a problem, and since when there is one; zero: unknown.
func (n *NodeSummary) problem(text string, since time.Time) {
	if n.ProblemSince.IsZero() {
		n.ProblemSince = since
	}
	if len(n.Problems) < maxNodeProblems {
		n.Problems = append(n.Problems, excerpt.Of(text, maxProblemBytes))
	}
}

// faultsByNode returns the exporters with a fault, by node.
func (v *View) faultsByNode() map[string][]*Target {
	out := map[string][]*Target{}
	for i := range v.Targets {
		if t := &v.Targets[i]; t.Node != "" && t.Kind != KindPod && t.fault() != "" {
			out[t.Node] = append(out[t.Node], t)
		}
	}
	return out
}

// MaxName is the length limit of Kubernetes objects' names.
const MaxName = 253

// KindPod is the kind of a target that is a workload's own pod.
const KindPod = "pod"

// fault returns the fault of a target; empty if there is none. A starting pod that
// does not answer is not a fault.
func (t *Target) fault() string {
	switch {
	case !t.Up && t.Starting.IsZero():
		return cmp.Or(t.Error, "no answer yet")
	case t.Contradiction != "":
		return t.Contradiction
	case t.Limited != "":
		return t.Limited
	case t.Frozen > 0:
		return fmt.Sprintf("%d devices whose values do not change", t.Frozen)
	case t.OutOfRange > 0:
		return fmt.Sprintf("%d values out of their range", t.OutOfRange)
	}
	return ""
}

// poolsOf sums the nodes by pool, sorted by name. If there are more than maxPools, it
// keeps those with the most GPUs.
func poolsOf(nodes []NodeSummary) (pools []Pool, omitted int) {
	byName := map[string]*Pool{}
	models := map[string]map[string]bool{}
	for i := range nodes {
		n := &nodes[i]
		p := byName[n.Pool]
		if p == nil {
			p = &Pool{Name: n.Pool}
			byName[n.Pool], models[n.Pool] = p, map[string]bool{}
		}
		p.add(&n.Counts)
		if n.Model != "" {
			models[n.Pool][n.Model] = true
		}
	}
	pools = make([]Pool, 0, len(byName))
	for name, p := range byName {
		p.mean()
		p.Models = slices.Sorted(maps.Keys(models[name]))
		p.Models = p.Models[:min(len(p.Models), maxModels)]
		pools = append(pools, *p)
	}
	slices.SortFunc(pools, func(a, b Pool) int { return cmp.Or(cmp.Compare(b.GPUs, a.GPUs), cmp.Compare(a.Name, b.Name)) })
	pools, omitted = Fit(pools, maxPools, bytesPools)
	slices.SortFunc(pools, func(a, b Pool) int { return cmp.Compare(a.Name, b.Name) })
	return pools, omitted
}

// Fit returns the first entries of a list that fit: at most n entries and size bytes
// of JSON. It omits an entry of more than a quarter of size, so that one long entry
// does not displace many others.
func Fit[T any](list []T, n, size int) (kept []T, omitted int) {
	kept = make([]T, 0, min(len(list), n))
	used := 0
	for i := range list {
		if len(kept) == n {
			break
		}
		b, err := json.Marshal(&list[i])
		if err != nil || len(b) > size/4 {
			continue
		}
		if used += len(b) + 1; used > size {
			break
		}
		kept = append(kept, list[i])
	}
	return kept, len(list) - len(kept)
}

// Bounded returns v with its sums, and with lists shortened to the limits.
func (v *View) Bounded(nodes []NodeSummary, seesNodes bool) View {
	out := *v
	for i := range nodes {
		out.Fleet.add(&nodes[i].Counts)
	}
	out.Fleet.mean()
	out.Hottest = v.hottest(nodes)
	out.Targeted = answersOf(v.Targets)
	if seesNodes {
		out.Pools, out.Omitted.Pools = poolsOf(nodes)
	}
	out.Problems, out.Omitted.Problems = problemsOf(nodes)
	out.Refresh = RefreshSmall
	if out.Nodes, out.Omitted.Nodes = Fit(v.Nodes, len(v.Nodes), bytesNodes); out.Fleet.GPUs > maxWholeGPUs || out.Omitted.Nodes > 0 {
		out.Nodes, out.Omitted.Nodes, out.Refresh = []Node{}, len(v.Nodes), RefreshLarge
	}
	if out.Targets, out.Omitted.Targets = Fit(v.Targets, len(v.Targets), BytesTargets); out.Omitted.Targets > 0 {
		out.Targets, out.Omitted.Targets = Fit(faultsFirst(v.Targets), len(v.Targets), BytesTargets)
	}
	if out.Workloads, out.Omitted.Workloads = Fit(v.Workloads, len(v.Workloads), bytesWorkloads); out.Omitted.Workloads > 0 {
		short := withoutSteps(problemsFirst(v.Workloads))
		out.Workloads, out.Omitted.Workloads = Fit(short, len(short), bytesWorkloads)
	}
	mine := map[string]int{} // by namespace: those with a problem come first, and the problems of one namespace displace no other
	hpas := slices.DeleteFunc(slices.Clone(v.HPAs), func(h HPA) bool { mine[h.Namespace]++; return mine[h.Namespace] > maxHPAs })
	out.HPAs, _ = Fit(hpas, len(hpas), bytesHPAs)
	out.Omitted.HPAs = len(v.HPAs) - len(out.HPAs)
	out.Recent, out.Omitted.Recent = Fit(v.Recent, len(v.Recent), bytesRecent)
	if v.Namespaces != nil {
		out.Namespaces, out.Omitted.Namespaces = Fit(v.Namespaces, maxNamespaces, bytesNames)
	}
	out.LeaderID, out.Version = excerpt.Of(v.LeaderID, MaxName), excerpt.Of(v.Version, MaxName)
	return out
}

func answersOf(targets []Target) (a Answers) {
	a.Targets = len(targets)
	for i := range targets {
		switch {
		case targets[i].Up:
			a.Up++
		case !targets[i].Starting.IsZero():
			a.Starting++
		}
	}
	return a
}

// faultsFirst returns the targets with a fault, then those of starting pods.
func faultsFirst(targets []Target) (out []Target) {
	var starting []Target
	for i := range targets {
		switch {
		case targets[i].fault() != "":
			out = append(out, targets[i])
		case !targets[i].Up:
			starting = append(starting, targets[i])
		}
	}
	return append(out, starting...)
}

// problemsFirst returns the workloads with a problem, then the others.
func problemsFirst(all []Workload) []Workload {
	out := slices.Clone(all)
	slices.SortStableFunc(out, func(a, b Workload) int {
		has := func(w *Workload) int {
			if w.Problem != "" {
				return 0
			}
			return 1
		}
		return cmp.Compare(has(&a), has(&b))
	})
	return out
}

// withoutSteps returns the workloads with decisions that have no steps and only the
// signals' newest values.
func withoutSteps(all []Workload) []Workload {
	for i := range all {
		if d := all[i].Decision; d != nil {
			short := *d
			short.Steps = nil
			all[i].Decision = &short
		}
	}
	return all
}

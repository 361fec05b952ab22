// SPDX-License-Identifier: Apache-2.0

package top

import (
	"fmt"
	"strings"
	"testing"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/ansi"

	"github.com/gpupilot/gpupilot/internal/serve/webui"
	"github.com/gpupilot/gpupilot/internal/window/view"
)

// asked is a fleet of that many nodes in which the answers are known: one GPU is hot, and each has a price.
func asked(nodes int) view.View {
	v := large(nodes)
	v.Targets = nil
	for i := range v.Nodes { // a hundred silent nodes of 10,000
		if n := &v.Nodes[i]; i%100 == 7 {
			v.Targets = append(v.Targets, view.Target{Name: "agent/" + n.Name, Kind: "agent", Node: n.Name, Error: "i/o timeout", LastSuccess: noon.Add(-time.Duration(i) * time.Second)})
			for j := range n.GPUs {
				n.GPUs[j].Age = time.Minute
			}
		}
	}
	for i := range v.Workloads {
		v.Workloads[i].Deletion = "the replicas stay (onDelete: Keep)"
	}
	for i := range v.Nodes {
		for j := range v.Nodes[i].GPUs {
			g := &v.Nodes[i].GPUs[j]
			g.TemperatureC, g.USDPerHour = ptr(float64(40+(i+j)%30)), ptr(2)
			if len(g.Owners) > 0 && *g.Utilization == 0 {
				g.Utilization = ptr(1)
			}
		}
	}
	n := &v.Nodes[nodes/2]
	n.GPUs[3].TemperatureC = ptr(91)
	n.Fault, n.FaultSince, n.GPUs[5].Lost = "GPULost: GPU 5", noon.Add(-2*time.Hour), true
	n.GPUs[4].Utilization, n.GPUs[4].Owners[0].Pod, n.GPUs[4].IdleSince = ptr(0), "notebook-ann", noon.Add(-3*time.Hour)
	n.GPUs[4].IdleAtLeast = true
	if nodes > 3 { // many pods hold one, and the last node's by name holds three
		for i := 1; i < nodes-1; i++ {
			if g := &v.Nodes[i].GPUs[4]; i != nodes/2 {
				g.Utilization = ptr(0)
			}
		}
		for j := range 3 {
			g := &v.Nodes[nodes-1].GPUs[j]
			g.Utilization, g.Owners[0], g.IdleSince = ptr(0), n.GPUs[4].Owners[0], noon.Add(-time.Duration(4+j)*time.Hour)
		}
	}
	return v
}

// The five questions that people ask are answered by a few keys, at 24 GPUs and at 80,000.
func TestFiveQuestions(t *testing.T) {
	for _, nodes := range []int{3, 10_000} {
		v := asked(nodes)
		node, namespace := v.Nodes[nodes/2].Name, v.Nodes[nodes/2].GPUs[0].Owners[0].Namespace
		p := webui.New(fixed{v}, nil)
		p.Prices = all2
		source := &Controller{API: &api{handler: p.Handler()}, Name: "prod.example"}
		f := func(question string, keys []string, want ...string) {
			t.Helper()
			m := screen(t, nil, 120, 40, func(c *Config) { c.Source = source })
			turn := func() { m.busy = false; m.Update(m.fetch()()) } // what a tick does
			turn()
			for _, k := range keys {
				press(m, k)
				turn()
			}
			for _, w := range want {
				if !strings.Contains(shown(m), w) {
					t.Errorf("%d nodes: %s, by %q: lacks %q:\n%s", nodes, question, keys, w, shown(m))
				}
			}
		}
		f("which GPU is hot", nil, "hottest 91 °C "+node+":3", " · use of held ")
		f("which GPU is hot, and whose", []string{"3", "s", "s", "s"}, "°C↓", "91  "+namespace+fmt.Sprintf("/chat-%d-3", nodes/2))
		idle, most, cost, since, broken, free := 1, "1", "2.00", "≥6.00", 1, nodes*2
		if nodes > 3 {
			idle, most, cost, since, broken, free = nodes-2+3-100, "4", "8.00", "≥36.00", 101, (nodes-100)*2
			f("what is broken, the most GPUs first", nil, "PROBLEMS\n  node-00007 and 99 other nodes of pool-7, 800 GPUs, the first for 2h45m: agent: i/o timeout; 8 of 8 GPUs stale\n  "+node)
		}
		f("who idles", []string{"6"}, fmt.Sprintf("%s/notebook-ann  %11s", namespace, most), cost, "IDLE USD", since, "IDLE USD: the cost since each is idle, in all ≥")
		f("since when", []string{"6"}, "IDLE FOR", "≥3h00m", "IDLE FOR: since the last use of these GPUs; ≥: or more")
		f("since when, at a glance", nil, "notebook-ann  holds "+most+" idle", ", for ≥3h00m, "+cost+" USD/h, "+since+" USD since each is idle")
		f("why that many replicas, in the list", []string{"4"}, "3+1/4/12", "REPLICAS: serving + starting / desired / maximum")
		f("who idles, at a glance", nil, fmt.Sprintf("%s idle-held", grouped(idle)), fmt.Sprintf("IDLE-HELD\n  %s/notebook-ann  holds %s idle", namespace, most))
		f("why that many replicas", []string{"4"}, "WHY", "llm/chat  ", "  vllm requests: 12.1 is within 10 % of the target 12.5: no change")
		f("why, and what would change it", []string{"4", "down", "enter"}, "llm/chat", "  why 4 replicas         vllm requests: 12.1 is within 10 % of the target 12.5: no change",
			"  what would change it   5 replicas if vllm requests is above 13.8 (now 12.1)", "                         3 replicas if vllm requests is below 9.1 for 5 min (now 12.1)")
		f("what a deletion does", []string{"4", "down", "enter"}, "when it is deleted, the replicas stay (onDelete: Keep)")
		f("what is broken", nil, fmt.Sprintf("%d of %s with problems", broken, plural(nodes, "node")), "1 of 2 workloads", "  "+node+" of pool-"+node[len(node)-1:]+", 1 GPU, for 2h00m: GPULost: GPU 5; 1 of 8 GPUs stale", "ml/render  SignalsReadable is False")
		f("what does it cost", nil, fmt.Sprintf("USD/h: %s held (%s idle-held) + %s free · ", grouped(nodes*6*2), grouped(2*idle), grouped(2*free)))
	}
}

// Of a list that is read in part, another order reads another part; where the controller does not
// know the order, top says what is sorted.
func TestSortOfAPart(t *testing.T) {
	a := serve(asked(1000))
	m := screen(t, nil, 120, 40, func(c *Config) { c.Source, c.View = &Controller{API: a}, GPUs })
	turn := func() { m.busy = false; m.Update(m.fetch()()) }
	turn()
	for key, want := range map[string]string{"-temperature_celsius": "sort=temperature", "-utilization_percent": "sort=utilization", "gpu": "sort=name"} {
		m.sortBy(key)
		turn()
		if got := a.requests[len(a.requests)-1]; !strings.Contains(got, want) || m.note != "" {
			t.Errorf("by %s: %s, note %q", key, got, m.note)
		}
	}
	m.offset = 200
	if m.sortBy("-power_watts"); m.offset != 0 || !strings.Contains(m.note, "not all of them") {
		t.Errorf("offset %d, note %q", m.offset, m.note)
	}
}

// Nothing of a detail is cut, on a small screen too: what is too long goes on below, between words.
func TestDetailsAreWhole(t *testing.T) {
	reason := "vllm requests: 10.1 requests/s ÷ 2.6 per replica = 3.88, so 4 replicas (22.1 in flight per replica, learned target 12.5), which is held for 5m0s after the last scale-up, until 12:03:00 at the latest"
	v := fleet()
	w := &v.Workloads[0]
	w.Decision.Steps[0].Sentence, w.Problem = reason, reason
	w.Signals[0].Name = "formula: max(queue_depth, kv_cache_usage) of the prefill pods"
	w.Target = "a-workload-whose-name-is-longer-than-most-names-in-this-cluster-are"
	v.Nodes[0].GPUs[1].Owners = nil
	for i := range 4 {
		v.Nodes[0].GPUs[1].Owners = append(v.Nodes[0].GPUs[1].Owners, view.Owner{Namespace: "research", Pod: fmt.Sprintf("a-notebook-with-a-long-name-%d", i)})
	}
	for _, width := range []int{80, 120} {
		m := screen(t, read(t, v, &Request{}), width, 24, nil)
		f := func(keys []string, want ...string) {
			t.Helper()
			press(m, keys...)
			m.Update(tea.WindowSizeMsg{Width: width, Height: 100})
			var lines []string
			for _, l := range m.Frame()[headLines:99] {
				lines = append(lines, strings.TrimSpace(ansi.Strip(l)))
			}
			text := strings.TrimSpace(strings.Join(lines, " "))
			for _, x := range want {
				if !strings.Contains(strings.ReplaceAll(text, " ", ""), strings.ReplaceAll(x, " ", "")) { // a name ends a line behind a hyphen
					t.Errorf("%d cells, %q: lacks %q:\n%s", width, keys, x, shown(m))
				}
			}
			if strings.Contains(text, "…") {
				t.Errorf("%d cells, %q: something is cut:\n%s", width, keys, shown(m))
			}
			m.Update(tea.WindowSizeMsg{Width: width, Height: 24})
			press(m, "pgdown", "pgdown")
			if last := text[strings.LastIndexByte(text, ' ')+1:]; !strings.Contains(shown(m), last) {
				t.Errorf("%d cells, %q: the end %q cannot be reached:\n%s", width, keys, last, shown(m))
			}
			press(m, "esc")
		}
		f([]string{"4", "down", "enter"}, "llm/chat", reason, w.Signals[0].Name+" 12.1, target 12.5", w.Target)
		f([]string{"2", "/", "highgpu-0", "enter", "enter"}, "research/a-notebook-with-a-long-name-3")
	}
}

// A controller that does not tell since when a GPU is idle, and an agent, leave what top has seen itself.
func TestIdleAsSeen(t *testing.T) {
	v := fleet()
	for i := range v.Nodes {
		for j := range v.Nodes[i].GPUs {
			v.Nodes[i].GPUs[j].IdleSince, v.Nodes[i].GPUs[j].IdleAtLeast = time.Time{}, false
		}
	}
	m := screen(t, read(t, v, &Request{}), 80, 24, nil)
	if press(m, "6"); !strings.Contains(shown(m), "≥10s") {
		t.Errorf("%s", shown(m))
	}
}

// SPDX-License-Identifier: Apache-2.0

package top

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"testing"
	"time"

	"github.com/gpupilot/gpupilot/internal/scale"
	"github.com/gpupilot/gpupilot/internal/serve/webui"
	"github.com/gpupilot/gpupilot/internal/window/view"
)

// noon is the time of the tests' fleets.
var noon = time.Date(2026, 11, 24, 12, 0, 0, 0, time.UTC)

func ptr(v float64) *float64 { return &v }

// fixed is a controller with one view.
type fixed struct{ view view.View }

func (f fixed) View() view.View                             { return f.view }
func (f fixed) History(string, string) (view.History, bool) { return view.History{}, false }
func (f fixed) Workload(namespace, name string) (d view.WorkloadDetail, ok bool) {
	for _, d.Workload = range f.view.Workloads {
		if d.Workload.Namespace == namespace && d.Workload.Name == name {
			d.Changes = []string{"5 replicas if vllm requests is above 13.8 (now 12.1)", "3 replicas if vllm requests is below 9.1 for 5 min (now 12.1)"}
			return d, true
		}
	}
	return d, false
}
func (f fixed) Device(string, string) (view.Device, bool)      { return view.Device{}, false }
func (f fixed) GPUHours(time.Time, time.Time) []webui.GPUHours { return nil }
func (f fixed) Minutes(string, string, *view.MinuteQuery) (m view.Minutes, ok bool, err error) {
	return m, false, nil
}

// api reads a handler's JSON, and counts the requests.
type api struct {
	handler  http.Handler
	requests []string
}

func serve(v view.View) *api { return &api{handler: webui.New(fixed{v}, nil).Handler()} }

func (a *api) Get(ctx context.Context, path string, query url.Values, into any) error {
	a.requests = append(a.requests, path+"?"+query.Encode())
	w := httptest.NewRecorder()
	a.handler.ServeHTTP(w, httptest.NewRequestWithContext(ctx, http.MethodGet, "/"+path+"?"+query.Encode(), http.NoBody))
	if w.Code != http.StatusOK {
		return fmt.Errorf("%d: %s", w.Code, w.Body)
	}
	return json.Unmarshal(w.Body.Bytes(), into)
}

// fleet is three nodes of eight GPUs in two pools, as a team sees them: three GPUs are idle-held,
// one is hot, one is stale, and a node's agent does not answer.
func fleet() view.View {
	v := view.View{Time: noon, MaxAge: 5 * time.Second, Version: "v0.9.0", Leader: true, LeaderID: "controller-0"}
	for n, pool := range []string{"a3-highgpu", "a3-highgpu", "l4"} {
		node := view.Node{Name: fmt.Sprintf("gke-%s-%d", pool, n), Pool: pool, Model: "NVIDIA-H100-80GB-HBM3"}
		for i := range 8 {
			g := view.GPU{
				UUID: fmt.Sprintf("GPU-%d%d0f1e2d-0000-0000-0000-%012d", n, i, i), Utilization: ptr(float64((37*n + 13*i) % 101)), MemoryUsedMiB: ptr(61000),
				MemoryTotalMiB: ptr(81559), PowerWatts: ptr(412.25), TemperatureC: ptr(float64(50 + i)), Age: time.Second,
			}
			if n != 2 { // whose exporter does not tell it
				g.Index = &i
			}
			if i < 6 {
				g.Owners = []view.Owner{{Namespace: "llm", Pod: fmt.Sprintf("chat-6b8f9c7d4-%d%d", n, i/2), Container: "server"}}
				g.HeldSince = noon.Add(-time.Duration(n+1) * 47 * time.Minute)
			} else {
				g.Utilization, g.MemoryUsedMiB, g.PowerWatts = ptr(0), ptr(4), ptr(71)
			}
			node.GPUs = append(node.GPUs, g)
		}
		v.Nodes = append(v.Nodes, node)
		v.Targets = append(v.Targets, view.Target{Name: "agent/" + node.Name, Kind: "agent", Node: node.Name, URL: "http://10.0.0.1:9400/metrics", Up: n != 2, Error: map[bool]string{true: "dial tcp 10.0.0.1:9400: i/o timeout"}[n == 2]})
	}
	for i := range 3 {
		g := &v.Nodes[1].GPUs[i]
		g.Utilization, g.Owners[0].Pod, g.IdleSince = ptr(0), "notebook-ann", noon.Add(-72*time.Minute-time.Duration(i)*time.Hour)
	}
	v.Nodes[0].GPUs[0].IdleSince, v.Nodes[0].GPUs[0].IdleAtLeast = noon.Add(-20*time.Minute), true
	v.Nodes[0].GPUs[5].TemperatureC = ptr(88)
	v.Nodes[2].GPUs[7].Age, v.Nodes[2].GPUs[7].Utilization = time.Minute, ptr(10)
	decision := func(ago time.Duration, from, to int32, rule scale.Rule, sentence string) view.Decision {
		return view.Decision{
			Time: noon.Add(-ago), Current: from, Replicas: to, Serving: from, Rule: rule, Why: sentence, Sentence: "a step that does not decide; " + sentence,
			Steps: []view.Step{{Rule: rule, Before: from, After: to, Sentence: sentence}},
		}
	}
	up := decision(3*time.Minute, 2, 4, "Demand", "vllm requests: 10.1 requests/s ÷ 2.6 per replica = 3.88, so 4 replicas (22.1 in flight per replica, learned target 12.5)")
	last := decision(2*time.Second, 4, 4, "Tolerance", "vllm requests: 12.1 is within 10 % of the target 12.5: no change")
	last.Serving, last.Starting = 3, 1
	v.Workloads = []view.Workload{
		{
			Namespace: "llm", Name: "chat", Kind: "Deployment", Target: "chat", Actuation: "Scale", Min: 1, Max: 12, Ready: true,
			Signals:    []view.Signal{{Name: "vllm requests", Value: ptr(12.1), Target: 12.5}, {Name: "vllm KV cache", Unit: "%", Value: ptr(61), Target: 80}},
			Objectives: []view.Objective{{Signal: "vllm requests", Objective: "99%", Over: "28d", Attained: "99.41%", BudgetLeft: "41%", Sentence: "99.41 % of 120,000 requests kept the limits, 99 % are promised: 41 % of the error budget is left."}},
			Decision:   &last,
		},
		{
			Namespace: "ml", Name: "render", Kind: "Deployment", Target: "render", Actuation: "Scale", Min: 1, Max: 4,
			Problem: "SignalsReadable is False: no sample of pod render-1", Signals: []view.Signal{{Name: "Utilization", Unit: "%", Target: 60}},
		},
	}
	v.Recent = []view.Event{
		{Namespace: "llm", Name: "chat", Decision: up},
		{Namespace: "ml", Name: "render", Advice: true, Decision: decision(80*time.Minute, 3, 2, "Descent", "at most 20 % at a time")},
	}
	return v
}

// large is that many nodes of eight GPUs.
func large(nodes int) view.View {
	v := fleet()
	v.Nodes = nil
	for n := range nodes {
		node := view.Node{Name: fmt.Sprintf("node-%05d", n), Pool: fmt.Sprintf("pool-%d", n%10), Model: "NVIDIA-H100-80GB-HBM3"}
		for i := range 8 {
			g := view.GPU{UUID: fmt.Sprintf("GPU-%d%05d", i, n), Utilization: ptr(float64((n + 13*i) % 101)), MemoryUsedMiB: ptr(61000), PowerWatts: ptr(500), Age: time.Second}
			if i < 6 {
				g.Owners = []view.Owner{{Namespace: fmt.Sprintf("team-%d", n%40), Pod: fmt.Sprintf("chat-%d-%d", n, i)}}
			}
			node.GPUs = append(node.GPUs, g)
		}
		v.Nodes = append(v.Nodes, node)
	}
	return v
}

func read(t testing.TB, v view.View, r *Request) *Fleet {
	t.Helper()
	f, err := (&Controller{API: serve(v), Name: "prod.example:6443"}).Read(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// A GPU is named by the index that nvidia-smi has for it, where that is known.
func TestNames(t *testing.T) {
	three := 3
	f := func(uuid string, index *int, want string) {
		t.Helper()
		g := GPU{GPUEntry: view.GPUEntry{Node: "n", GPU: view.GPU{UUID: uuid, Index: index}}}
		if got := g.Name(); got != want {
			t.Errorf("%s is %s, want %s", uuid, got, want)
		}
	}
	f("GPU-3fae1c2b-1", nil, "n:3fae1c")
	f("GPU-3fae1c2b-1", &three, "n:3")
	f("GPU-3fae1c2b-1/gi7", &three, "n:3.7")
	f("MIG-3fae1c2b-1", &three, "n:3.3fae1c")
}

// A workload at its maximum that needs more says so in the columns of what is wrong and why.
func TestAtLimit(t *testing.T) {
	f := &Fleet{View: view.View{Workloads: []view.Workload{{Namespace: "llm", Name: "chat", Ready: true, AtLimit: "at its maximum, needs 7", Decision: &view.Decision{Why: "5 is the maximum"}}}}}
	table := f.workloads(&Look{Now: noon})
	for _, column := range []string{"problem", "why"} {
		if c := table.Rows[0].Cells[table.column(column)]; c.Text != "at its maximum, needs 7" || c.Style != Warn {
			t.Errorf("%s: %+v", column, c)
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package webui

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpupilot/gpupilot/internal/base/bearer"
	"github.com/gpupilot/gpupilot/internal/window/view"
)

// largeFleet is that many nodes of eight GPUs in ten pools. Each hundredth node
// has a problem; every name and text is as long as usual.
func largeFleet(nodes int) view.View {
	now := time.Now()
	v := view.View{Time: now, MaxAge: 5 * time.Second, Version: "v0.9.0", Leader: true, LeaderID: "controller-0"}
	for n := range nodes {
		node := view.Node{Name: fmt.Sprintf("gke-fleet-a3-highgpu-8g-%05d.internal", n), Pool: fmt.Sprintf("a3-highgpu-%d", n%10), Model: "NVIDIA-H100-80GB-HBM3"}
		t := view.Target{Name: "agent/gpupilot-system/agent-" + node.Name, Kind: "agent", Node: node.Name, URL: "http://10.0.0.1:9400/metrics", Up: true, LastSuccess: now, Freshness: "timestamp"}
		for i := range 8 {
			g := view.GPU{
				UUID: fmt.Sprintf("GPU-%08x-0000-0000-0000-%012d", n, i), Utilization: percent(float64((n + 13*i) % 101)), MemoryUsedMiB: percent(61000),
				MemoryTotalMiB: percent(81559), PowerWatts: percent(512.25), TemperatureC: percent(55), Age: time.Second,
			}
			if i < 6 {
				g.Owners = []view.Owner{{Namespace: fmt.Sprintf("team-%d", n%40), Pod: fmt.Sprintf("chat-6b8f-%05d-%d", n, i), Container: "server"}}
			}
			if n%100 == 7 {
				g.Utilization = nil
			}
			node.GPUs = append(node.GPUs, g)
		}
		if n%100 == 7 {
			t.Up, t.Error = false, "no answer within 5s: dial tcp 10.0.0.1:9400: i/o timeout"
		}
		v.Nodes, v.Targets = append(v.Nodes, node), append(v.Targets, t)
	}
	w := demoView()
	for i := range 200 {
		x := w.Workloads[i%2]
		x.Namespace, x.Name = fmt.Sprintf("team-%d", i%40), fmt.Sprintf("chat-%03d", i)
		v.Workloads = append(v.Workloads, x)
	}
	for i := range 100 {
		v.Recent = append(v.Recent, w.Recent[i%5])
	}
	return v
}

// maxView is the bound of a view, in bytes of JSON.
const maxView = 300_000

// However large the fleet is, and however long all its texts, a view is bounded.
func TestViewIsBounded(t *testing.T) {
	f := func(what string, v view.View, c *cluster, token string) view.View {
		t.Helper()
		w := ask(New(fixed{v}, access(c)).Handler(), "/api/v1/view", "Authorization", "Bearer "+token)
		var got view.View
		if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil || w.Code != http.StatusOK {
			t.Fatalf("%s: %d %v", what, w.Code, err)
		}
		t.Logf("%s: %d bytes", what, w.Body.Len())
		if w.Body.Len() > maxView {
			t.Errorf("%s: %d bytes, at most %d are allowed", what, w.Body.Len(), maxView)
		}
		return got
	}
	large := largeFleet(10000)
	v := f("10,000 nodes", large, nil, "")
	if v.Fleet.Nodes != 10000 || v.Fleet.GPUs != 80000 || v.Fleet.Allocated != 60000 || v.Fleet.Stale != 800 || v.Fleet.ProblemNodes != 100 || v.Fleet.Active+v.Fleet.Idle+v.Fleet.Free+v.Fleet.Stale != 80000 || v.Fleet.Utilization == nil {
		t.Errorf("sums %+v", v.Fleet)
	}
	if len(v.Pools) != 10 || v.Pools[3].Nodes != 1000 || v.Pools[7].ProblemNodes != 100 || len(v.Nodes) != 0 || v.Omitted.Nodes != 10000 || len(v.Problems) == 0 {
		t.Errorf("%d pools, %d problems, omitted %+v", len(v.Pools), len(v.Problems), v.Omitted)
	}
	if v.Targeted != (view.Answers{Targets: 10000, Up: 9900}) || v.Refresh < view.RefreshLarge {
		t.Errorf("targets %+v, refresh %v", v.Targeted, v.Refresh)
	}

	hostile := largeFleet(2000)
	long := strings.Repeat("<é", 5000)
	for i := range hostile.Nodes {
		n := &hostile.Nodes[i]
		n.Name, n.Pool, n.Model, n.Fault = fmt.Sprint(long[:200], i), fmt.Sprint(long[:60], i), long[:60], long
		hostile.Targets[i].Error, hostile.Targets[i].Node = long, n.Name
	}
	for i := range hostile.Workloads {
		hostile.Workloads[i].Problem = long[:i*50]
	}
	for i := range hostile.Recent {
		hostile.Recent[i].Decision.Sentence = long[:i*50]
	}
	hostile.LeaderID = long
	f("long texts", hostile, nil, "")

	sharers := largeFleet(60)
	for i := range sharers.Nodes {
		for range 200 {
			sharers.Nodes[i].GPUs[0].Owners = append(sharers.Nodes[i].GPUs[0].Owners, view.Owner{Namespace: "a", Pod: long[:250]})
		}
	}
	f("many sharers", sharers, nil, "")

	many := largeFleet(1)
	c := &cluster{users: map[string][]string{"ann": nil}}
	for i := range 9000 {
		ns := fmt.Sprintf("%s-%d", strings.Repeat("n", 50), i)
		c.users["ann"] = append(c.users["ann"], ns)
		many.Workloads = append(many.Workloads, view.Workload{Namespace: ns, Name: "w"})
	}
	if v := f("9,000 namespaces", many, c, "ann"); v.Omitted.Namespaces == 0 || v.Omitted.Workloads == 0 {
		t.Errorf("omitted %+v", v.Omitted)
	}
}

// access is c, or everybody's.
func access(c *cluster) Access {
	if c == nil {
		return nil
	}
	return c
}

// A small fleet is sent whole.
func TestSmallFleetIsWhole(t *testing.T) {
	for nodes, whole := range map[int]bool{1: true, 50: true, 51: false} {
		v := largeFleet(nodes)
		got := v.Bounded(v.NodeSummaries(), true)
		if (len(got.Nodes) == nodes) != whole || (got.Omitted.Nodes == 0) != whole {
			t.Errorf("of %d nodes: %d sent, %d omitted", nodes, len(got.Nodes), got.Omitted.Nodes)
		}
	}
}

// Nodes are found by pool, problem and name, sorted and paged.
func TestNodePages(t *testing.T) {
	v := largeFleet(1000)
	v.Nodes[41].GPUs[3].TemperatureC = percent(91)
	h := New(fixed{v}, nil).Handler()
	f := func(query string, total, first, n int) {
		t.Helper()
		var p view.NodePage
		w := ask(h, "/api/v1/nodes?"+query)
		if err := json.Unmarshal(w.Body.Bytes(), &p); err != nil || w.Code != http.StatusOK {
			t.Fatalf("%s: %d %v %s", query, w.Code, err, w.Body)
		}
		name := ""
		if len(p.Nodes) > 0 {
			name = p.Nodes[0].Name
		}
		if p.Total != total || len(p.Nodes) != n || n > 0 && name != fmt.Sprintf("gke-fleet-a3-highgpu-8g-%05d.internal", first) || w.Body.Len() > maxView {
			t.Errorf("%s: %d in all, %d from %s, %d bytes", query, p.Total, len(p.Nodes), name, w.Body.Len())
		}
	}
	f("", 1000, 0, 50)
	f("offset=50&limit=200", 1000, 50, 200)
	f("offset=990", 1000, 990, 10)
	f("offset=1000", 1000, 0, 0)
	f("limit=0", 1000, 0, 0)
	f("pool=a3-highgpu-3", 100, 3, 50)
	f("pool=", 0, 0, 0)
	f("pool=a3-highgpu-7&problem=true", 10, 7, 10)
	f("problem=true&q=00907", 1, 907, 1)
	f("q=GKE-fleet", 1000, 0, 50)
	f("q=nothing", 0, 0, 0)
	f("sort=problems", 1000, 7, 50)
	f("sort=free", 1000, 0, 50)
	f("sort=utilization&pool=a3-highgpu-5&limit=1", 100, 35, 1)
	f("sort=temperature&limit=2", 1000, 41, 2)
	bad := func(query, want string) {
		t.Helper()
		if w := ask(h, "/api/v1/nodes?"+query); w.Code != http.StatusBadRequest || !strings.Contains(w.Body.String(), want) {
			t.Errorf("%s: %d %s, want %s", query, w.Code, w.Body, want)
		}
	}
	bad("limit=201", "limit is")
	bad("offset=-1", "offset is")
	bad("offset=9999999999999", "offset is")
	bad("sort=random", "sort is")
	bad("problem=perhaps", "problem is")
	bad("q="+strings.Repeat("x", 300), "q has 300 bytes")
}

func TestNodeDetail(t *testing.T) {
	v := largeFleet(1000)
	h := New(fixed{v}, nil).Handler()
	var d NodeDetail
	w := ask(h, "/api/v1/node?name="+url.QueryEscape(v.Nodes[7].Name))
	if err := json.Unmarshal(w.Body.Bytes(), &d); err != nil || len(d.Node.GPUs) != 8 || len(d.Node.GPUs[0].Owners) != 1 || len(d.Targets) != 1 || len(d.Summary.Problems) != 2 {
		t.Errorf("%v: %s", err, w.Body)
	}
	if w := ask(h, "/api/v1/node?name=nope"); w.Code != http.StatusNotFound {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	if w := ask(h, "/api/v1/node"); w.Code != http.StatusNotFound {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

func TestWorkloadPages(t *testing.T) {
	h := New(fixed{largeFleet(1)}, nil).Handler()
	f := func(query string, total, n int) {
		t.Helper()
		var p view.WorkloadPage
		if w := ask(h, "/api/v1/workloads?"+query); json.Unmarshal(w.Body.Bytes(), &p) != nil || p.Total != total || len(p.Workloads) != n {
			t.Errorf("%s: %d %d of %d", query, w.Code, len(p.Workloads), p.Total)
		}
	}
	f("", 200, 20)
	f("q=team-7/", 5, 5)
	f("offset=190&limit=50", 200, 10)
	f("problem=true", 0, 0)
}

// Sums, pages and details tell a viewer of some namespaces nothing of the rest:
// no pool, no model, no condition and no exporter of a node, no GPU of others,
// and not whether a node exists.
func TestScopeOfSums(t *testing.T) {
	v := fleet()
	for i := range v.Nodes {
		v.Nodes[i].Pool, v.Nodes[i].Model, v.Nodes[i].Fault = "secret-pool", "secret-model", "secret-fault"
	}
	v.Targets[0].Error = "secret-error"
	c := &cluster{users: map[string][]string{"ann": {"a"}, "root": {"*"}, "none": {}}, known: true}
	h := New(fixed{v}, c).Handler()
	get := func(token, path string) (int, string) {
		w := ask(h, path, "Authorization", "Bearer "+token)
		return w.Code, w.Body.String()
	}
	paths := []string{"/api/v1/view", "/api/v1/nodes", "/api/v1/nodes?pool=secret-pool", "/api/v1/nodes?problem=true", "/api/v1/nodes?q=n2", "/api/v1/node?name=n1", "/api/v1/node?name=n2", "/api/v1/workloads"}
	for _, token := range []string{"ann", "none"} {
		for _, path := range paths {
			code, body := get(token, path)
			for _, secret := range []string{"secret", "pb", "GPU-b", "GPU-free", `"n2"`, "wb", "agent"} {
				if strings.Contains(body, secret) {
					t.Errorf("%s sees %q at %s: %d %s", token, secret, path, code, body)
				}
			}
		}
	}
	var got view.View
	if _, body := get("ann", "/api/v1/view"); json.Unmarshal([]byte(body), &got) != nil || got.Fleet.Nodes != 1 || got.Fleet.GPUs != 2 || got.Fleet.Allocated != 2 || got.Pools != nil || got.Targeted.Targets != 1 {
		t.Errorf("ann's sums: %+v", got)
	}
	_, theirs := get("ann", "/api/v1/node?name=n2")
	if code, none := get("ann", "/api/v1/node?name=nope"); code != http.StatusNotFound || none != theirs {
		t.Errorf("a node of others differs from none: %d %s, %s", code, none, theirs)
	}
	for _, path := range []string{"/api/v1/nodes", "/api/v1/node?name=n2"} {
		if code, body := get("root", path); code != http.StatusOK || !strings.Contains(body, "secret-pool") {
			t.Errorf("root at %s: %d %s", path, code, body)
		}
		if w := ask(h, path); w.Code != http.StatusUnauthorized {
			t.Errorf("nobody at %s: %d", path, w.Code)
		}
	}
}

// slow takes its time to make a view.
type slow struct {
	counting
	takes time.Duration
}

func (s *slow) View() view.View {
	time.Sleep(s.takes)
	v := s.counting.View()
	v.Time = time.Now()
	return v
}

// While a view that takes long is made, requests get the one before at once, and
// its age. One that nobody has asked for in a while is not given out any more.
func TestSlowViewsDoNotHoldUpRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := &slow{counting: counting{fixed: fixed{fleet()}}, takes: 800 * time.Millisecond}
		h := New(src, nil).Handler()
		took := func() time.Duration {
			began := time.Now()
			if w := ask(h, "/api/v1/view"); w.Code != 200 {
				t.Fatal(w.Code)
			}
			return time.Since(began)
		}
		if d := took(); d != src.takes {
			t.Errorf("the first took %v", d)
		}
		oldest := time.Duration(0)
		for range 60 {
			time.Sleep(time.Second)
			if d := took(); d > 0 {
				t.Fatalf("a request waited %v", d)
			}
			var v view.View
			if err := json.Unmarshal(ask(h, "/api/v1/view").Body.Bytes(), &v); err != nil {
				t.Fatal(err)
			}
			oldest = max(oldest, time.Since(v.Time))
		}
		if n := src.views.Load(); n > 60/4 {
			t.Errorf("%d views of 0.8 s in a minute: more than a quarter of a core", n)
		}
		if oldest > 8*time.Second {
			t.Errorf("a view was %v old", oldest)
		}
		time.Sleep(30 * time.Second)
		if d := took(); d != src.takes {
			t.Errorf("after half a minute a request took %v", d)
		}
	})
}

// BenchmarkLargeView is what a fleet of 10,000 nodes with eight GPUs each costs:
// to sum it up and encode it once per generation, a page of its nodes, and what
// every further request costs.
func BenchmarkLargeView(b *testing.B) {
	v := largeFleet(10000)
	b.Run("generation", func(b *testing.B) {
		r := newRenderer(fixed{v})
		for b.Loop() {
			g := &generation{view: v, at: time.Now(), scopes: map[string]*scoped{}}
			g.namespaces = v.NamespacesSeen()
			body, err := r.take(g, &scope{all: true}, true)
			if err != nil {
				b.Fatal(err)
			}
			r.give(body)
		}
	})
	p := New(fixed{v}, nil)
	p.everybody = bearer.NewBuckets(1e9, 1e9, 1)
	h := p.Handler()
	for i := range v.Nodes { // every third held GPU is idle
		for j := range v.Nodes[i].GPUs {
			if g := &v.Nodes[i].GPUs[j]; (i+j)%3 == 0 && g.Utilization != nil {
				g.Utilization, g.IdleSince, g.USDPerHour = percent(0), v.Time.Add(-time.Duration(i)*time.Second), percent(2)
			}
		}
	}
	for name, path := range map[string]string{"view": "/api/v1/view", "holders": "/api/v1/holders", "holders by own prices": "/api/v1/holders?price=3", "nodes": "/api/v1/nodes?sort=idle&q=8g", "node": "/api/v1/node?name=" + v.Nodes[77].Name} {
		b.Run(name, func(b *testing.B) {
			bytes := 0
			for b.Loop() {
				w := ask(h, path)
				if bytes = w.Body.Len(); w.Code != http.StatusOK {
					b.Fatal(w.Code, w.Body)
				}
			}
			b.ReportMetric(float64(bytes), "bytes")
		})
	}
}

// GPUs are found by state, node, pool, namespace and text, sorted and paged.
func TestGPUPages(t *testing.T) {
	v := largeFleet(1000)
	v.Nodes[41].GPUs[3].TemperatureC, v.Nodes[41].GPUs[4].TemperatureC = percent(91), percent(93)
	v.Nodes[7].GPUs[0].TemperatureC, v.Nodes[7].GPUs[0].Age = percent(99), time.Minute // long ago
	v.Nodes[0].GPUs[0].TemperatureC = nil
	h := New(fixed{v}, nil).Handler()
	f := func(query string, total, n int, check func(*view.GPUEntry) bool) {
		t.Helper()
		var p view.GPUPage
		w := ask(h, "/api/v1/gpus?"+query)
		if err := json.Unmarshal(w.Body.Bytes(), &p); err != nil || w.Code != http.StatusOK {
			t.Fatalf("%s: %d %v %s", query, w.Code, err, w.Body)
		}
		if p.Total != total || len(p.GPUs) != n || w.Body.Len() > maxView {
			t.Errorf("%s: %d in all, %d sent, %d bytes", query, p.Total, len(p.GPUs), w.Body.Len())
		}
		for i := range p.GPUs {
			if !check(&p.GPUs[i]) {
				t.Errorf("%s: %+v", query, p.GPUs[i])
				break
			}
		}
	}
	any := func(*view.GPUEntry) bool { return true }
	f("", 8000, 100, any)
	f("offset=7990&limit=100", 8000, 10, any)
	f("offset=9000", 8000, 0, any)
	f("state=stale", 80, 80, func(g *view.GPUEntry) bool { return g.State == view.Stale && g.Utilization == nil })
	f("state=free&pool=a3-highgpu-3", 200, 100, func(g *view.GPUEntry) bool { return g.Pool == "a3-highgpu-3" && len(g.Owners) == 0 })
	f("namespace=team-3&limit=1000", 150, 150, func(g *view.GPUEntry) bool { return g.Owners[0].Namespace == "team-3" })
	f("node="+v.Nodes[5].Name, 8, 8, func(g *view.GPUEntry) bool { return g.Node == v.Nodes[5].Name && g.Model != "" })
	f("q=TEAM-3/CHAT-6b8f-00003-2", 1, 1, any)
	f("sort=temperature&limit=2", 8000, 2, func(g *view.GPUEntry) bool { return g.Node == v.Nodes[41].Name && *g.TemperatureC > 90 })
	f("sort=temperature&offset=7998", 8000, 2, func(g *view.GPUEntry) bool { return g.TemperatureC == nil || g.Age > time.Second })
	f("sort=utilization&limit=3", 8000, 3, func(g *view.GPUEntry) bool { return *g.Utilization == 100 })
	for query, want := range map[string]string{"state=busy": "state is", "sort=idle": "sort is", "limit=1001": "limit is", "q=" + strings.Repeat("x", 300): "q has"} {
		if w := ask(h, "/api/v1/gpus?"+query); w.Code != http.StatusBadRequest || !strings.Contains(w.Body.String(), want) {
			t.Errorf("%s: %d %s, want %s", query, w.Code, w.Body, want)
		}
	}
	// A viewer of one namespace gets its GPUs only.
	c := &cluster{users: map[string][]string{"ann": {"team-3"}}}
	var p view.GPUPage
	w := ask(New(fixed{v}, c).Handler(), "/api/v1/gpus?limit=1000", "Authorization", "Bearer ann")
	if err := json.Unmarshal(w.Body.Bytes(), &p); err != nil || p.Total != 150 || p.GPUs[0].Pool != "" {
		t.Errorf("%d of %d GPUs, %v", len(p.GPUs), p.Total, err)
	}
}

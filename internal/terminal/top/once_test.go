// SPDX-License-Identifier: Apache-2.0

package top

import (
	"encoding/csv"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	"github.com/gpupilot/gpupilot/internal/gpu/price"
	"github.com/gpupilot/gpupilot/internal/node/agent"
	"github.com/gpupilot/gpupilot/internal/window/view"
	"github.com/gpupilot/gpupilot/test/podtest"
)

func printed(t testing.TB, f *Fleet, name Name, p Printing) string {
	t.Helper()
	var b strings.Builder
	if err := f.Print(&b, name, &Look{Now: noon, Prices: all2}, &p); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// JSON has the same values as the controller's API, for a fleet that is sent whole and for one
// that is read in parts.
func TestJSONIsTheAPIs(t *testing.T) {
	for what, v := range map[string]view.View{"small": fleet(), "large": large(300)} {
		a := serve(v)
		for name, path := range map[Name]string{
			Pools: "api/v1/view", Nodes: "api/v1/nodes?limit=200", GPUs: "api/v1/gpus?limit=1000", Workloads: "api/v1/workloads",
		} {
			f, err := (&Controller{API: a}).Read(t.Context(), &Request{View: name, All: true})
			if err != nil {
				t.Fatal(err)
			}
			var got, want, fromYAML map[string]any
			if err := json.Unmarshal([]byte(printed(t, f, name, Printing{Format: "json", Sort: firstColumn(f, name)})), &got); err != nil {
				t.Fatal(err)
			}
			if err := yaml.Unmarshal([]byte(printed(t, f, name, Printing{Format: "yaml", Sort: firstColumn(f, name)})), &fromYAML); err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(got, fromYAML); d != "" {
				t.Errorf("%s of the %s fleet: YAML differs: %s", name, what, d)
			}
			w := httptest.NewRecorder()
			a.handler.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/"+path, http.NoBody))
			if err := json.Unmarshal(w.Body.Bytes(), &want); err != nil {
				t.Fatal(err)
			}
			list := map[Name]string{Nodes: "nodes", GPUs: "gpus"}[name]
			if all, ok := got[list].([]any); ok { // the API's page is the first part of what we print
				got[list] = all[:len(want[list].([]any))]
			}
			delete(got, "refresh")
			delete(want, "refresh") // depends on how long the view took
			if d := cmp.Diff(want, got); d != "" {
				t.Errorf("%s of the %s fleet: %s", name, what, d)
			}
		}
	}
}

// firstColumn keeps the API's order, which is by name.
func firstColumn(f *Fleet, name Name) string {
	t := f.TableOf(name, &Look{})
	if name == GPUs {
		return "model" // equal for all
	}
	return t.Columns[0].Key
}

func TestPrint(t *testing.T) {
	f := read(t, fleet(), &Request{})
	g := func(name Name, p Printing, want ...string) {
		t.Helper()
		got := printed(t, f, name, p)
		for _, w := range want {
			if !strings.Contains(got, w) {
				t.Errorf("%s %+v lacks %q:\n%s", name, p, w, got)
			}
		}
	}
	g(Waste, Printing{Format: "table", Headers: true}, "HOLDER", "llm/notebook-ann", "6.00")
	g(Waste, Printing{Format: "json"}, `"idleHeldGPUs": 3`, `"usdPerHour": 6`, `"idleSeconds": 4320`, `"idleAtLeast": true`)
	g(Waste, Printing{Format: "csv"}, "idle_seconds_seen", "llm/notebook-ann,3,3,4320,")
	g(GPUs, Printing{Format: "csv"}, "idle_seconds_seen,pods", ",4320,llm/notebook-ann", ",1200,llm/chat")
	g(GPUs, Printing{Format: "json"}, `"idleSince": "2026-11-24T10:48:00Z"`, `"idleAtLeast": true`)
	g(Pods, Printing{Format: "name"}, "llm/notebook-ann\n")
	g(Decisions, Printing{Format: "table"}, "2 → 4", "vllm requests: 10.1 requests/s")
	g(Nodes, Printing{Format: "wide", Headers: true}, "MODEL", "NVIDIA-H100")
	g(Workloads, Printing{Format: "wide", Headers: true}, "PROBLEM", "SignalsReadable is False")
	if got := printed(t, f, GPUs, Printing{Format: "table"}); strings.Contains(got, "STATE") || strings.Contains(got, "LAST 60 S") {
		t.Errorf("without headers: %s", got)
	}
	filter, _ := ParseFilter("-l state=stale")
	if got := printed(t, f, GPUs, Printing{Format: "name", Filter: filter}); strings.Count(got, "\n") != 1 {
		t.Errorf("%q", got)
	}
	if err := f.Print(&strings.Builder{}, GPUs, &Look{}, &Printing{Format: "table", Sort: "nope"}); err == nil || !strings.Contains(err.Error(), "utilization_percent") {
		t.Errorf("an unknown column: %v", err)
	}
	rows, err := csv.NewReader(strings.NewReader(printed(t, f, GPUs, Printing{Format: "csv"}))).ReadAll()
	if err != nil || len(rows) != 25 || rows[0][4] != "utilization_percent" || rows[1][4] != "100" {
		t.Errorf("%v: %q", err, rows[:2])
	}
}

// Unknown is not zero: it is empty in CSV, absent in JSON, and – in a table.
func TestUnknown(t *testing.T) {
	v := fleet()
	g := &v.Nodes[0].GPUs[0]
	g.PowerWatts, g.TemperatureC, g.MemoryUsedMiB, g.MemoryTotalMiB = nil, nil, nil, nil
	v.Nodes = v.Nodes[:1]
	v.Nodes[0].GPUs = v.Nodes[0].GPUs[:1]
	f := read(t, v, &Request{})
	if got := printed(t, f, GPUs, Printing{Format: "csv"}); !strings.Contains(got, "active,1,,,") && !strings.Contains(got, "idle-held,0,,,") {
		t.Errorf("%s", got)
	}
	if got := printed(t, f, GPUs, Printing{Format: "table"}); strings.Count(got, unknown) != 3 {
		t.Errorf("%s", got)
	}
	if got := printed(t, f, GPUs, Printing{Format: "json"}); strings.Contains(got, "powerWatts") {
		t.Errorf("%s", got)
	}
}

func TestOnlyANamespace(t *testing.T) {
	v := fleet()
	v.Nodes[0].GPUs[0].Owners[0].Namespace = "ml"
	f := read(t, v, &Request{})
	m := screen(t, f, 100, 30, func(c *Config) { c.Namespace = "ml" })
	press(m, "3")
	if len(m.table.Rows) != 1 {
		t.Errorf("%d GPUs of the namespace", len(m.table.Rows))
	}
	press(m, "4")
	if got := shown(m); strings.Contains(got, "llm/chat") || !strings.Contains(got, "ml/render") {
		t.Errorf("%s", got)
	}
}

// One agent is a fleet of one node.
func TestAgent(t *testing.T) {
	one := 0.25
	doc := agent.Document{
		Node: "n1", Time: noon, IntervalSeconds: 1, Backend: "nvml", Owners: &agent.Kubelet{Up: true},
		Devices: []agent.DeviceDoc{{
			Index: 3, UUID: "GPU-3fae1c2b-1", Model: "NVIDIA H100", Up: true, AgeSeconds: &one,
			Values: map[string]agent.Value{
				"DCGM_FI_DEV_GPU_UTIL": {Value: "97", Unit: "%"}, "DCGM_FI_DEV_FB_USED": {Value: "1024", Unit: "MiB"}, "DCGM_FI_DEV_FB_FREE": {Value: "1024", Unit: "MiB"},
				"DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": {Value: "0.5"}, "DCGM_FI_DEV_CLOCKS_EVENT_REASONS": {Value: "68"}, "DCGM_FI_DEV_POWER_USAGE": {Value: "650"}, "DCGM_FI_DEV_ENFORCED_POWER_LIMIT": {Value: "700"},
			},
			Labels: map[string]string{"DCGM_FI_DRIVER_VERSION": "580"}, Owners: []agent.OwnerDoc{{Namespace: "llm", Pod: "chat-0", Container: "server"}},
			XIDs: []agent.XIDDoc{{Code: 79, Count: 1, Last: noon}},
		}, {Index: 4, UUID: "MIG-1", MIG: &agent.MIGDoc{GPUInstance: 7, Profile: "1g.18gb"}, AgeSeconds: &one, Values: map[string]agent.Value{"DCGM_FI_DEV_GPU_UTIL": {Value: "0"}}}},
	}
	serve := func() *httptest.Server {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != "/api/v1/gpus" {
				http.NotFound(w, r)
				return
			}
			_ = json.NewEncoder(w).Encode(doc)
		}))
		t.Cleanup(s.Close)
		return s
	}
	s := serve()
	source := &Agent{Address: strings.TrimPrefix(s.URL, "http://"), Client: s.Client()}
	f, err := source.Read(t.Context(), &Request{})
	if err != nil {
		t.Fatal(err)
	}
	m := screen(t, f, 200, 24, func(c *Config) { c.View = GPUs })
	for _, want := range []string{"n1:3 ", "n1:4.7 1g.18gb", "97%", "650/700", "50%", "power cap+hw thermal", "79", "llm/chat-0", "1 active", "1 free"} {
		if !strings.Contains(shown(m), want) {
			t.Errorf("lacks %q:\n%s", want, shown(m))
		}
	}
	press(m, "enter")
	if got := shown(m); !strings.Contains(got, "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE") || !strings.Contains(got, "XID 79") {
		t.Errorf("%s", got)
	}
	press(m, "esc", "4")
	if got := shown(m); !strings.Contains(got, "controller only") {
		t.Errorf("workloads without a controller: %s", got)
	}
	var want, got any
	if json.Unmarshal([]byte(printed(t, f, GPUs, Printing{Format: "json"})), &got) != nil || json.Unmarshal(f.Raw, &want) != nil || cmp.Diff(want, got) != "" {
		t.Errorf("JSON is not the agent's: %s", cmp.Diff(want, got))
	}

	// Without the kubelet, the holders are the processes, or unknown.
	doc.Owners = nil
	doc.Devices[1].Processes = &[]agent.ProcessDoc{{PID: 4711, Name: "python3"}}
	if f, err = source.Read(t.Context(), &Request{}); err != nil {
		t.Fatal(err)
	}
	if c := f.View.Fleet; c.Active != 1 || c.Idle != 1 || c.Free != 0 {
		t.Errorf("%+v", c)
	}
	if got := printed(t, f, GPUs, Printing{Format: "table"}); !strings.Contains(got, "python3 (pid 4711)") {
		t.Errorf("%s", got)
	}
	for _, bad := range []string{"", "ftp://x", "http://"} {
		if _, err := (&Agent{Address: bad}).URL(); err == nil {
			t.Errorf("the address %q is accepted", bad)
		}
	}
}

// What an agent answers is bounded and never more than an error.
func FuzzDocument(f *testing.F) {
	f.Add([]byte(`{"node": "n", "devices": [{"uuid": "GPU-1", "values": {"DCGM_FI_DEV_GPU_UTIL": {"value": 1e400}}, "owners": [{}]}]}`))
	f.Add([]byte(`{"devices": [{"values": {"DCGM_FI_DEV_GPU_UTIL": {"value": "x"}}, "xids": [{"code": 1}], "mig": {}, "ageSeconds": -1e300}]}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		fleet, err := parseDocument(body)
		if err != nil {
			return
		}
		m := screen(t, fleet, 80, 24, func(c *Config) { c.View = GPUs })
		checkFrame(t, "gpus", m)
		press(m, "enter")
		checkFrame(t, "details", m)
	})
}

func BenchmarkFrame(b *testing.B) {
	f := read(b, fleet(), &Request{})
	m := screen(b, f, 200, 60, func(c *Config) { c.View = GPUs })
	now := noon
	m.cfg.Now = func() time.Time { return now }
	for b.Loop() {
		now = now.Add(time.Second)
		m.Update(readMsg{fleet: f})
		m.View()
	}
}

// BenchmarkFirstFrame reads a view of 80,000 GPUs from the controller's handler, decodes it, and draws the first frame. The
// controller has built the view.
func BenchmarkFirstFrame(b *testing.B) {
	for _, name := range []Name{Pools, GPUs, Workloads} {
		b.Run(string(name), func(b *testing.B) {
			source := &Controller{API: serve(large(10000)), Name: "prod.example:6443"}
			r := &Request{View: name}
			if _, err := source.Read(b.Context(), r); err != nil {
				b.Fatal(err)
			}
			cpu := podtest.CPUTime(b)
			for b.Loop() {
				f, err := source.Read(b.Context(), r)
				if err != nil {
					b.Fatal(err)
				}
				m := screen(b, f, 200, 60, func(c *Config) { c.View = name })
				m.View()
			}
			b.ReportMetric(float64((podtest.CPUTime(b)-cpu).Microseconds())/1000/float64(b.N), "cpu-ms/op")
		})
	}
}

// all2 is the price of all GPUs.
var all2 = func() price.Table {
	t, err := price.Parse("2")
	if err != nil {
		panic(err)
	}
	return t
}()

// What holds the replicas is a column, also for programs. The reason of an override is a tenant's text: it is cleaned and cut.
func TestHeldBy(t *testing.T) {
	v := fleet()
	w := &v.Workloads[0]
	w.Override, w.Schedules, w.Rollout, w.Leaving = "at least 3 until 14:05, 42 min left: \x1b[31mlaunch "+strings.Repeat("x", 5000), []string{"day"}, false, 0
	v.Workloads[1].Rollout, v.Workloads[1].Leaving = true, 2
	f := read(t, v, &Request{})
	rows, err := csv.NewReader(strings.NewReader(printed(t, f, Workloads, Printing{Format: "csv", Sort: "workload"}))).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	at := slices.Index(rows[0], "held_by")
	got := map[string]string{}
	for _, r := range rows[1:] {
		got[r[0]] = r[at]
	}
	by := got[workloadID(w)]
	if !strings.HasPrefix(by, "override: at least 3 until 14:05, 42 min left: ") || strings.Contains(by, "\x1b") || len(by) > maxHeldBy+10 {
		t.Errorf("%d bytes: %q", len(by), by)
	}
	if by := got[workloadID(&v.Workloads[1])]; by != "rollout; 2 draining" {
		t.Errorf("held by %q", by)
	}
	w.Override = "day"
	f = read(t, v, &Request{})
	if table := printed(t, f, Workloads, Printing{Format: "table", Headers: true}); !strings.Contains(table, "HELD BY") || !strings.Contains(table, "override: day; schedule day") {
		t.Errorf("the table is\n%s", table)
	}
	if body := printed(t, f, Workloads, Printing{Format: "json"}); !strings.Contains(body, `"leaving": 2`) || !strings.Contains(body, `"override": "day"`) {
		t.Errorf("JSON is %s", body)
	}
	if table := printed(t, read(t, fleet(), &Request{}), Workloads, Printing{Format: "table", Headers: true}); strings.Contains(table, "HELD BY") {
		t.Errorf("nothing is held, and the table is\n%s", table)
	}
}

// The costs are the controller's or those of one's own table, and lower bounds where GPUs have no price.
func TestCosts(t *testing.T) {
	v := fleet()
	held, idle := 0, 0
	for i := range v.Nodes {
		v.Nodes[i].Model = "NVIDIA-L4"
		for j := range v.Nodes[i].GPUs {
			g := &v.Nodes[i].GPUs[j]
			if g.USDPerHour = ptr(3); len(g.Owners) > 0 {
				held++
				if v.State(g) == view.Idle {
					if idle++; idle == 1 {
						g.USDPerHour = nil
					}
				}
			}
		}
	}
	f := read(t, v, &Request{})
	if h, i, free := f.costs(&Look{}); h.total != float64(3*(held-1)) || h.unknown != 1 || i.total != float64(3*(idle-1)) || i.unknown != 1 || !strings.HasPrefix(h.usd(), "≥") || free.total != float64(3*f.View.Fleet.Free) {
		t.Errorf("held %+v, idle-held %+v of %d and %d GPUs at 3 USD, one of them without a price", h, i, held, idle)
	}
	var b strings.Builder
	if err := f.Print(&b, Pools, &Look{Now: noon}, &Printing{Format: "csv"}); err != nil || !strings.Contains(b.String(), "usd_per_hour,idle_held_usd_per_hour") {
		t.Errorf("%v: %s", err, b.String())
	}
	table := func(s string) price.Table {
		p, err := price.Parse(s)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	if h, _, free := f.costs(&Look{Prices: table("L4=0.5,*=9")}); h.total != 0.5*float64(held) || h.unknown != 0 || free.total != 0.5*float64(f.View.Fleet.Free) {
		t.Errorf("with a table of one's own: %+v of %d GPUs", h, held)
	}
	if h, i, free := f.costs(&Look{Prices: table("H200=4")}); h.known+i.known+free.known != 0 {
		t.Errorf("without a price for the model: %+v of %d GPUs", h, held)
	}
	big := read(t, large(1000), &Request{})
	if h, _, _ := big.costs(&Look{Prices: table("2")}); h.total != 2*float64(big.View.Fleet.Allocated) {
		t.Errorf("one price for GPUs that were not all read: %+v", h)
	}
	if h, _, _ := big.costs(&Look{Prices: table("H100=2")}); h.known != 0 {
		t.Errorf("prices by model for GPUs that were not all read: %+v", h)
	}
}

// SPDX-License-Identifier: Apache-2.0

package top

import (
	"encoding/csv"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	"github.com/gpupilot/gpupilot/internal/node/agent"
	"github.com/gpupilot/gpupilot/internal/window/view"
)

func printed(t testing.TB, f *Fleet, name Name, p Printing) string {
	t.Helper()
	var b strings.Builder
	if err := f.Print(&b, name, &Look{Now: noon, Price: 2}, &p); err != nil {
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
	g(Waste, Printing{Format: "json"}, `"idleHeldGPUs": 3`, `"usdPerHour": 6`)
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

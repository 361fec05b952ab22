// SPDX-License-Identifier: Apache-2.0

package webui

import (
	"encoding/csv"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpupilot/gpupilot/internal/gpu/price"
	"github.com/gpupilot/gpupilot/internal/window/history"
	"github.com/gpupilot/gpupilot/internal/window/usage"
	"github.com/gpupilot/gpupilot/internal/window/view"
)

// GPUHours of two weeks have a first week of which the namespace a used 90 of 100 GPU-hours.
func (f fixed) GPUHours(from, to time.Time) []GPUHours {
	more, used := 0.0, 0.0
	if to.Sub(from) > 7*24*time.Hour {
		more, used = 100, 90
	}
	hours := func(ns, kind, name string, allocated, active float64) GPUHours {
		return GPUHours{
			Workload: history.Workload{Namespace: ns, Kind: kind, Name: name}, Minutes: 600, Allocated: allocated, Active: active, Unpriced: allocated, IdleUnpriced: allocated - active,
		}
	}
	return []GPUHours{
		hours("a", history.KindNamespace, "a", 100+more, 60+used), hours("a", "Deployment", "chat", 80, 60), hours("a", "StatefulSet", "notebook", 20, 0),
		hours("b", history.KindNamespace, "b", 10, 10), hours("b", "Deployment", "secret", 10, 10),
	}
}

// GPU-hours are those of the history: minutes without a value do not count.
func TestHoursOfTheHistory(t *testing.T) {
	s := history.New(history.Config{})
	w := history.Workload{Namespace: "a", Kind: "Deployment", Name: "chat"}
	allocated, active := history.NewMetric("gpupilot_workload_gpus", "in_use", "allocated"), history.NewMetric("gpupilot_workload_gpus", "in_use", "active")
	start := time.Unix(0, 0).Add(1000 * time.Hour)
	for i := range 120 {
		values := []history.Value{history.Reading(allocated, 4), history.Reading(active, 1)}
		if i%2 == 1 {
			values = values[:1] // whether they are active is not known
		}
		if err := s.Append(w, start.Add(time.Duration(i)*time.Minute), values); err != nil {
			t.Fatal(err)
		}
	}
	got := WithMinutes{Store: s}.GPUHours(start, start.Add(2*time.Hour))
	if len(got) != 1 || got[0].Workload != w || got[0].Minutes != 60 || math.Abs(got[0].Allocated-4) > 1e-6 || math.Abs(got[0].Active-1) > 1e-6 || math.Abs(got[0].Idle()-3) > 1e-6 {
		t.Errorf("%+v, want 60 minutes of 4 GPUs, of which 1 is active", got)
	}
	var names []string
	for _, f := range usage.Recorded() {
		names = append(names, f.Name)
	}
	for _, name := range []string{"gpupilot_workload_gpus", "gpupilot_namespace_gpus"} {
		if !slices.Contains(names, name) {
			t.Errorf("the history has no %s", name)
		}
	}
}

// A viewer reads the hours of the own namespaces only, as JSON and as CSV, with costs if there
// is a price.
func TestAllocations(t *testing.T) {
	c := &cluster{users: map[string][]string{"ann": {"a"}, "root": {"*"}, "none": {}}, known: true}
	h := New(fixed{fleet()}, c).Handler()
	get := func(token, query string) (int, string) {
		w := ask(h, "/api/v1/allocation"+query, "Authorization", "Bearer "+token)
		return w.Code, w.Body.String()
	}
	var got Allocations
	_, body := get("ann", "?price=2.5")
	if err := json.Unmarshal([]byte(body), &got); err != nil || got.Code != 200 || len(got.Data) != 1 || len(got.Data[0]) != 2 {
		t.Fatalf("%v: %s", err, body)
	}
	x := got.Data[0]["a/deployment/chat"]
	if x.Hours != 80 || x.Idle != 20 || *x.Cost != 200 || *x.IdleCost != 50 || x.Properties["controllerKind"] != "deployment" || x.End.Sub(x.Start) != 7*24*time.Hour {
		t.Errorf("%+v", x)
	}
	for _, query := range []string{"", "?aggregate=namespace", "?format=csv", "?window=14d&price=1"} {
		for token, sees := range map[string][]bool{"ann": {true, false}, "root": {true, true}, "none": {false, false}} {
			code, body := get(token, query)
			a := strings.Contains(body, `"a"`) || strings.Contains(body, "\na,")
			b := strings.Contains(body, `"b"`) || strings.Contains(body, "\nb,") || strings.Contains(body, "secret")
			if code != 200 || a != sees[0] || b != sees[1] {
				t.Errorf("%s at %q: %d %s", token, query, code, body)
			}
		}
	}
	_, body = get("root", "?format=csv&aggregate=namespace")
	rows, err := csv.NewReader(strings.NewReader(body)).ReadAll()
	if err != nil || len(rows) != 3 || rows[1][0] != "a" || rows[1][8] != "40.000" || rows[1][9] != "" {
		t.Errorf("%v: %v", err, rows)
	}
	for _, bad := range []string{"?window=1y", "?aggregate=pod", "?format=xml", "?price=-1", "?price=NaN", "?price=0"} {
		if code, body := get("root", bad); code != http.StatusBadRequest {
			t.Errorf("%s: %d %s", bad, code, body)
		}
	}
	if w := ask(h, "/api/v1/allocation"); w.Code != http.StatusUnauthorized {
		t.Errorf("nobody: %d", w.Code)
	}
}

// The page's price is that of requests without one.
func TestPriceOfThePage(t *testing.T) {
	p := New(fixed{fleet()}, nil)
	p.Prices, _ = price.Parse("2")
	f := func(path string, want ...string) {
		t.Helper()
		body := ask(p.Handler(), path).Body.String()
		for _, w := range want {
			if !strings.Contains(body, w) {
				t.Errorf("%s: no %s in %s", path, w, body)
			}
		}
	}
	f("/api/v1/allocation?aggregate=namespace", `"gpuIdleCost":80`, `"usdPerGPUHour":2`)
	f("/api/v1/allocation?aggregate=namespace&price=3", `"gpuIdleCost":120`, `"usdPerGPUHour":3`)
	f("/api/v1/holders", `"usdPerGPUHour":2`)
}

// Costs are those that were recorded. Hours without a price are not in them, and are said.
func TestRecordedCosts(t *testing.T) {
	s := history.New(history.Config{})
	start := time.Now().Add(-3 * time.Hour).Truncate(time.Minute)
	add := func(name string, i int, values ...float64) {
		t.Helper()
		var list []history.Value
		for j, metric := range []string{"gpus", "gpu_cost_usd_per_hour", "unpriced_gpus"} {
			for k, inUse := range []string{"allocated", "active"} {
				if at := 2*j + k; at < len(values) && !math.IsNaN(values[at]) {
					list = append(list, history.Reading(history.NewMetric("gpupilot_workload_"+metric, "in_use", inUse), values[at]))
				}
			}
		}
		if err := s.Append(history.Workload{Namespace: "a", Kind: "Deployment", Name: name}, start.Add(time.Duration(i)*time.Minute), list); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 120 {
		if i < 60 {
			add("mixed", i, 4, 1) // before there were prices
		} else {
			add("mixed", i, 4, 1, 9, 4, 1, 0) // three of four GPUs have a price
		}
		add("known", i, 2, 1, 6, 3, 0, 0)
		add("none", i, 2, 1, math.NaN(), math.NaN(), 2, 1)
	}
	read := func(prices, query string) map[string]Allocation {
		t.Helper()
		p := New(WithMinutes{Control: fixed{fleet()}, Store: s}, nil)
		p.Prices, _ = price.Parse(prices)
		var got Allocations
		if err := json.Unmarshal(ask(p.Handler(), "/api/v1/allocation?window=1d"+query).Body.Bytes(), &got); err != nil {
			t.Fatal(err)
		}
		return got.Data[0]
	}
	f := func(got map[string]Allocation, name string, cost, idle, lacking float64) {
		t.Helper()
		x := got["a/deployment/"+name]
		near := func(p *float64, want float64) bool {
			return p != nil && math.Abs(*p-want) < 1e-3 || p == nil && want < 0
		}
		if !near(x.Cost, cost) || !near(x.IdleCost, idle) || math.Abs(x.Unpriced-lacking) > 1e-3 {
			t.Errorf("%s: %+v, want %g, idle-held %g, without %g hours", name, x, cost, idle, lacking)
		}
	}
	const unknown = -1
	got := read("H200=3,L4=1", "")
	f(got, "known", 12, 6, 0)
	f(got, "mixed", 9, 5, 5) // an hour of four GPUs without prices, and one of one GPU
	f(got, "none", unknown, unknown, 4)
	got = read("3", "") // also for the time before
	f(got, "mixed", 9+3*5, 5+3*4, 0)
	f(read("", ""), "known", unknown, unknown, 0)
	f(read("", "&price=2"), "known", 8, 4, 0)
}

// A holder's cost is that of its GPUs. GPUs without a price are counted beside the sum.
func TestHoldersCosts(t *testing.T) {
	v := fleet()
	gpus := v.Nodes[0].GPUs
	for i := range gpus {
		gpus[i].Utilization = percent(0)
	}
	gpus[0].USDPerHour, gpus[1].USDPerHour, v.Nodes[1].GPUs[0].Utilization = percent(4), percent(3), percent(0)
	p := New(fixed{v}, nil)
	read := func() (h view.HolderPage) {
		t.Helper()
		if err := json.Unmarshal(ask(p.Handler(), "/api/v1/holders").Body.Bytes(), &h); err != nil {
			t.Fatal(err)
		}
		return h
	}
	if h := read(); h.Cost != nil || h.Unpriced != 0 {
		t.Errorf("without prices: %+v", h)
	}
	// Since they are idle, a pod's GPUs have cost their price times that time, at least where one may have been idle longer.
	v.Nodes[0].GPUs[0].IdleSince, v.Nodes[0].GPUs[1].IdleSince, v.Nodes[0].GPUs[1].IdleAtLeast = v.Time.Add(-90*time.Minute), v.Time.Add(-time.Hour), true
	p = New(fixed{v}, nil)
	p.Prices, _ = price.Parse("H200=4,A100=3")
	h := read()
	since := map[string]string{}
	for _, x := range h.Holders {
		if since[x.Pod] = fmt.Sprint(x.AtLeast); x.SinceIdle != nil {
			since[x.Pod] = fmt.Sprintf("%g %v", *x.SinceIdle, x.AtLeast)
		}
	}
	if want := map[string]string{"pa": "6 false", "pa2": "1.5 true", "pb": "1.5 true", "pb2": "false"}; !maps.Equal(since, want) || h.SinceIdle == nil || *h.SinceIdle != 9 || !h.AtLeast {
		t.Errorf("since they are idle: %v, in all %v %v; want %v and 9", since, h.SinceIdle, h.AtLeast, want)
	}
	got := map[string]string{}
	for _, x := range h.Holders {
		got[x.Pod] = fmt.Sprintf("%v %g", x.Cost != nil, x.Unpriced)
		if x.Cost != nil {
			got[x.Pod] = fmt.Sprintf("%g %g", *x.Cost, x.Unpriced)
		}
	}
	want := map[string]string{"pa": "4 0", "pa2": "1.5 0", "pb": "1.5 0", "pb2": "false 1"}
	if !maps.Equal(got, want) || h.Cost == nil || *h.Cost != 7 || h.Unpriced != 1 {
		t.Errorf("%v, %+v; want %v, 7 USD an hour and a GPU without a price", got, h, want)
	}
	// A request's own price list counts instead, by node pool and model, with the shares of MIG instances.
	v.Nodes[0].Model, v.Nodes[0].GPUs[1].UUID, v.Nodes[0].GPUs[1].Share, v.Nodes[1].Pool = "NVIDIA-A100", "GPU-b/gi1", 0.25, "spot"
	sum := func(list, want string) {
		t.Helper()
		var h view.HolderPage
		if err := json.Unmarshal(ask(p.Handler(), "/api/v1/holders?price="+url.QueryEscape(list)).Body.Bytes(), &h); err != nil {
			t.Fatal(err)
		}
		got := fmt.Sprintf("nothing of %g", h.Unpriced)
		if h.Cost != nil {
			got = fmt.Sprintf("%g without %g", *h.Cost, h.Unpriced)
		}
		if got != want || h.Prices != strings.TrimSpace(list) {
			t.Errorf("by %q (%q): %s, want %s", list, h.Prices, got, want)
		}
	}
	sum("A100=2", "2.5 without 1")
	sum("A100=2,pool:spot=0.5", "3 without 0")
	sum("H200=1", "nothing of 3")
	// They are added up once for all viewers with the same rights and prices.
	x, err := p.renderer.see(p.renderer.current(), &scope{all: true})
	if err != nil {
		t.Fatal(err)
	}
	first := func(list string) *view.Holder {
		own, _ := price.Parse(list)
		h := x.idleHolders(&p.Prices, &own)
		return &h.Holders[0]
	}
	own, others := first(""), first("A100=2")
	if own == others || own != first("") || others != first("A100=2") {
		t.Error("the holders are added up for each request, or by other prices")
	}
	for i := range 2 * keptHolders {
		first(fmt.Sprint(i + 1))
	}
	if len(x.held) > keptHolders {
		t.Errorf("%d lists are kept, want at most %d", len(x.held), keptHolders)
	}
	for _, bad := range []string{"x", "A100=-1", "NaN"} {
		if w := ask(p.Handler(), "/api/v1/holders?price="+bad); w.Code != http.StatusBadRequest || !strings.Contains(w.Body.String(), "price: ") {
			t.Errorf("%q: %d %s", bad, w.Code, w.Body)
		}
	}
	body := ask(p.Handler(), "/api/v1/view").Body.String()
	if !strings.Contains(body, `"cost":{"usdPerHour":7,"idleHeldUSDPerHour":7,"unpricedGPUs":1,"unpricedIdleHeldGPUs":1,"unpricedFreeGPUs":1}`) {
		t.Errorf("the view is %s", body)
	}
}

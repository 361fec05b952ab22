// SPDX-License-Identifier: Apache-2.0

package webui

import (
	"encoding/csv"
	"encoding/json"
	"math"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpupilot/gpupilot/internal/window/history"
	"github.com/gpupilot/gpupilot/internal/window/usage"
)

// GPUHours of two weeks have a first week of which the namespace a used 90 of 100 GPU-hours.
func (f fixed) GPUHours(from, to time.Time) []GPUHours {
	more, used := 0.0, 0.0
	if to.Sub(from) > 7*24*time.Hour {
		more, used = 100, 90
	}
	hours := func(ns, kind, name string, allocated, active float64) GPUHours {
		return GPUHours{history.Workload{Namespace: ns, Kind: kind, Name: name}, 600, allocated, active}
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
	p.Price = 2
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

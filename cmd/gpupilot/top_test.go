// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpupilot/gpupilot/internal/serve/webui"
	"github.com/gpupilot/gpupilot/internal/terminal/remote"
	"github.com/gpupilot/gpupilot/internal/window/view"
)

// still is a controller whose view does not change.
type still struct {
	webui.Source
	view view.View
}

func (s still) View() view.View { return s.view }

// stillFleet is that many nodes of eight GPUs with all that a GPU can have, and values that are not known.
func stillFleet(nodes int) view.View {
	noon := time.Date(2026, 11, 24, 12, 0, 0, 0, time.UTC)
	v := view.View{Time: noon, MaxAge: 5 * time.Second, Version: "v1", Leader: true}
	for n := range nodes {
		node := view.Node{Name: fmt.Sprintf("n%05d", n), Pool: fmt.Sprint("p", n%3), Model: "NVIDIA-H100-80GB-HBM3"}
		for i := range 8 {
			f := func(x float64) *float64 { return &x }
			g := view.GPU{UUID: fmt.Sprintf("GPU-%05d-%d", n, i), Utilization: f(float64((n + 13*i) % 101)), MemoryUsedMiB: f(61000.5), PowerWatts: f(412.25), TemperatureC: f(float64(40 + (n+i)%30)), Age: time.Second, USDPerHour: f(2)}
			if i < 6 {
				g.Owners, g.HeldSince = []view.Owner{{Namespace: "llm", Pod: fmt.Sprintf("chat-%d-%d", n, i), Container: "s\u202e"}}, noon.Add(-time.Hour)
			}
			if i == 7 {
				g.Utilization, g.PowerWatts = nil, nil
			}
			node.GPUs = append(node.GPUs, g)
		}
		v.Nodes = append(v.Nodes, node)
	}
	for i := range 90 {
		v.Workloads = append(v.Workloads, view.Workload{Namespace: "llm", Name: fmt.Sprintf("chat-%03d", i), Kind: "Deployment", Target: "chat", Actuation: "Scale", Min: 1, Max: 4})
	}
	return v
}

// What top --once prints as JSON is what the controller's API answers, value by value, for a fleet that is sent
// whole and for one that is read in parts.
func TestTopOnceIsTheAPI(t *testing.T) {
	t.Setenv("KUBECONFIG", "/nonexistent")
	t.Setenv("XDG_CONFIG_HOME", t.TempDir())
	for _, nodes := range []int{3, 400} {
		s := httptest.NewServer(webui.New(still{view: stillFleet(nodes)}, nil).Handler())
		defer s.Close()
		api := remote.Controller{Cluster: &remote.Cluster{}, Address: s.URL}
		for name, list := range map[string]struct {
			path, list, key string
			step            int
		}{
			"nodes": {"nodes", "nodes", "name", 200}, "gpus": {"gpus", "gpus", "uuid", 1000}, "workloads": {"workloads", "workloads", "name", 50}, "fleet": {path: "view"},
		} {
			var out bytes.Buffer
			if err := run(t.Context(), []string{"top", "--once", "-o", "json", "--view", name, "--controller", s.URL}, &out); err != nil {
				t.Fatal(err)
			}
			var got, want map[string]any
			if err := json.Unmarshal(out.Bytes(), &got); err != nil {
				t.Fatal(err)
			}
			byKey := func(rows any) map[string]any {
				all := map[string]any{}
				for _, row := range rows.([]any) {
					all[row.(map[string]any)[list.key].(string)] = row
				}
				return all
			}
			rows := map[string]any{}
			for {
				var page map[string]any
				query := map[string][]string{"offset": {fmt.Sprint(len(rows))}, "limit": {fmt.Sprint(list.step)}}
				if name == "fleet" {
					query = nil
				}
				if err := api.Get(t.Context(), "api/v1/"+list.path, query, &page); err != nil {
					t.Fatal(err)
				}
				if want == nil {
					want = page
				}
				if list.list == "" {
					break
				}
				part := byKey(page[list.list])
				for k, row := range part {
					rows[k] = row
				}
				if len(part) == 0 || float64(len(rows)) >= page["total"].(float64) {
					break
				}
			}
			if list.list != "" {
				if got[list.list], want[list.list] = byKey(got[list.list]), rows; len(rows) == 0 {
					t.Errorf("%s of %d nodes: the API has no %s", name, nodes, list.list)
				}
			}
			delete(got, "refresh") // depends on how long the view took
			delete(want, "refresh")
			if d := cmp.Diff(want, got); d != "" {
				t.Errorf("%s of %d nodes, the API against top --once: %s", name, nodes, d)
			}
		}
	}
}

// Names in the singular, as kubectl takes them, are the lists' too; another name is refused with all names.
func TestGetTakesTheSingular(t *testing.T) {
	t.Setenv("KUBECONFIG", "/nonexistent")
	s := httptest.NewServer(webui.New(still{view: stillFleet(3)}, nil).Handler())
	defer s.Close()
	for _, name := range []string{"node", "nodes", "gpu", "workload", "pod", "waste", "decision", "fleet"} {
		if err := run(t.Context(), []string{"get", name, "--controller", s.URL}, io.Discard); err != nil {
			t.Error(err)
		}
	}
	err := run(t.Context(), []string{"get", "nod", "--controller", s.URL}, io.Discard)
	if err == nil || !strings.Contains(err.Error(), "want one of fleet, nodes, gpus") {
		t.Error(err)
	}
}

// Without a cluster, the error says what to set.
func TestNoCluster(t *testing.T) {
	t.Setenv("KUBECONFIG", "")
	t.Setenv("HOME", t.TempDir())
	for _, args := range [][]string{{"get", "nodes"}, {"explain", "llm/chat"}, {"doctor"}} {
		err := run(t.Context(), args, io.Discard)
		if err == nil || !strings.Contains(err.Error(), "set --kubeconfig FILE or KUBECONFIG") || strings.Contains(err.Error(), "KUBERNETES_MASTER") {
			t.Errorf("%s: %v", args, err)
		}
	}
}

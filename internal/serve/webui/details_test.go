// SPDX-License-Identifier: Apache-2.0

package webui

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpupilot/gpupilot/internal/scale"
	"github.com/gpupilot/gpupilot/internal/window/view"
)

// Decisions are found by all words of a search, and paged.
func TestDecisionPages(t *testing.T) {
	v := view.View{Time: time.Unix(1, 0)}
	for i := range 300 {
		d := view.Decision{Rule: scale.RuleDemand, Sentence: fmt.Sprintf("decision %d", i), Steps: []view.Step{{Rule: scale.RuleBounds, Sentence: "maxReplicas 12"}}}
		v.Recent = append(v.Recent, view.Event{Namespace: fmt.Sprintf("team-%d", i%3), Name: "chat", Decision: d})
	}
	h := New(fixed{v}, nil).Handler()
	f := func(query string, total, n int) {
		t.Helper()
		var p DecisionPage
		w := ask(h, "/api/v1/decisions?"+query)
		if err := json.Unmarshal(w.Body.Bytes(), &p); err != nil || p.Total != total || len(p.Decisions) != n || w.Body.Len() > maxView {
			t.Errorf("%s: %d in all, %d sent, %d bytes, %v", query, p.Total, len(p.Decisions), w.Body.Len(), err)
		}
	}
	f("", 300, 50)
	f("limit=200&offset=150", 300, 150)
	f("q=TEAM-1/", 100, 50)
	f("q=team-1+maxreplicas+bounds", 100, 50)
	f("q=decision+299", 1, 1)
	f("q=nothing", 0, 0)
	for _, bad := range []string{"limit=201", "offset=-1", "q=" + strings.Repeat("x", 300)} {
		if w := ask(h, "/api/v1/decisions?"+bad); w.Code != http.StatusBadRequest {
			t.Errorf("%s: %d", bad, w.Code)
		}
	}
}

// reassigned is a fleet whose GPUs another namespace's pods hold by the time of the detail.
type reassigned struct{ fixed }

func (r reassigned) Device(node, uuid string) (view.Device, bool) {
	d, ok := r.fixed.Device(node, uuid)
	d.GPU.Owners = []view.Owner{{Namespace: "b", Pod: "pb9"}}
	return d, ok
}

// A viewer of one namespace sees its GPUs, decisions and holders only: not the past of a
// GPU that it shares, nothing of a GPU that has just become another's, and not whether a GPU
// exists.
func TestScopeOfDetails(t *testing.T) {
	v := fleet()
	v.Nodes[0].GPUs[1].Utilization, v.Nodes[1].GPUs[0].Utilization = percent(0), percent(0)
	v.Recent[0].Decision.Sentence = "secret"
	c := &cluster{users: map[string][]string{"ann": {"a"}, "root": {"*"}}, known: true}
	get := func(src Source, token, path string) (int, string) {
		w := ask(New(src, c).Handler(), path, "Authorization", "Bearer "+token)
		return w.Code, w.Body.String()
	}
	f := func(src Source, token, path string, code int, has string, hasNot ...string) {
		t.Helper()
		got, body := get(src, token, path)
		if got != code || !strings.Contains(body, has) || slices.ContainsFunc(hasNot, func(s string) bool { return strings.Contains(body, s) }) {
			t.Errorf("%s at %s: %d %s; want %d with %q, without %q", token, path, got, body, code, has, hasNot)
		}
	}
	src := fixed{v}
	f(src, "ann", "/api/v1/gpu?node=n1&uuid=GPU-a", 200, `"past"`)
	f(src, "ann", "/api/v1/gpu?node=n1&uuid=GPU-shared", 200, "pa2", "pb", `"past"`)
	f(src, "root", "/api/v1/gpu?node=n1&uuid=GPU-shared", 200, `"past"`)
	f(src, "root", "/api/v1/gpu?node=n1&uuid=GPU-free", 200, `"stale"`)
	f(reassigned{src}, "ann", "/api/v1/gpu?node=n1&uuid=GPU-a", 404, "no GPU", "pb")
	_, none := get(src, "ann", "/api/v1/gpu?node=n1&uuid=nope")
	for _, path := range []string{"/api/v1/gpu?node=n1&uuid=GPU-free", "/api/v1/gpu?node=n2&uuid=GPU-b", "/api/v1/gpu", "/api/v1/gpu?node=n1"} {
		if code, body := get(src, "ann", path); code != 404 || body != none {
			t.Errorf("%s: %d %s, want as of a GPU that does not exist", path, code, body)
		}
	}
	f(src, "ann", "/api/v1/decisions", 200, `"wa"`, "secret", "wb", "gone")
	f(src, "root", "/api/v1/decisions", 200, "secret")
	f(src, "ann", "/api/v1/holders", 200, "pa2", "pb")
	f(src, "root", "/api/v1/holders", 200, "pb2")
	f(src, "ann", "/api/v1/workload?namespace=b&name=wb", 403, "may not")
	for _, path := range []string{"/api/v1/gpu?node=n1&uuid=GPU-a", "/api/v1/decisions", "/api/v1/holders", "/api/v1/workload?namespace=a&name=wa"} {
		if w := ask(New(src, c).Handler(), path); w.Code != http.StatusUnauthorized {
			t.Errorf("nobody at %s: %d", path, w.Code)
		}
	}
}

// A GPU that several idle pods share counts as one.
func TestHolders(t *testing.T) {
	v := fleet()
	read := func() (p view.HolderPage) {
		t.Helper()
		if err := json.Unmarshal(ask(New(fixed{v}, nil).Handler(), "/api/v1/holders").Body.Bytes(), &p); err != nil {
			t.Fatal(err)
		}
		return p
	}
	v.Nodes[0].GPUs[1].Utilization, v.Nodes[1].GPUs[0].Utilization = percent(0), percent(0)
	if p := read(); p.Total != 3 || p.GPUs != 2 || len(p.Holders) != 3 || p.Holders[0].Pod != "pb2" || p.Holders[1].GPUs != 0.5 {
		t.Errorf("%+v", p)
	}

	// All GPUs of a pod are idle since the last one of them is.
	for i, hours := range []int{3, 1, 2} {
		g := v.Nodes[0].GPUs[1]
		g.UUID, g.Owners = fmt.Sprint("GPU-", i), []view.Owner{{Namespace: "c", Pod: "pc"}}
		g.IdleSince, g.IdleAtLeast = v.Time.Add(-time.Duration(hours)*time.Hour), hours == 1
		v.Nodes[0].GPUs = append(v.Nodes[0].GPUs, g)
	}
	if h := read().Holders[0]; h.Pod != "pc" || !h.IdleSince.Equal(v.Time.Add(-time.Hour)) || !h.IdleAtLeast {
		t.Errorf("%+v", h)
	}
	v.Nodes[0].GPUs[len(v.Nodes[0].GPUs)-2].IdleSince = time.Time{} // unknown of one of them
	if h := read().Holders[0]; h.Pod != "pc" || !h.IdleSince.IsZero() || h.IdleAtLeast {
		t.Errorf("%+v", h)
	}
}

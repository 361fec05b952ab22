// SPDX-License-Identifier: Apache-2.0

package webui

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/gpupilot/gpupilot/internal/window/view"
)

type fixed struct{ view view.View }

func (f fixed) View() view.View { return f.view }

func (f fixed) History(namespace, name string) (view.History, bool) {
	return view.History{Points: []view.Point{{Replicas: 2}}}, namespace == "llm" && name == "chat"
}

func (f fixed) Minutes(namespace, name string, q *view.MinuteQuery) (view.Minutes, bool, error) {
	return view.Minutes{First: q.From, Step: q.Step}, namespace == "llm" && name == "chat", nil
}

func get(t *testing.T, path string) *httptest.ResponseRecorder {
	t.Helper()
	w := httptest.NewRecorder()
	src := fixed{view.View{Time: time.Unix(1, 0), Nodes: []view.Node{{Name: "n", GPUs: []view.GPU{{UUID: "GPU-1"}}}}}}
	New(src, nil).Handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
	return w
}

func TestPageLoadsOnlyItsOwnFiles(t *testing.T) {
	page := get(t, "/")
	if page.Code != 200 || !strings.Contains(page.Header().Get("Content-Security-Policy"), "default-src 'none'") {
		t.Fatalf("page: %d, policy %q", page.Code, page.Header().Get("Content-Security-Policy"))
	}
	if strings.Contains(page.Body.String(), "http://") || strings.Contains(page.Body.String(), "https://") {
		t.Error("the page refers to another host")
	}
	for _, part := range strings.Split(page.Body.String(), `"`) {
		if strings.HasPrefix(part, "static/") {
			if r := get(t, "/"+part); r.Code != 200 || r.Body.Len() == 0 {
				t.Errorf("%s: %d, %d bytes", part, r.Code, r.Body.Len())
			}
		}
	}
}

func TestAPI(t *testing.T) {
	var v view.View
	r := get(t, "/api/v1/view")
	if err := json.Unmarshal(r.Body.Bytes(), &v); err != nil || len(v.Nodes) != 1 {
		t.Errorf("view: %v, %s", err, r.Body)
	}
	if strings.Contains(r.Body.String(), "utilization") {
		t.Errorf("a utilisation that is not known is there: %s", r.Body)
	}
	if r := get(t, "/api/v1/history?namespace=llm&name=chat"); r.Code != 200 {
		t.Errorf("history: %d", r.Code)
	}
	if r := get(t, "/api/v1/history?namespace=llm&name=nope"); r.Code != 404 || !strings.Contains(r.Body.String(), "llm/nope") {
		t.Errorf("history of nobody: %d %s", r.Code, r.Body)
	}
	if r := get(t, "/nope"); r.Code != 404 {
		t.Errorf("/nope: %d", r.Code)
	}
}

func (f fixed) Workload(namespace, name string) (view.WorkloadDetail, bool) {
	return view.WorkloadDetail{Workload: view.Workload{Namespace: namespace, Name: name}}, namespace == "llm" && name == "chat"
}

func (f fixed) Device(node, uuid string) (view.Device, bool) {
	for _, n := range f.view.Nodes {
		for _, g := range n.GPUs {
			if n.Name == node && g.UUID == uuid {
				return view.Device{Node: node, GPU: g, Fields: []view.DeviceField{{Name: "DCGM_FI_DEV_GPU_UTIL", Past: [][2]float64{{-1, 5}, {0, 6}}}}}, true
			}
		}
	}
	return view.Device{}, false
}

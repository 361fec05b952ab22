// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/gpupilot/gpupilot/internal/scale/policy"
	"github.com/gpupilot/gpupilot/internal/window/view"
)

const onRunningPolicy = `apiVersion: gpupilot.dev/v1alpha1
kind: GPUAutoscaler
metadata: {name: chat, namespace: llm}
spec:
  scaleTargetRef: {kind: Deployment, name: chat}
  maxReplicas: 20
  signals: [{pods: {metric: "vllm:num_requests_running"}, target: {value: "8"}}]
status: {currentReplicas: 2, servingReplicas: 2, startingReplicas: 0, desiredReplicas: 2, startup: {p50Seconds: 40, p95Seconds: 50, samples: 3}}
`

// secondsOf is a history of so many seconds of two busy replicas.
func secondsOf(n int) (h view.History) {
	running := 12.0
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for i := range n {
		h.Points = append(h.Points, view.Point{Time: start.Add(time.Duration(i) * time.Second), Serving: 2, Signals: []*float64{&running}})
	}
	return h
}

// apiServer serves the object, and the controller's history through the service proxy.
func apiServer(t *testing.T) (kubeconfig string) {
	t.Helper()
	mux := http.NewServeMux()
	answer := func(w http.ResponseWriter, v any) {
		w.Header().Set("Content-Type", "application/json")
		if err := json.NewEncoder(w).Encode(v); err != nil {
			t.Error(err)
		}
	}
	mux.HandleFunc("GET /api", func(w http.ResponseWriter, _ *http.Request) { answer(w, map[string]any{"kind": "APIVersions"}) })
	mux.HandleFunc("GET /apis", func(w http.ResponseWriter, _ *http.Request) {
		version := map[string]string{"groupVersion": "gpupilot.dev/v1alpha1", "version": "v1alpha1"}
		answer(w, map[string]any{"kind": "APIGroupList", "apiVersion": "v1", "groups": []map[string]any{
			{"name": "gpupilot.dev", "versions": []any{version}, "preferredVersion": version},
		}})
	})
	mux.HandleFunc("GET /apis/gpupilot.dev/v1alpha1", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, map[string]any{"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": "gpupilot.dev/v1alpha1", "resources": []map[string]any{
			{"name": "gpuautoscalers", "singularName": "gpuautoscaler", "namespaced": true, "kind": "GPUAutoscaler", "verbs": []string{"get", "list"}},
		}})
	})
	mux.HandleFunc("GET /apis/gpupilot.dev/v1alpha1/namespaces/llm/gpuautoscalers/chat", func(w http.ResponseWriter, _ *http.Request) {
		var a map[string]any
		if err := yaml.Unmarshal([]byte(onRunningPolicy), &a); err != nil {
			t.Error(err)
		}
		answer(w, a)
	})
	mux.HandleFunc("GET /api/v1/namespaces/gp/services/controller:8080/proxy/api/v1/history", func(w http.ResponseWriter, r *http.Request) {
		if r.FormValue("namespace") != "llm" || r.FormValue("name") != "chat" {
			t.Errorf("asked for %s", r.URL)
		}
		answer(w, secondsOf(540))
	})
	mux.HandleFunc("GET /api/v1/namespaces/gp/services/controller:8080/proxy/api/v1/minutes", func(w http.ResponseWriter, r *http.Request) {
		if r.FormValue("namespace") != "llm" || r.FormValue("step") != "1m" || !slices.Contains(r.Form["metric"], `gpupilot_autoscaler_replicas{state="serving"}`) || !slices.Contains(r.Form["metric"], `gpupilot_autoscaler_signal_value{signal="vllm:num_requests_running"}`) {
			t.Errorf("asked for %s", r.URL)
		}
		m := view.Minutes{First: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC), Step: time.Minute, Metrics: []view.MinuteMetric{
			{Name: view.ReplicasMetric, Labels: map[string]string{"state": "serving"}},
			{Name: view.SignalMetric, Labels: map[string]string{"signal": "vllm:num_requests_running", "per": "replica"}},
			{Name: view.ReplicasMetric, Labels: map[string]string{"state": "desired"}},
		}}
		for i := range 180 {
			m.Metrics[0].Mean = append(m.Metrics[0].Mean, 2)
			m.Metrics[1].Mean = append(m.Metrics[1].Mean, float64(6+i/30))
			m.Metrics[2].Mean = append(m.Metrics[2].Mean, 2)
		}
		answer(w, m)
	})
	s := httptest.NewServer(mux)
	t.Cleanup(s.Close)
	return writeFile(t, "config", fmt.Sprintf("current-context: a\ncontexts: [{name: a, context: {cluster: c}}]\nclusters: [{name: c, cluster: {server: %q}}]\n", s.URL))
}

func TestFromCluster(t *testing.T) {
	out, err := backtestOut(t, "--from-cluster", "llm/chat", "--controller", "gp/controller:8080", "--kubeconfig", apiServer(t), "--seeds", "1", "--peers", "none")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(out, "chat") || !strings.Contains(out, "40s") {
		t.Errorf("no policy or no start-up time:\n%s", out)
	}
	for length, want := range map[string]string{"336h": "180 minutes from 2026-01-01 00:00 to 2026-01-01 02:59 UTC are replayed as means", "10m": "540 seconds"} {
		var stdout, stderr strings.Builder
		cmd := backtestCommand()
		cmd.SetOut(&stdout)
		cmd.SetErr(&stderr)
		cmd.SetArgs([]string{"--from-cluster", "llm/chat", "--history", length, "--controller", "gp/controller:8080", "--kubeconfig", apiServer(t), "--seeds", "1", "--peers", "none"})
		if err := cmd.ExecuteContext(t.Context()); err != nil || !strings.Contains(stderr.String(), want) {
			t.Errorf("--history %s: %v, no %q in\n%s", length, err, want, stderr.String())
		}
	}
	for want, controller := range map[string]string{"404": "gp/other:8080", "want NAMESPACE/SERVICE:PORT": "somewhere"} {
		_, err := backtestOut(t, "--from-cluster", "llm/chat", "--controller", controller, "--kubeconfig", apiServer(t))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("--controller %s: %v, want %q", controller, err, want)
		}
	}
}

func TestAdvise(t *testing.T) {
	out, err := backtestOut(t, "--trace", traceFile(t), "--advise", "--startup", "30s", "--seeds", "1", "--replicas", "6")
	if err != nil {
		t.Fatal(err)
	}
	p, err := policy.Parse("advice", []byte(out))
	if err != nil || len(p) != 1 {
		t.Fatalf("%v\n%s", err, out)
	}
	if strings.Contains(out, "gpu: {metric: SMActive}") != strings.Contains(out, "a curve that is an assumption") {
		t.Errorf("the assumption on SM activity is printed for the wrong signal:\n%s", out)
	}
	for _, want := range []string{"# From 1 replays of t", "# Load: by ", "to a peak of 6 replicas", "% missed for", "maxReplicas: ", "at its best: "} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	if max := p[0].Policy.Max; max < 6 || max > 60 {
		t.Errorf("a maximum of %d for a load of 6", max)
	}
	if _, err := backtestOut(t, "--trace", traceFile(t), "--advise", "-o", "html"); err == nil {
		t.Error("--advise as HTML was accepted")
	}
}

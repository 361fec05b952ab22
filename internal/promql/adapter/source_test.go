// SPDX-License-Identifier: Apache-2.0

package adapter

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/gpupilot/gpupilot/internal/promql/client"
	"github.com/gpupilot/gpupilot/internal/promql/source"
)

const adapterFile = `
rules:
- seriesQuery: DCGM_FI_DEV_GPU_UTIL{pod!=""}
  resources: {overrides: {namespace: {resource: namespace}, pod: {resource: pod}}}
  name: {as: gpu_util}
  metricsQuery: avg(<<.Series>>{<<.LabelMatchers>>}) by (<<.GroupBy>>)
`

// The rules of a file are a source of the metrics API, whose values come from Prometheus.
func TestAdapterSource(t *testing.T) {
	now := time.Now()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path == "/api/v1/series" && r.FormValue("match[]") == `{pod!="",__name__="DCGM_FI_DEV_GPU_UTIL"}`:
			fmt.Fprint(w, `{"status": "success", "data": [{"__name__": "DCGM_FI_DEV_GPU_UTIL", "namespace": "ml", "pod": "a"}]}`)
		case r.URL.Path == "/api/v1/query" && r.FormValue("query") == `avg(DCGM_FI_DEV_GPU_UTIL{namespace="ml",pod!=""}) by (pod)`:
			fmt.Fprintf(w, `{"status": "success", "data": {"resultType": "vector", "result": [{"metric": {"pod": "a"}, "value": [%d, "55"]}]}}`, now.Unix())
		default:
			http.Error(w, r.Form.Encode(), http.StatusBadRequest)
		}
	}))
	defer server.Close()
	file := filepath.Join(t.TempDir(), "config.yaml")
	write := func(text string) {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(adapterFile)
	backend, err := client.New(client.Config{URL: server.URL, MaxAnswer: MaxAnswer})
	if err != nil {
		t.Fatal(err)
	}
	rules := New(ServerConfig{File: file}, Deps{Backend: Remote(backend), Log: slog.New(slog.DiscardHandler)})
	rules.ReadFile()
	rules.Discover(t.Context())
	s := rules.Source()
	var listed []string
	for _, m := range s.Metrics() {
		listed = append(listed, fmt.Sprint(m.GroupResource, "/", m.Metric, " ", m.Namespaced))
	}
	if got := strings.Join(listed, ", "); got != "namespaces/gpu_util false, pods/gpu_util true" {
		t.Error(got)
	}
	pods := schema.GroupResource{Resource: "pods"}
	q := source.Query{Resource: pods, Namespace: "ml", Names: []string{"a", "b"}, Metric: "gpu_util", Selector: labels.Everything(), Now: now}
	v, err := s.Values(t.Context(), q)
	if err != nil || len(v) != 1 || v[0].Name != "a" || v[0].Value != 55 || v[0].At.Unix() != now.Unix() {
		t.Errorf("%v, %v", v, err)
	}
	q.Metric = "nope"
	if _, err := s.Values(t.Context(), q); !errors.Is(err, source.ErrUnknownMetric) {
		t.Error(err)
	}
	q.Metric, q.Namespace = "gpu_util", "other"
	if _, err := s.Values(t.Context(), q); !apierrors.IsServiceUnavailable(err) || strings.Contains(err.Error(), "avg") {
		t.Errorf("a failed query: %v", err)
	}
	if q.Selector, err = labels.Parse("n>1"); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Values(t.Context(), q); !apierrors.IsBadRequest(err) {
		t.Errorf("a selector without an equivalent: %v", err)
	}
	write("rules: [{}]")
	rules.ReadFile()
	if rules.Discover(t.Context()); len(s.Metrics()) != 2 || !rules.Broken() {
		t.Error("a broken file removed the metrics")
	}
}

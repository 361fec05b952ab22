// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	externalv1beta1 "k8s.io/metrics/pkg/apis/external_metrics/v1beta1"
)

// The adapter answers with the recording rule's value of the namespace. Without a value the list is empty, so that the HPA
// knows none.
func TestAdapter(t *testing.T) {
	body, status := "", http.StatusOK
	prometheus := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if q := r.FormValue("query"); q != chainMetric {
			t.Errorf("query %q", q)
		}
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}))
	defer prometheus.Close()
	c := &chain{url: prometheus.URL}
	adapter := httptest.NewServer(c.handler())
	defer adapter.Close()
	f := func(path, answer string, code int, want string) {
		t.Helper()
		body = answer
		resp, err := http.Get(adapter.URL + externalMetrics + path)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		var list externalv1beta1.ExternalMetricValueList
		got := ""
		if resp.StatusCode == http.StatusOK && path != "" {
			if err := json.NewDecoder(resp.Body).Decode(&list); err != nil {
				t.Fatal(err)
			}
			for _, x := range list.Items {
				got += x.MetricName + "=" + x.Value.String()
			}
		}
		if resp.StatusCode != code || got != want {
			t.Errorf("%q: %d %q, want %d %q", answer, resp.StatusCode, got, code, want)
		}
	}
	const one = `{"status": "success", "data": {"result": [{"metric": {"namespace": "default"}, "value": [1700000000.5, "61.25"]}]}}`
	metric := "/namespaces/default/" + chainMetric
	f("", one, 200, "")
	f(metric, one, 200, chainMetric+"=61250m")
	f("/namespaces/other/"+chainMetric, one, 200, "")
	f("/namespaces/default/other", one, 404, "")
	f(metric, `{"status": "success", "data": {"result": []}}`, 200, "")
	f(metric, strings.Replace(one, "61.25", "NaN", 1), 502, "")
	f(metric, `no JSON`, 502, "")
	f(metric, `{"status": "error"}`, 502, "")
}

func TestFindPrometheus(t *testing.T) {
	t.Chdir(t.TempDir())
	for _, name := range []string{"PATH", "HOME", "GPUPILOT_CACHE", "XDG_CACHE_HOME"} {
		t.Setenv(name, "")
	}
	if got := findPrometheus(); got != "" {
		t.Errorf("found %q", got)
	}
	f := func(variable, folder string) { // of the variable's folder
		t.Helper()
		root := t.TempDir()
		t.Setenv(variable, root)
		if got := findPrometheus(); got != "" {
			t.Errorf("%s: found %q in an empty folder", variable, got)
		}
		dir := filepath.Join(root, folder)
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		program := filepath.Join(dir, "prometheus")
		if err := os.WriteFile(program, nil, 0o700); err != nil { //nolint:gosec // it is to be executable
			t.Fatal(err)
		}
		if got := findPrometheus(); got != program {
			t.Errorf("%s: found %q, want %q", variable, got, program)
		}
		t.Setenv(variable, "")
	}
	f("HOME", ".cache/gpupilot/prometheus/usr/bin")
	f("XDG_CACHE_HOME", "gpupilot/prometheus/usr/bin")
	f("GPUPILOT_CACHE", "prometheus/usr/bin")
	f("PATH", ".")
}

// The usual chain takes minutes: it is left out of a short demo, and where there is no Prometheus.
func TestWhenThereIsAChain(t *testing.T) {
	f := func(seconds, prometheus string, chained bool, round time.Duration) {
		t.Helper()
		s, err := newScenario(seconds, "", "")
		if err != nil {
			t.Fatal(err)
		}
		s = s.withChain(prometheus)
		if (s.chain != "") != chained || s.round() != round {
			t.Errorf("%s s with %q: chain %q, round %v", seconds, prometheus, s.chain, s.round())
		}
	}
	f("", "/usr/bin/prometheus", true, chainRound)
	f("", "", false, shortRound)
	f("360", "/usr/bin/prometheus", true, chainRound)
	f("359", "/usr/bin/prometheus", false, shortRound)
	f("90", "/usr/bin/prometheus", false, shortRound)
}

// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/gpupilot/gpupilot/internal/replay/contender"
)

// writeFile writes a file to a temporary directory and returns its path.
func writeFile(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// traceFile writes a trace of half an hour whose load doubles in the middle.
func traceFile(t *testing.T) string {
	var b strings.Builder
	b.WriteString("t_s,timestamp,count_in_5min\n")
	for _, row := range []string{"0,a,600", "300,a,700", "600,a,1500", "900,a,1500", "1200,a,500", "1500,a,500"} {
		b.WriteString(row + "\n")
	}
	return writeFile(t, "t.csv", b.String())
}

func backtestOut(t *testing.T, args ...string) (string, error) {
	t.Helper()
	var out bytes.Buffer
	err := run(t.Context(), append([]string{"backtest", "-q"}, args...), &out)
	return out.String(), err
}

func TestBacktest(t *testing.T) {
	trace := traceFile(t)
	args := []string{"--trace", trace, "--replicas", "4", "--seeds", "1", "--startup", "30s", "--quick", "--peers", "kpa"}
	table, err := backtestOut(t, args...)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"gpupilot-requests", "gpupilot-gpu", "ratio", "30s"} {
		if !strings.Contains(table, want) {
			t.Errorf("no %q in\n%s", want, table)
		}
	}
	page := filepath.Join(t.TempDir(), "report.html")
	if out, err := backtestOut(t, append(args, "-o", "html", "--out", page)...); err != nil || out != "" {
		t.Errorf("html: %q, %v", out, err)
	}
	if b, err := os.ReadFile(page); err != nil || !bytes.Contains(b, []byte("</html>")) {
		t.Errorf("the report has %d bytes, %v", len(b), err)
	}
}

// --policy replays the object within its own bounds, with the load as recorded.
// The SM activity of one's own server replaces the assumed curve: a server whose SMs are all active at once needs more
// replicas at a target of SM activity.
func TestBacktestCalibration(t *testing.T) {
	cost := func(args ...string) float64 {
		t.Helper()
		out, err := backtestOut(t, append([]string{"--trace", traceFile(t), "--replicas", "4", "--seeds", "1", "--startup", "30s", "--peers", "none", "-o", "json"}, args...)...)
		if err != nil {
			t.Fatal(err)
		}
		var report struct {
			Promises []struct {
				Who      string
				GPUHours float64 `json:"gpuHoursPerMonth"`
			}
		}
		if err := json.Unmarshal([]byte(out), &report); err != nil {
			t.Fatal(err)
		}
		for _, p := range report.Promises {
			if p.Who == "gpupilot-gpu" {
				return p.GPUHours
			}
		}
		return 0
	}
	full := writeFile(t, "full.json", `[{"server": "llama", "batches": [{"batch": 1, "smActive": 0.9}, {"batch": 64, "smActive": 1}]}]`)
	if assumed, measured := cost(), cost("--calibration", full); !(measured > 1.1*assumed) {
		t.Errorf("%v GPU-hours by the assumption, %v measured", assumed, measured)
	}
	for text, want := range map[string]string{"[]": "load server", `[{"batches": [{"batch": 1, "smActive": 2}, {"batch": 2, "smActive": 2}]}]`: "want 0 to 1"} {
		if _, err := backtestOut(t, "--trace", traceFile(t), "--calibration", writeFile(t, "bad.json", text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", text, err)
		}
	}
}

func TestBacktestPolicy(t *testing.T) {
	policy := writeFile(t, "p.yaml", `apiVersion: gpupilot.dev/v1alpha1
kind: GPUAutoscaler
metadata: {name: mine}
spec:
  scaleTargetRef: {kind: Deployment, name: model}
  minReplicas: 2
  maxReplicas: 3
  signals:
    - pods: {metric: "vllm:num_requests_running"}
      target: {value: "1"}
`)
	out, err := backtestOut(t, "--trace", traceFile(t), "--policy", policy, "--peers", "none", "--replicas", "0", "--seeds", "1", "-o", "json")
	if err != nil {
		t.Fatal(err)
	}
	var report struct {
		Cases []struct {
			Ours []struct {
				Name        string
				ReplicasMax int
			}
		}
	}
	if err := json.Unmarshal([]byte(out), &report); err != nil {
		t.Fatal(err)
	}
	ours := report.Cases[0].Ours
	if len(ours) != 1 || ours[0].Name != "mine" || ours[0].ReplicasMax != 3 {
		t.Errorf("%+v, want mine with at most 3 replicas", ours)
	}
}

// --prometheus replays a history, here with a gap.
func TestBacktestPrometheus(t *testing.T) {
	var asked []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = append(asked, r.URL.Path+" "+r.FormValue("query")+" "+r.FormValue("step"))
		start, _ := strconv.Atoi(r.FormValue("start"))
		var values []string
		for i := range 30 {
			if i != 7 {
				values = append(values, fmt.Sprintf(`[%d,"%d"]`, start+60*i, 5+i%3))
			}
		}
		fmt.Fprintf(w, `{"status":"success","data":{"resultType":"matrix","result":[{"metric":{},"values":[%s]}]}}`, strings.Join(values, ","))
	}))
	defer server.Close()
	out, err := backtestOut(t, "--prometheus", server.URL+"/x", "--query", "sum(rate(a[1m]))", "--history", "30m", "--peers", "none", "--seeds", "1", "--replicas", "4")
	if err != nil || !strings.Contains(out, "prometheus") {
		t.Errorf("%v\n%s", err, out)
	}
	if len(asked) != 1 || asked[0] != "/x/api/v1/query_range sum(rate(a[1m])) 60" {
		t.Errorf("asked %q", asked)
	}
}

func TestBacktestRefuses(t *testing.T) {
	trace := traceFile(t)
	query := writeFile(t, "q.yaml", "kind: GPUAutoscaler\nmetadata: {name: q}\nspec: {maxReplicas: 3, signals: [{pods: {metric: unheard_of}, target: {value: 1}}]}\n")
	for want, args := range map[string][]string{
		"at least one --trace":         nil,
		"nowhere.csv":                  {"--trace", "nowhere.csv"},
		"-o pdf":                       {"--trace", trace, "-o", "pdf"},
		"--replicas \"9:3\"":           {"--trace", trace, "--replicas", "9:3"},
		"--startup 0s":                 {"--trace", trace, "--startup", "0s"},
		"no model \"gpt\"":             {"--trace", trace, "--model", "gpt"},
		"--peers vpa":                  {"--trace", trace, "--peers", "vpa"},
		"kind \"Deployment\"":          {"--trace", trace, "--policy", writeFile(t, "d.yaml", "kind: Deployment\n")},
		"has no metric \"unheard_of\"": {"--trace", trace, "--policy", query, "--peers", "none"},
		"spec.signals[0].gpus":         {"--trace", trace, "--policy", writeFile(t, "u.yaml", "kind: GPUAutoscaler\nspec: {maxReplicas: 3, signals: [{gpus: 1}]}\n")},
	} {
		if _, err := backtestOut(t, args...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v, want %q", args, err, want)
		}
	}
}

// Results that do not depend on our policies are simulated once. An invalid cache file is
// replaced.
func TestPeersCache(t *testing.T) {
	path := writeFile(t, "peers.json", `{"a":[]}`)
	args := []string{"--trace", traceFile(t), "--replicas", "4", "--seeds", "1", "--startup", "30s", "--quick", "--peers", "kpa", "--peers-cache", path}
	first, err := backtestOut(t, args...)
	if err != nil {
		t.Fatal(err)
	}
	var cache map[string]map[string]any
	b, err := os.ReadFile(path)
	if err != nil || json.Unmarshal(b, &cache) != nil || len(cache) != 1 {
		t.Fatalf("%d cached cases, %v", len(cache), err)
	}
	for _, baseline := range cache { // a result that only the file has
		peer := baseline["peers"].([]any)[0].(map[string]any)
		peer["violationsPercent"], peer["gpuHours"] = 0, 1e-3
	}
	if b, err = json.Marshal(cache); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	if again, err := backtestOut(t, args...); err != nil || again == first {
		t.Errorf("the cache was not used: %v\n%s", err, again)
	}
}

// A load is replayed as recorded, unless --replicas scales it. The output has the scale.
func TestBacktestScale(t *testing.T) {
	args := []string{"--trace", traceFile(t), "--peers", "none", "--seeds", "1"}
	f := func(wants []string, scale func(float64) bool, more ...string) {
		t.Helper()
		args := append(slices.Clone(args), more...)
		lacks := func(out string) bool {
			return slices.ContainsFunc(wants, func(want string) bool { return !strings.Contains(out, want) })
		}
		if out, err := backtestOut(t, args...); err != nil || lacks(out) {
			t.Errorf("%v: %v, want %q in\n%s", more, err, wants, out)
		}
		out, err := backtestOut(t, append(args, "-o", "json")...)
		var report struct {
			Cases []struct{ Scale, PeakReplicas float64 }
		}
		if err != nil || json.Unmarshal([]byte(out), &report) != nil || len(report.Cases) != 1 || !scale(report.Cases[0].Scale) {
			t.Errorf("%v: %v, %+v", more, err, report)
		}
		if out, err = backtestOut(t, append(args, "-o", "html")...); err != nil || lacks(out) {
			t.Errorf("%v: %v, want %q on the page", more, err, wants)
		}
	}
	f([]string{"as recorded"}, func(x float64) bool { return x == 1 })
	f([]string{"by ", "to a peak of 8 replicas"}, func(x float64) bool { return x > 2 }, "--replicas", "8")
}

// The output of --quick says that it is not for publication.
func TestBacktestQuick(t *testing.T) {
	out, err := backtestOut(t, "--trace", traceFile(t), "--peers", "kpa", "--seeds", "1", "--quick")
	if err != nil || !strings.Contains(out, "15 settings of Knative; a first look: the gaps between them flatter the policies") {
		t.Errorf("%v\n%s", err, out)
	}
	quick, full := len(contender.QuickGrid().Peers(nil, "")), len(contender.FullGrid().Peers(nil, ""))
	if want := fmt.Sprintf("%d of the peers' settings instead of %d", quick, full); !strings.Contains(quickHelp, want) {
		t.Errorf("%q, want %q", quickHelp, want)
	}
}

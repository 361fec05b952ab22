// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"github.com/gpupilot/gpupilot/internal/scale/policy"
)

func migrateOut(t *testing.T, args ...string) (string, error) {
	t.Helper()
	var out bytes.Buffer
	err := run(t.Context(), append([]string{"migrate"}, args...), &out)
	return out.String(), err
}

const chatHPA = `
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {name: chat, namespace: ml}
spec:
  scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: chat}
  maxReplicas: 12
  metrics:
    - {type: Pods, pods: {metric: {name: "vllm:num_requests_running"}, target: {type: AverageValue, averageValue: "6"}}}
`

// The output is the object to apply, with the comparison as comments.
func TestMigrateHPA(t *testing.T) {
	file, trace := writeFile(t, "hpa.yaml", chatHPA), traceFile(t)
	out, err := migrateOut(t, "hpa", file, "--trace", trace, "--seeds", "1", "-q", "--startup", "30s")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"# Dry run: 1 replay", "replica-hours", "requests over a limit", "changes of direction", "pods:\n      metric: vllm:num_requests_running"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	if _, err := policy.Parse("x", []byte(out)); err != nil {
		t.Error(err)
	}
	out, err = migrateOut(t, "hpa", file, "-o", "json")
	var object struct {
		Object  map[string]any
		Skipped string `json:"dryRunSkipped"`
	}
	if err != nil || json.Unmarshal([]byte(out), &object) != nil || object.Object["kind"] != "GPUAutoscaler" || !strings.Contains(object.Skipped, "--trace") {
		t.Errorf("%v\n%s", err, out)
	}
	f := func(want string, args ...string) {
		t.Helper()
		if _, err := migrateOut(t, args...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v, want %q", args, err, want)
		}
	}
	f("the file has no ScaledObject", "scaledobject", file)
	f("want text, json or yaml", "hpa", file, "-o", "html")
	f("no such file", "hpa", file+".yaml")
	f("--adapter-config", "hpa", file, "--adapter-config", file)
}

// An object without an equivalent is an error, and those beside it in the file are printed.
func TestMigrateWithoutSignal(t *testing.T) {
	old := strings.NewReplacer("autoscaling/v2", "autoscaling/v2beta1", "metric: {name: \"vllm:num_requests_running\"}, target: {type: AverageValue, averageValue: \"6\"}",
		"metricName: DCGM_FI_DEV_GPU_UTIL, targetAverageValue: 6").Replace(chatHPA)
	cpu := strings.NewReplacer("name: chat", "name: web", "Pods, pods: {metricName: DCGM_FI_DEV_GPU_UTIL, targetAverageValue: 6}", "Resource, resource: {name: cpu, targetAverageUtilization: 50}").Replace(old)
	file := writeFile(t, "hpa.yaml", cpu+"---\n"+old)
	for _, format := range []string{"text", "json", "yaml"} {
		out, err := migrateOut(t, "hpa", file, "-o", format)
		if err == nil || !strings.Contains(err.Error(), "HorizontalPodAutoscaler web has no equivalent:\n  spec.metrics[0].resource.target: a percentage of the pods' requests of cpu") ||
			!strings.Contains(out, "DCGM_FI_DEV_GPU_UTIL") || strings.Contains(out, "null") || strings.Contains(out, "web") {
			t.Errorf("%s: %v\n%s", format, err, out)
		}
	}
}

// An original whose metrics cannot be replayed is translated without a dry run.
func TestMigrateWithoutReplay(t *testing.T) {
	file := writeFile(t, "hpa.yaml", strings.ReplaceAll(chatHPA, "vllm:num_requests_running", "dances"))
	out, err := migrateOut(t, "hpa", file, "--trace", traceFile(t), "--seeds", "1", "-q")
	if err != nil || !strings.Contains(out, "# Dry run: the HorizontalPodAutoscaler cannot be replayed") || !strings.Contains(out, `no metric "dances"`) {
		t.Errorf("%v\n%s", err, out)
	}
}

// A name is read from the cluster.
func TestMigrateFromACluster(t *testing.T) {
	var asked []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = append(asked, r.URL.Path)
		if strings.HasSuffix(r.URL.Path, "/chat") {
			fmt.Fprint(w, `{"kind": "ScaledObject", "metadata": {"name": "chat", "namespace": "ml"}, "spec": {"scaleTargetRef": {"name": "chat"}, "triggers": [{"type": "prometheus", "metadata": {"query": "up", "threshold": "1"}}]}}`)
			return
		}
		w.WriteHeader(http.StatusNotFound)
		fmt.Fprint(w, `{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "message": "not found", "code": 404}`)
	}))
	defer server.Close()
	config := writeFile(t, "config", fmt.Sprintf(`
apiVersion: v1
kind: Config
current-context: x
contexts: [{name: x, context: {cluster: x, namespace: ml}}]
clusters: [{name: x, cluster: {server: %q}}]
`, server.URL))
	t.Chdir(t.TempDir())
	out, err := migrateOut(t, "scaledobject", "chat", "--kubeconfig", config)
	if err != nil || !strings.Contains(out, "promql: sum(up)") {
		t.Errorf("%v\n%s", err, out)
	}
	if _, err := migrateOut(t, "hpa", "other", "--kubeconfig", config); err == nil || !strings.Contains(err.Error(), "HorizontalPodAutoscaler ml/other: not found") {
		t.Error(err)
	}
	want := "/apis/keda.sh/v1alpha1/namespaces/ml/scaledobjects/chat /apis/autoscaling/v2/namespaces/ml/horizontalpodautoscalers/other"
	if got := strings.Join(asked, " "); got != want {
		t.Errorf("asked %s", got)
	}
}

func TestMigrateAdapter(t *testing.T) {
	file := writeFile(t, "config.yaml", `rules: [{seriesQuery: DCGM_FI_DEV_GPU_UTIL, resources: {template: "<<.Resource>>"}, metricsQuery: "<<.Series>>{<<.LabelMatchers>>}"}]`)
	out, err := migrateOut(t, "prometheus-adapter", file)
	if err != nil || !strings.Contains(out, "rules[0]  DCGM_FI_DEV_GPU_UTIL: built-in metric") {
		t.Errorf("%v\n%s", err, out)
	}
	for _, format := range []string{"json", "yaml"} {
		if out, err = migrateOut(t, "prometheus-adapter", file, "-o", format); err != nil || !strings.Contains(out, "built-in metric") {
			t.Errorf("%v\n%s", err, out)
		}
	}
	plain := writeFile(t, "plain.yaml", `rules: [{seriesQuery: made, resources: {overrides: {pod: {resource: pod}}}, metricsQuery: "<<.Series>>{<<.LabelMatchers>>}"}]`)
	rules := writeFile(t, "rules.yaml", "kind: PrometheusRule\nspec: {groups: [{rules: [{record: made, expr: sum(a)}]}]}")
	if out, err = migrateOut(t, "prometheus-adapter", plain, rules); err != nil || !strings.Contains(out, "rules[0]  made: recording rule") {
		t.Errorf("%v\n%s", err, out)
	}
	if _, err := migrateOut(t, "prometheus-adapter", plain, plain); err == nil || !strings.Contains(err.Error(), "plain.yaml: the file has no rules") {
		t.Error(err)
	}
	if _, err := migrateOut(t, "prometheus-adapter", writeFile(t, "x.yaml", "a: b")); err == nil || !strings.Contains(err.Error(), "x.yaml: the file has no rules") {
		t.Error(err)
	}
}

// --policy takes HPAs and ScaledObjects; their equivalents are replayed beside them.
func TestBacktestOfAnHPA(t *testing.T) {
	trace := traceFile(t)
	args := []string{"--trace", trace, "--seeds", "1", "--startup", "30s", "--quick", "--peers", "hpa"}
	out, err := backtestOut(t, append(args, "--policy", writeFile(t, "hpa.yaml", chatHPA))...)
	if err != nil || !strings.Contains(out, "chat HPA ") || !strings.Contains(out, "\nchat  ") {
		t.Errorf("%v\n%s", err, out)
	}
	ours, err := os.ReadFile("../../examples/vllm-requests.yaml")
	if err != nil {
		t.Fatal(err)
	}
	out, err = backtestOut(t, append(args, "--policy", writeFile(t, "both.yaml", chatHPA+"---\n"+string(ours)+"---\n"+chatHPA))...)
	if err != nil || !strings.Contains(out, "chat HPA (2)") {
		t.Errorf("%v\n%s", err, out)
	}
	_, err = backtestOut(t, append(args, "--policy", writeFile(t, "x.yaml", strings.ReplaceAll(chatHPA, "vllm:num_requests_running", "dances")))...)
	if err == nil || !strings.Contains(err.Error(), `spec.metrics[0].pods: the simulated server has no metric "dances"`) {
		t.Error(err)
	}
}

// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// The value rules of prometheus-adapter's chart, as docs/migrate.md copies it from published guides, is a
// value of this chart.
func TestAdapterRules(t *testing.T) {
	_, text, found := strings.Cut(string(readFile(t, root, "docs", "migrate.md")), "```yaml\nrules:\n")
	text, _, end := strings.Cut("rules:\n"+text, "```")
	if !found || !end {
		t.Fatal("docs/migrate.md has no rules")
	}
	const external = "[{seriesQuery: queue_depth, metricsQuery: 'sum(<<.Series>>{<<.LabelMatchers>>})'}]"
	o := mustRender(t, text+"  external: "+external+"\nexternalMetrics: {enabled: true}\n")
	file, ok := o.get(t, "ConfigMap/gpupilot-adapter", "data|config.yaml").(string)
	if !ok {
		t.Fatal("config.yaml is no text")
	}
	custom, ok := values(t, text)["rules"].(map[string]any)
	if !ok || custom["custom"] == nil {
		t.Fatalf("the page's rules: %v", custom)
	}
	want := map[string]any{"rules": custom["custom"], "externalRules": values(t, "x: "+external)["x"]} // prometheus-adapter's config.yaml
	if diff := cmp.Diff(want, values(t, file)); diff != "" {
		t.Errorf("-values +ConfigMap\n%s", diff)
	}
	mounts(t, o, "adapter", "gpupilot-adapter", "--adapter-config=/etc/gpupilot/adapter/config.yaml")
	mounts(t, mustRender(t, "rules: {existing: adapter-config}"), "adapter", "adapter-config", "--adapter-config=/etc/gpupilot/adapter/config.yaml")
}

func TestRuleFiles(t *testing.T) {
	const groups = "{groups: [{name: team, interval: 5s, rules: [{record: 'namespace:gpu_utilization:avg', expr: 'avg by (namespace) (DCGM_FI_DEV_GPU_UTIL)'}]}]}"
	o := mustRender(t, "ruleFiles: {a.yaml: "+groups+", b.yaml: {groups: []}}")
	file, ok := o.get(t, "ConfigMap/gpupilot-rules", "data|a.yaml").(string)
	if !ok || o.get(t, "ConfigMap/gpupilot-rules", "data|b.yaml") != "groups: []" {
		t.Fatalf("%v", o["ConfigMap/gpupilot-rules"])
	}
	if diff := cmp.Diff(values(t, groups), values(t, file)); diff != "" {
		t.Errorf("-values +ConfigMap\n%s", diff)
	}
	mounts(t, o, "rules", "gpupilot-rules", "--rule-files=/etc/gpupilot/rules/*.yaml")
}

// mounts checks that the controller mounts a ConfigMap where its argument says.
func mounts(t *testing.T, o objects, name, configMap, arg string) {
	t.Helper()
	container, ok := o.get(t, "Deployment/gpupilot-controller", "spec|template|spec|containers|0").(map[string]any)
	if !ok {
		t.Fatal("the Deployment has no container")
	}
	_, path, _ := strings.Cut(arg, "=")
	dir := path[:strings.LastIndex(path, "/")]
	for what, pair := range map[string][2]any{
		"args":         {container["args"], arg},
		"volumeMounts": {container["volumeMounts"], map[string]any{"name": name, "mountPath": dir, "readOnly": true}},
		"volumes":      {o.get(t, "Deployment/gpupilot-controller", "spec|template|spec|volumes"), map[string]any{"name": name, "configMap": map[string]any{"name": configMap}}},
	} {
		list, _ := pair[0].([]any)
		found := false
		for _, have := range list {
			found = found || cmp.Equal(have, pair[1])
		}
		if !found {
			t.Errorf("%s: %v, want %v in it", what, list, pair[1])
		}
	}
}

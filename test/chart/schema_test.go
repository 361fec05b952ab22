// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"
)

// values.schema.json has the schema of gpuExporter.spec from the CRD: Helm 3 and helm template refuse what the API server
// would refuse or drop.
func TestSchemaOfGPUExporterIsCurrent(t *testing.T) {
	var crd struct {
		Spec struct {
			Versions []struct {
				Schema struct {
					OpenAPIV3Schema struct {
						Properties map[string]map[string]any
					} `json:"openAPIV3Schema"`
				}
			}
		}
	}
	if err := yaml.Unmarshal(readFile(t, root, "deploy/crds/gpupilot.dev_gpuexporters.yaml"), &crd); err != nil {
		t.Fatal(err)
	}
	spec := crd.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"]
	delete(spec, "required") // the chart and the API server add defaults
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false) // patterns have < and >
	e.SetIndent("    ", "  ")
	if err := e.Encode(jsonSchema(spec)); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(chartDir, "values.schema.json")
	text := string(readFile(t, path))
	const key = `    "gpuExporterSpec": `
	before, rest, found := strings.Cut(text, key)
	var now json.RawMessage
	d := json.NewDecoder(strings.NewReader(rest))
	if err := d.Decode(&now); err != nil || !found {
		t.Fatalf("%s has no definition gpuExporterSpec: %v", path, err)
	}
	want := before + key + strings.TrimSpace(b.String()) + rest[d.InputOffset():]
	if *update {
		if err := os.WriteFile(path, []byte(want), 0o644); err != nil { // of the chart, for everybody
			t.Fatal(err)
		}
		text = want
	}
	if diff := cmp.Diff(want, text); diff != "" {
		t.Errorf("%s is not what the CRD says: run make chart\n%s", path, diff)
	}
}

// jsonSchema converts a schema of a CRD: an object has no other fields than those it lists.
func jsonSchema(in map[string]any) map[string]any {
	out := map[string]any{}
	for key, value := range in {
		switch key {
		case "properties":
			fields := map[string]any{}
			for name, field := range value.(map[string]any) {
				fields[name] = jsonSchema(field.(map[string]any))
			}
			out[key], out["additionalProperties"] = fields, false
		case "items", "additionalProperties":
			out[key] = jsonSchema(value.(map[string]any))
		case "x-kubernetes-int-or-string":
			out["type"] = []string{"integer", "string"}
		case "type", "enum", "pattern", "required", "minimum", "maximum", "minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties":
			out[key] = value
		}
	}
	return out
}

func TestUnknownFieldsOfGPUExporterAreRefused(t *testing.T) {
	f := func(spec string, words ...string) {
		t.Helper()
		_, _, err := render(values(t, "gpuExporter: {spec: "+spec+"}"))
		if err == nil {
			t.Errorf("%s: rendered", spec)
			return
		}
		for _, word := range append(words, "gpuExporter") {
			if !strings.Contains(err.Error(), word) {
				t.Errorf("%s: no %q in: %v", spec, word, err)
			}
		}
	}
	f("{intervall: 1s}", "intervall")
	f("{driver: {roots: /x}}", "roots")
	f("{monitoring: {serviceMonitor: {intervall: 1s}}}", "intervall")
	f("{discovery: Everywhere}", "discovery")
	mustRender(t, `gpuExporter: {spec: {interval: 2s, monitoring: {serviceMonitor: {endpoint: {anything: [1]}}}, resources: {limits: {memory: 64Mi, cpu: 1}}}}`)
}

// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"helm.sh/helm/v4/pkg/action"
	"helm.sh/helm/v4/pkg/chart/common"
	kubefake "helm.sh/helm/v4/pkg/kube/fake"
	release "helm.sh/helm/v4/pkg/release/v1"
	"helm.sh/helm/v4/pkg/storage"
	"helm.sh/helm/v4/pkg/storage/driver"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/validation"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/test/schema"
)

var (
	sweepValues = flag.Int("sweep", 300, "how many values of the chart to render; 0: every value of every field")
	sweepSeed   = flag.Uint64("seed", 1, "of the choice of values")
)

// unclear are parts of errors that say nothing about a value, only about a template.
var unclear = []string{"nil pointer", "can't evaluate", "YAML parse error", "error converting YAML", "wrong type for value", "error unmarshaling", "exists twice", "incompatible types", "did not find expected", "panic"}

// Each value of the chart, set to what its schema allows and to what it does not: the
// chart renders objects that the API server would decode, or says which value is wrong.
func TestEveryValueRendersOrIsRefused(t *testing.T) {
	s, err := schema.ReadJSON(filepath.Join(chartDir, "values.schema.json"))
	if err != nil {
		t.Fatal(err)
	}
	decoder := strictDecoder(t)
	bases := valuesFiles(t)
	names := []string{"values.yaml"}
	for name := range bases {
		if name != "values.yaml" {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	r := rand.New(rand.NewPCG(*sweepSeed, 0))
	type change struct {
		field schema.Path
		value schema.Value
	}
	var all []change
	for _, f := range s.Fields(nil) {
		for _, v := range s.At(f).Values() {
			all = append(all, change{f, v})
		}
	}
	r.Shuffle(len(all), func(a, b int) { all[a], all[b] = all[b], all[a] })
	if *sweepValues > 0 {
		all = all[:min(len(all), *sweepValues)]
	}
	rendered, refused := 0, 0
	for _, c := range all {
		base := names[r.IntN(len(names))]
		vals := s.With(bases[base], c.field, c.value.V, false)
		text, _ := json.Marshal(c.value.V)
		what := fmt.Sprintf("%s = %.200s beside %s", c.field, text, base)
		objects, _, err := render(vals)
		switch {
		case err == nil && c.value.Forbidden && !isMap(c.value.V): // Helm merges defaults into a map
			t.Errorf("%s: the schema forbids it, and it is rendered", what)
		case err == nil:
			rendered++
			for key, o := range objects {
				if err := decodes(decoder, o); err != nil {
					t.Errorf("%s: %s: %v", what, key, err)
					break
				}
			}
		default:
			refused++
			if i := slices.IndexFunc(unclear, func(u string) bool { return strings.Contains(err.Error(), u) }); i >= 0 {
				t.Errorf("%s: the refusal is about a template: %.600v", what, err)
			}
			if !strings.Contains(err.Error(), c.field[0]) {
				t.Errorf("%s: the refusal does not name it: %.600v", what, err)
			}
		}
	}
	t.Logf("%d values of %d fields: %d rendered, %d refused", len(all), len(s.Fields(nil)), rendered, refused)
}

// helm upgrade --reuse-values renders a chart with the values of the release before it, so without what the chart has added
// since. Whatever value is new, the chart renders what it renders with its defaults.
func TestValuesOfAnOlderRelease(t *testing.T) {
	want := mustRender(t, "")
	var without func(path []string, values map[string]any)
	removed := 0
	without = func(path []string, at map[string]any) {
		for key := range at {
			path := append(slices.Clone(path), key)
			removed++
			t.Run(strings.Join(path, "."), func(t *testing.T) {
				chrt, err := loadChart()
				if err != nil {
					t.Fatal(err)
				}
				unstructured.RemoveNestedField(chrt.Values, path...)
				got, _, err := renderChart(chrt, nil)
				if err != nil {
					t.Fatal(err)
				}
				switch path[0] {
				case "resources", "podSecurityContext", "securityContext", "livenessProbe", "readinessProbe": // as they are, so that null removes a key
					if len(path) > 1 {
						return
					}
				}
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("-defaults +older release\n%s", diff)
				}
			})
			if nested, ok := at[key].(map[string]any); ok {
				without(path, nested)
			}
		}
	}
	chrt, err := loadChart()
	if err != nil {
		t.Fatal(err)
	}
	without(nil, chrt.Values)
	if removed < 100 {
		t.Errorf("only %d values were removed", removed)
	}
}

// Helm's two ways to keep the values of a release: both give what was set, and the defaults of what is new.
func TestUpgradeKeepsValues(t *testing.T) {
	for _, reset := range []bool{false, true} {
		cfg := action.NewConfiguration(action.ConfigurationSetLogger(slog.DiscardHandler))
		cfg.Releases = storage.Init(driver.NewMemory())
		cfg.KubeClient = &kubefake.PrintingKubeClient{Out: io.Discard, LogOutput: io.Discard}
		cfg.Capabilities = common.DefaultCapabilities.Copy()
		version, err := common.ParseKubeVersion(kubeVersion)
		if err != nil {
			t.Fatal(err)
		}
		cfg.Capabilities.KubeVersion = *version
		older, err := loadChart()
		if err != nil {
			t.Fatal(err)
		}
		for _, key := range []string{"global", "history", "agents", "keda"} { // as if they were new
			delete(older.Values, key)
		}
		install := action.NewInstall(cfg)
		install.ReleaseName, install.Namespace, install.SkipCRDs = releaseName, namespace, true
		if _, err := install.Run(older, values(t, "{replicaCount: 5, crds: {check: false}}")); err != nil {
			t.Fatal(err)
		}
		chrt, err := loadChart()
		if err != nil {
			t.Fatal(err)
		}
		upgrade := action.NewUpgrade(cfg)
		upgrade.Namespace, upgrade.ReuseValues, upgrade.ResetThenReuseValues = namespace, !reset, reset
		rel, err := upgrade.Run(releaseName, chrt, values(t, "{controller: {nodeHealth: true}}"))
		if err != nil {
			t.Fatalf("reset %v: %v", reset, err)
		}
		manifest := rel.(*release.Release).Manifest
		for _, part := range []string{"replicas: 5", "--node-health\n", "--history-memory=64Mi"} {
			if !strings.Contains(manifest, part) {
				t.Errorf("reset %v: the upgrade has no %q", reset, part)
			}
		}
	}
}

func TestWindowMemoryFitsTheLimit(t *testing.T) {
	for _, vals := range []string{"controller: {windowMemory: 2Gi}", "controller: {windowMemory: 1073741825}", "resources: {limits: {memory: 500M}}"} {
		if _, _, err := render(values(t, vals)); err == nil || !strings.Contains(err.Error(), "resources.limits.memory") {
			t.Errorf("%s: %v, want a refusal that names the limit", vals, err)
		}
	}
}

func isMap(v any) bool { _, ok := v.(map[string]any); return ok }

// strictDecoder decodes objects as the API server does, and refuses unknown fields.
func strictDecoder(t *testing.T) runtime.Decoder {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	return serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDeserializer()
}

// decodes returns why the API server would refuse an object, as far as its types, names
// and labels say. The spec of a GPUExporter is for its CRD.
func decodes(d runtime.Decoder, o *unstructured.Unstructured) error {
	text, err := json.Marshal(o.Object)
	if err != nil {
		return err
	}
	for _, bad := range []string{"<nil>", "<no value>", "%!", "map["} {
		if strings.Contains(string(text), bad) {
			return fmt.Errorf("%s in %.300s", bad, text[strings.Index(string(text), bad):])
		}
	}
	if errs := validation.IsDNS1123Subdomain(strings.ReplaceAll(o.GetName(), ":", "-")); len(errs) > 0 && o.GetKind() != "CustomResourceDefinition" {
		return fmt.Errorf("the name %q: %v", o.GetName(), errs)
	}
	// Fields of Kubernetes' own types, such as those of resources, are in no schema of the chart.
	if _, _, err := d.Decode(text, nil, nil); err != nil && !runtime.IsNotRegisteredError(err) && o.GetKind() != "GPUExporter" && !strings.Contains(err.Error(), "unknown field") {
		return err
	}
	for _, at := range [][]string{{"metadata", "labels"}, {"spec", "template", "metadata", "labels"}} {
		found, _, err := unstructured.NestedStringMap(o.Object, at...)
		if err != nil {
			return err
		}
		for k, v := range found {
			if errs := append(validation.IsQualifiedName(k), validation.IsValidLabelValue(v)...); len(errs) > 0 {
				return fmt.Errorf("the label %q: %q: %v", k, v, errs)
			}
		}
	}
	return nil
}

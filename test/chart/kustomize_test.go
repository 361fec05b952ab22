// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	sigsyaml "sigs.k8s.io/yaml"
)

var update = flag.Bool("update", false, "write deploy/kustomize")

// deploy/kustomize is generated: crds has the CRDs, base everything else that the chart renders with its defaults.
var kustomizeFiles = map[string]func(kind string) bool{
	"crds/crds.yaml":     func(kind string) bool { return kind == "CustomResourceDefinition" },
	"base/gpupilot.yaml": func(kind string) bool { return kind != "CustomResourceDefinition" },
}

func TestKustomizeIsCurrent(t *testing.T) {
	rendered := withoutHelm(mustRender(t, ""))
	for file, wanted := range kustomizeFiles {
		path := filepath.Join(root, "deploy", "kustomize", file)
		text, err := stream(rendered, wanted)
		if err != nil {
			t.Fatal(err)
		}
		if *update {
			if err := os.WriteFile(path, text, 0o644); err != nil { // a manifest, for everybody
				t.Fatal(err)
			}
		}
		if diff := cmp.Diff(string(text), string(readFile(t, path))); diff != "" {
			t.Errorf("%s is not what the chart renders: run make chart\n%s", path, diff)
		}
	}
}

// kustomize build gives the chart's objects, and the namespace.
func TestKustomizeBuild(t *testing.T) {
	got := objects{}
	for _, dir := range []string{"crds", "base"} {
		built, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), filepath.Join(root, "deploy", "kustomize", dir))
		if err != nil {
			t.Fatal(err)
		}
		text, err := built.AsYaml()
		if err != nil {
			t.Fatal(err)
		}
		decoded, err := decode(text)
		if err != nil {
			t.Fatal(err)
		}
		for k, o := range decoded {
			got[k] = o
		}
	}
	if got["Namespace/"+namespace] == nil {
		t.Errorf("the base has no Namespace %s", namespace)
	}
	delete(got, "Namespace/"+namespace)
	if diff := cmp.Diff(withoutHelm(mustRender(t, "")), got); diff != "" {
		t.Errorf("kustomize and the chart differ: -chart +kustomize\n%s", diff)
	}
}

// withoutHelm removes the labels that say that Helm manages an object.
func withoutHelm(o objects) objects {
	for _, object := range o {
		labels := object.GetLabels()
		for _, label := range []string{"helm.sh/chart", "app.kubernetes.io/managed-by"} {
			delete(labels, label)
		}
		if labels != nil {
			object.SetLabels(labels)
		}
	}
	return o
}

// stream writes the objects of some kinds as one YAML stream, sorted.
func stream(o objects, wanted func(kind string) bool) ([]byte, error) {
	var b bytes.Buffer
	b.WriteString("# SPDX-License-Identifier: Apache-2.0\n#\n# Generated from deploy/chart by make chart. Do not edit.\n")
	keys := make([]string, 0, len(o))
	for k := range o {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, func(a, b string) int { return strings.Compare(a, b) })
	for _, k := range keys {
		if !wanted(o[k].GetKind()) {
			continue
		}
		text, err := sigsyaml.Marshal(o[k].Object)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", k, err)
		}
		b.WriteString("---\n")
		b.Write(text)
	}
	return b.Bytes(), nil
}

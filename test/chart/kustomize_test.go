// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"os/exec"
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

// An overlay chooses both images, as docs/install.md shows.
func TestKustomizeImages(t *testing.T) {
	page := string(readFile(t, root, "docs", "install.md"))
	_, overlay, found := strings.Cut(page, "```yaml kustomization\n")
	if !found {
		t.Fatal("docs/install.md has no kustomization")
	}
	overlay, _, _ = strings.Cut(overlay, "```")
	base, err := filepath.Abs(filepath.Join(root, "deploy", "kustomize", "base"))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.Symlink(base, filepath.Join(dir, "base")); err != nil {
		t.Fatal(err)
	}
	overlay = strings.Replace(overlay, "deploy/kustomize/base", "base", 1)
	if err := os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte(overlay), 0o600); err != nil {
		t.Fatal(err)
	}
	built, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), dir)
	if err != nil {
		t.Fatal(err)
	}
	text, err := built.AsYaml()
	if err != nil {
		t.Fatal(err)
	}
	o, err := decode(text)
	if err != nil {
		t.Fatal(err)
	}
	const container = "spec|template|spec|containers|0|"
	for path, want := range map[string]any{
		container + "image": "registry.example/gpupilot-controller:v2",
		container + "env":   []any{map[string]any{"name": "GPUPILOT_AGENT_IMAGE", "value": "registry.example/gpupilot-agent:v2"}},
	} {
		if diff := cmp.Diff(want, o.get(t, "Deployment/gpupilot-controller", path)); diff != "" {
			t.Errorf("%s: -want +got\n%s", path, diff)
		}
	}
}

// The images of make images are those that the chart and the kustomize base ask for.
func TestImagesHaveTheChartsTag(t *testing.T) {
	chrt, err := loadChart()
	if err != nil {
		t.Fatal(err)
	}
	base := string(readFile(t, root, "deploy", "kustomize", "base", "gpupilot.yaml"))
	for _, name := range []string{"gpupilot-controller", "gpupilot-agent"} {
		if image := "ghcr.io/gpupilot/" + name + ":" + chrt.Metadata.AppVersion + "\n"; !strings.Contains(base, image) {
			t.Errorf("the kustomize base does not ask for %s", image)
		}
	}
	f := func(want string, args ...string) {
		t.Helper()
		// A dry run prints the commands.
		cmd := exec.CommandContext(t.Context(), "make", append([]string{"--dry-run", "--no-print-directory", "images"}, args...)...)
		cmd.Dir = root
		cmd.Env = slices.DeleteFunc(os.Environ(), func(s string) bool {
			return strings.HasPrefix(s, "VERSION=") || strings.HasPrefix(s, "MAKE") || strings.HasPrefix(s, "MFLAGS=")
		})
		out, err := cmd.CombinedOutput()
		if err != nil || !strings.Contains(string(out), "./cmd/images -tag '"+want+"' ") {
			t.Errorf("make images %v does not tag with %s: %v\n%s", args, want, err, out)
		}
	}
	f(chrt.Metadata.AppVersion)
	f("v2", "VERSION=v2")
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

// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"helm.sh/helm/v4/pkg/action"
	"helm.sh/helm/v4/pkg/chart/common"
	v2 "helm.sh/helm/v4/pkg/chart/v2"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	release "helm.sh/helm/v4/pkg/release/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"
	sigsyaml "sigs.k8s.io/yaml"
)

const (
	root        = "../.."
	chartDir    = root + "/deploy/chart"
	releaseName = "gpupilot"
	namespace   = "gpupilot-system"
)

// kubeVersion is the control plane's of test/kube.
const kubeVersion = "v1.37.1"

func loadChart() (*v2.Chart, error) { return loader.LoadDir(chartDir) }

// values parses YAML values.
func values(t *testing.T, text string) map[string]any {
	t.Helper()
	var v map[string]any
	if err := sigsyaml.UnmarshalStrict([]byte(text), &v); err != nil {
		t.Fatalf("values %s: %v", text, err)
	}
	return v
}

// render is helm template --include-crds.
func render(vals map[string]any) (objects, *release.Release, error) {
	chrt, err := loadChart()
	if err != nil {
		return nil, nil, err
	}
	return renderChart(chrt, vals)
}

func renderChart(chrt *v2.Chart, vals map[string]any) (objects, *release.Release, error) {
	return renderInto(namespace, chrt, vals)
}

func renderInto(namespace string, chrt *v2.Chart, vals map[string]any) (_ objects, _ *release.Release, err error) {
	install := action.NewInstall(action.NewConfiguration(action.ConfigurationSetLogger(slog.DiscardHandler)))
	install.DryRunStrategy = action.DryRunClient
	install.ReleaseName, install.Namespace, install.IncludeCRDs = releaseName, namespace, true
	if install.KubeVersion, err = common.ParseKubeVersion(kubeVersion); err != nil {
		return nil, nil, err
	}
	rel, err := install.Run(chrt, vals)
	if err != nil {
		return nil, nil, err
	}
	r, ok := rel.(*release.Release)
	if !ok {
		return nil, nil, fmt.Errorf("helm returned a release of the type %T", rel)
	}
	found, err := decode([]byte(r.Manifest))
	return found, r, err
}

func mustRender(t *testing.T, text string) objects {
	t.Helper()
	o, _, err := render(values(t, text))
	if err != nil {
		t.Fatal(err)
	}
	return o
}

// objects are by KIND/NAME, with NAMESPACE/ before it where there is one other than the release's.
type objects map[string]*unstructured.Unstructured

// decode reads a YAML stream. Two objects with the same identity, and unknown or repeated keys, are errors.
func decode(stream []byte) (objects, error) {
	out := objects{}
	docs := yaml.NewDocumentDecoder(io.NopCloser(bytes.NewReader(stream)))
	defer docs.Close()
	buf := make([]byte, len(stream)+1)
	for {
		n, err := docs.Read(buf)
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil {
			return nil, err
		}
		var o unstructured.Unstructured
		if err := sigsyaml.UnmarshalStrict(buf[:n], &o.Object); err != nil {
			return nil, fmt.Errorf("%w in\n%s", err, buf[:n])
		}
		if len(o.Object) == 0 {
			continue
		}
		k := key(&o)
		if out[k] != nil {
			return nil, fmt.Errorf("%s exists twice", k)
		}
		out[k] = &o
	}
}

func key(o *unstructured.Unstructured) string {
	k := o.GetKind() + "/" + o.GetName()
	if ns := o.GetNamespace(); ns != "" && ns != namespace {
		k = ns + "/" + k
	}
	return k
}

// get returns a nested field as YAML in flow style would have it: a string, a number, or JSON.
func (o objects) get(t *testing.T, key, path string) any {
	t.Helper()
	object := o[key]
	if object == nil {
		t.Fatalf("no %s is rendered", key)
	}
	var v any = object.Object
	for _, part := range strings.Split(path, "|") {
		switch x := v.(type) {
		case map[string]any:
			v = x[part]
		case []any:
			var i int
			if _, err := fmt.Sscanf(part, "%d", &i); err != nil || i >= len(x) {
				t.Fatalf("%s: %s of %s: no such element", key, part, path)
			}
			v = x[i]
		default:
			return nil
		}
	}
	return v
}

func readFile(t *testing.T, elem ...string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(elem...))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

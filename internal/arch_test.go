// SPDX-License-Identifier: Apache-2.0

// Package internal holds the house's import rules (docs/design/0001-house.md).
package internal

import (
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/gpupilot/gpupilot/"

// layers says what each package is. A package that is not here fails the test:
// deciding where it belongs is part of adding it.
var layers = map[string]string{
	"internal/gpu": "core", "internal/series": "core", "internal/scale": "core", "internal/peers": "core", "internal/gpu/names": "core", "internal/gpu/vendorlib": "core",
	"internal/csvtable": "core", "internal/excerpt": "core", "internal/regexpsize": "core", "internal/history": "core",

	"internal/gpu/nvml": "edge", "internal/gpu/dcgm": "edge", "internal/gpu/auto": "edge", "internal/gpu/sim": "edge", "internal/podres": "edge",
	"internal/expo": "edge", "internal/scrape": "edge", "internal/kube": "edge",
	"internal/apiwatch": "edge", "internal/docker": "edge", "internal/filewatch": "edge", "internal/promhistory": "edge", "internal/promq": "edge", "internal/promscope": "edge", "internal/promstore": "edge", "internal/regularfile": "edge", "internal/hpcjobs": "edge", "internal/procs": "edge", "internal/webconfig": "edge", "internal/gcpace": "edge", "internal/flags": "edge", "internal/buildinfo": "edge",

	"internal/agent": "app", "internal/policy": "app", "internal/controller": "app", "internal/nodehealth": "app", "internal/discovery": "app", "internal/podmonitor": "app", "internal/exporter": "app",
	"internal/metricsapi": "app", "internal/webui": "app", "internal/load": "app",
	"internal/trace": "app", "internal/service": "app", "internal/contender": "app", "internal/backtest": "app", "internal/advise": "app",
	"internal/scenario": "app", "internal/whatif": "app",
	"internal/promengine":                "app",
	"internal/promapi":                   "app",
	"internal/rules":                     "app",
	"internal/adapter":                   "app",
	"internal/kedascaler":                "app",
	"internal/kedascaler/externalscaler": "app",
	"internal/metricquery":               "app",
	"internal/migrate":                   "app",

	"internal/gpu/gputest": "suite", "internal/promq/promtest": "suite", "internal/metricsapi/reviewtest": "suite",
}

// may says which of our own packages a layer imports, and why no others.
var may = map[string]struct {
	layers []string
	reason string
}{
	"core":  {[]string{"core"}, "the core runs anywhere: in the controller, in a replay, in a fuzzer"},
	"edge":  {[]string{"core"}, "adapters meet only in cmd, so that each can be replaced alone"},
	"app":   {[]string{"core", "app"}, "applications are handed their adapters, so that tests can hand them others"},
	"suite": {[]string{"core"}, "the conformance suite knows the port, not the adapters"},
}

// coreImports are the exceptions within the core: who imports whom.
var coreImports = map[string][]string{
	"internal/csvtable":      nil,
	"internal/gpu":           nil,
	"internal/gpu/names":     {"internal/gpu"},
	"internal/gpu/vendorlib": {"internal/gpu"},
	"internal/series":        {"internal/gpu"},
	"internal/scale":         {"internal/gpu"},
	"internal/peers":         nil,
	"internal/excerpt":       nil,
	"internal/history":       nil,
	"internal/regexpsize":    nil,
}

// kubernetes are the packages that know its types.
var kubernetes = []string{
	"internal/adapter", "internal/migrate",
	"internal/controller",
	"internal/discovery",
	"internal/exporter",
	"internal/kube",
	"internal/metricquery",
	"internal/metricsapi",
	"internal/nodehealth",
	"internal/podmonitor",
	"internal/policy",
	"internal/rules",
}

// only says where a third party's packages may appear.
var only = []struct {
	prefix string
	in     []string
	reason string
}{
	{"k8s.io/", append(kubernetes, "internal/metricsapi/reviewtest", "internal/promstore"), "Kubernetes is one way in and one way out; the engine and the agent's core do not know it"},
	{"sigs.k8s.io/", kubernetes, "as k8s.io"},
	{"github.com/NVIDIA/go-nvml", []string{"internal/gpu/nvml"}, "one package speaks to the library, behind gpu.Reader"},
	{"github.com/NVIDIA/go-dcgm", nil, "it links a test framework; internal/gpu/dcgm calls the library by itself, and its tests compare the two"},
}

// never is what must not be linked into a program, not even indirectly.
var never = map[string][]banned{"gpupilot-agent": agentNever, "gpupilot": cliNever}

type banned struct{ prefix, reason string }

var agentNever = []banned{
	{"k8s.io/client-go/kubernetes", "the clientset alone doubles the agent's memory"},
	{"k8s.io/client-go/informers", "as the clientset"},
	{"google.golang.org/grpc", "3 MiB for the one call that internal/podres makes by itself"},
	{"k8s.io/kubelet", "its package of messages links grpc-go"},
	{"k8s.io/api/", "the agent speaks to the kubelet, not to the API server"},
	{"sigs.k8s.io/", "as the clientset"},
	{"github.com/prometheus/client_golang", "the exposition is ours, rendered once a tick"},
	{"github.com/NVIDIA/go-dcgm", "1.2 MiB, though DCGM is seldom used"},
	{module + "internal/scale", "the agent decides nothing"},
}

var cliNever = []banned{
	{"k8s.io/client-go/kubernetes", "the clientset and the API groups' types double the program's size, for three requests of known paths"},
	{"k8s.io/client-go/informers", "as the clientset"},
	{"sigs.k8s.io/controller-runtime", "its client links the clientset"},
	{module + "internal/controller", "the CLI reads what the controller wrote"},
}

func TestImports(t *testing.T) {
	for file, imports := range sources(t) {
		pkg := path.Dir(file)
		layer, known := layers[pkg]
		if !known {
			t.Errorf("%s: package %s has no layer; add it to layers", file, pkg)
			continue
		}
		for _, imp := range imports {
			checkImport(t, file, pkg, layer, imp)
		}
	}
}

// docs/design/0001-house.md lists every package.
func TestTheHouseIsDescribed(t *testing.T) {
	const file = "../docs/design/0001-house.md"
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for pkg := range layers {
		if !strings.Contains(string(b), "`"+pkg+"`") {
			t.Errorf("%s does not list %s", file, pkg)
		}
	}
}

func checkImport(t *testing.T, file, pkg, layer, imp string) {
	t.Helper()
	if own, ok := strings.CutPrefix(imp, module); ok {
		if strings.HasPrefix(own, "api/") {
			if layer == "core" {
				t.Errorf("%s imports %s: the core does not know the API", file, own)
			}
			return
		}
		if !slices.Contains(may[layer].layers, layers[own]) {
			t.Errorf("%s (%s) imports %s (%s): %s", file, layer, own, layers[own], may[layer].reason)
		}
		if allowed, core := coreImports[pkg]; core && !slices.Contains(allowed, own) {
			t.Errorf("%s imports %s: only %v may be", file, own, allowed)
		}
		return
	}
	if layer == "core" && strings.Contains(strings.Split(imp, "/")[0], ".") {
		t.Errorf("%s imports %s: the core is standard library only", file, imp)
	}
	for _, rule := range only {
		if strings.HasPrefix(imp, rule.prefix) && !slices.Contains(rule.in, pkg) {
			t.Errorf("%s imports %s: %s", file, imp, rule.reason)
		}
	}
}

// sources are the imports of every non-test file below internal, by path from
// the repository's root.
func sources(t *testing.T) map[string][]string {
	t.Helper()
	out := map[string][]string{}
	err := filepath.WalkDir(".", func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && d.Name() == "testdata" {
			return filepath.SkipDir
		}
		if d.IsDir() || !strings.HasSuffix(p, ".go") || strings.HasSuffix(p, "_test.go") {
			return nil
		}
		f, err := parser.ParseFile(token.NewFileSet(), p, nil, parser.ImportsOnly)
		if err != nil {
			return err
		}
		name := path.Join("internal", filepath.ToSlash(p))
		out[name] = nil
		for _, i := range f.Imports {
			out[name] = append(out[name], strings.Trim(i.Path.Value, `"`))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestProgramsLinkNothingHeavy(t *testing.T) {
	for program, banned := range never {
		out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", module+"cmd/"+program).Output()
		if err != nil {
			t.Fatalf("go list: %v", err)
		}
		for dep := range strings.Lines(string(out)) {
			dep = strings.TrimSpace(dep)
			for _, b := range banned {
				if strings.HasPrefix(dep, b.prefix) {
					t.Errorf("%s links %s: %s", program, dep, b.reason)
				}
			}
		}
	}
}

func TestAPIImportsApimachineryOnly(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), "go", "list", "-f", `{{join .Imports "\n"}}`, module+"api/v1alpha1").Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	for imp := range strings.Lines(string(out)) {
		imp = strings.TrimSpace(imp)
		if strings.Contains(imp, ".") && !strings.HasPrefix(imp, "k8s.io/apimachinery/") {
			t.Errorf("api/v1alpha1 imports %s: its users should need no more than apimachinery", imp)
		}
	}
}

func TestNoReplace(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{if .Replace}}{{.Path}}{{end}}", "all").Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	if s := strings.TrimSpace(string(out)); s != "" {
		t.Errorf("go.mod replaces %s: go install …@version would no longer work", s)
	}
}

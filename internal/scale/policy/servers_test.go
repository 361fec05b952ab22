// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
)

const root = "../../../"

// presetsThat are the presets of some rows, sorted.
func presetsThat(is func(s *server) bool) (out []string) {
	for _, s := range servers() {
		if s.preset != "" && is(&s) {
			out = append(out, string(s.preset))
		}
	}
	slices.Sort(out)
	return out
}

// The CRD accepts the presets of the table, and each field with those that have it.
func TestCRDHasThePresets(t *testing.T) {
	b, err := os.ReadFile(root + "api/v1alpha1/gpuautoscaler.go")
	if err != nil {
		t.Fatal(err)
	}
	f := func(marker string, want []string) {
		t.Helper()
		m := regexp.MustCompile(marker).FindSubmatch(b)
		if m == nil {
			t.Errorf("api/v1alpha1 has no marker %s", marker)
			return
		}
		got := strings.FieldsFunc(string(m[1]), func(r rune) bool { return strings.ContainsRune(`;', []`, r) })
		if slices.Sort(got); !slices.Equal(got, want) {
			t.Errorf("%s is %v in api/v1alpha1, and %v in the table of servers", marker, got, want)
		}
	}
	f(`kubebuilder:validation:Enum=(.*)\ntype Preset string`, presetsThat(func(*server) bool { return true }))
	const of = `.* self\.preset (?:in|==) ([^"]*[\]'])\)?",`
	f(`rule="!has\(self\.slo\) \|\| `+of, presetsThat(func(s *server) bool { return s.pace != nil }))
	f(`rule="!has\(self\.activation\)`+of, presetsThat((*server).isGateway))
	f(`rule="!has\(self\.selector\)`+of, presetsThat((*server).isGateway))
	f(`rule="!has\(self\.pool\)`+of, presetsThat(func(s *server) bool { return s.isGateway() && !s.gateway.byModel }))
	f(`rule="has\(self\.model\)`+of, presetsThat(func(s *server) bool { return s.isGateway() && s.gateway.byModel }))
}

// Each preset has its line in the documentation, with its port and its metrics.
func TestPresetsAreDocumented(t *testing.T) {
	b, err := os.ReadFile(root + "docs/gpuautoscaler.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range servers() {
		if s.preset == "" {
			continue
		}
		var words []string
		if !s.isGateway() {
			for _, term := range []Term{s.running, s.waiting, s.kvCache} {
				if len(term) > 0 {
					words = append(words, term[0].Name)
				}
			}
		}
		i := slices.IndexFunc(strings.Split(string(b), "\n"), func(line string) bool {
			ports := strings.HasPrefix(line, fmt.Sprintf("| `%s` | %d |", s.preset, s.port.Default)) ||
				s.isGateway() && strings.HasPrefix(line, fmt.Sprintf("| `%s` |", s.preset)) && strings.HasSuffix(line, fmt.Sprintf("| %d |", s.port.Default))
			return ports && !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(line, w) })
		})
		if i < 0 {
			t.Errorf("docs/gpuautoscaler.md has no line of the preset %s with the port %d and %v", s.preset, s.port.Default, words)
		}
	}
}

// Migration and the simulation know the metrics of each preset's server; load server also reads those without a preset.
func TestReadersKnowEachServer(t *testing.T) {
	gauges, all := Gauges(false), Gauges(true)
	for _, s := range servers() {
		if s.preset == "" || s.isGateway() {
			continue
		}
		for q, term := range []Term{s.running, s.waiting} {
			if !slices.ContainsFunc(term, func(m PodMetric) bool { got, ok := gauges[m.Name]; return ok && got == Quantity(q) }) {
				t.Errorf("%s: the simulation has none of %v", s.preset, term)
			}
		}
		for _, term := range []Term{s.running, s.waiting, s.kvCache, s.arrived, s.completed} {
			if !slices.ContainsFunc(term, func(m PodMetric) bool { p, ok := PresetOf(m.Name); return ok && p == s.preset }) && len(term) > 0 {
				t.Errorf("%s: a metric of %v is not known as its server's: add its prefix", s.preset, term)
			}
		}
	}
	f := func(metric string, want v1alpha1.Preset) {
		t.Helper()
		if got, ok := PresetOf(metric); got != want || ok != (want != "") {
			t.Errorf("%s is of %q, %v; want %q", metric, got, ok, want)
		}
	}
	f("vllm:prompt_tokens_total", v1alpha1.PresetVLLM)
	f("nv_trt_llm_request_metrics", v1alpha1.PresetTriton)
	f("trtllm_num_requests_running", "")
	_, labelled := all["nv_trt_llm_request_metrics"]
	if q, ok := all["trtllm_num_requests_running"]; !ok || q != RunningRequests || labelled {
		t.Errorf("load server reads %v", all)
	}
	if _, ok := gauges["trtllm_num_requests_running"]; ok {
		t.Error("a server without a preset is simulated")
	}
}

// examples are the files besides the table that may name a server's metric.
var examples = map[string]string{"cmd/gpupilot/backtest.go": "an example in the help of --query"}

// No product code outside of the table names a server's metric or a preset.
func TestOnlyTheTableNamesServersMetrics(t *testing.T) {
	var names []string
	for _, s := range servers() {
		names = append(names, s.prefixes...)
		for _, term := range []Term{s.running, s.waiting, s.kvCache, s.arrived, s.completed, s.awake} {
			for i := range term {
				names = append(names, term[i].Name)
			}
		}
		if s.isGateway() {
			names = append(names, s.gateway.metrics...)
		}
	}
	for _, dir := range []string{"api", "client", "cmd", "internal"} {
		err := filepath.WalkDir(root+dir, func(file string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(file, ".go") || strings.HasSuffix(file, "_test.go") {
				return err
			}
			own := filepath.ToSlash(strings.TrimPrefix(file, root))
			if own == "internal/scale/policy/servers.go" || examples[own] != "" {
				return nil
			}
			for _, named := range namedBy(t, file, names) {
				t.Errorf("%s names %s: the table of internal/scale/policy/servers.go is the only place for it", own, named)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

// namedBy are the names that a file's strings have, and the constants of presets that it uses.
func namedBy(t *testing.T, file string, names []string) (found []string) {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.BasicLit:
			if text, err := strconv.Unquote(n.Value); n.Kind == token.STRING && err == nil {
				if i := slices.IndexFunc(names, func(name string) bool { return strings.Contains(text, name) }); i >= 0 {
					found = append(found, names[i])
				}
			}
		case *ast.SelectorExpr:
			if x, ok := n.X.(*ast.Ident); ok && x.Name == "v1alpha1" && strings.HasPrefix(n.Sel.Name, "Preset") && n.Sel.Name != "Preset" {
				found = append(found, "v1alpha1."+n.Sel.Name)
			}
		}
		return true
	})
	return found
}

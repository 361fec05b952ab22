// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/gpupilot/gpupilot/internal/gpu/names"
)

// Every name of a kind that code defines exists in the code: flags, variables, metrics, make targets, folders, names in
// the code (alerts, conditions, reasons, tests), values of the chart. CHANGELOG.md is not checked, because it may name
// what a release has removed.
func TestNamesExist(t *testing.T) {
	flags, repo := allFlags(t), readRepository(t)
	variable := regexp.MustCompile(`\bGPUPILOT_[A-Z0-9_]+`)
	variables := fileWords(t, func(b []byte) [][]byte {
		if !bytes.Contains(b, []byte("GPUPILOT_")) {
			return nil // quicker than the expression, of which there is none in most files
		}
		return variable.FindAll(b, -1)
	}, "cmd", "internal", "test", "deploy", "Makefile", ".ci")
	target := regexp.MustCompile(`(?m)^[a-z][a-z0-9-]*|^\.PHONY:.*`)
	targets := fileWords(t, func(b []byte) [][]byte { return target.FindAll(b, -1) }, "Makefile")
	values := string(read(t, "deploy/chart/values.yaml"))
	words := fileWords(t, func(b []byte) [][]byte { return bytes.FieldsFunc(b, isNoWord) }, "api", "cmd", "deploy", "internal", "test")
	for _, kind := range []struct {
		name   string
		find   *regexp.Regexp // the first group is the name
		exists func(string) bool
	}{
		{"flag", regexp.MustCompile(`(?:^|[^-A-Za-z0-9])--([a-z][a-z0-9-]*)`), func(s string) bool { return flags[s] || strings.HasSuffix(s, "-") && anyPrefix(flags, s) }},
		{"variable", regexp.MustCompile(`\b(GPUPILOT_[A-Z0-9_]+)`), func(s string) bool { return variables[s] || flags[s] }},
		{"metric", regexp.MustCompile(`\b(gpupilot_[a-z0-9_]+)`), repo.isMetric},
		{"make target", regexp.MustCompile("(?m)(?:^ {4}|`)make ([a-z][a-z0-9-]*)"), func(s string) bool { return targets[s] }},
		{"folder or file", regexp.MustCompile("`((?:internal|cmd|deploy|test|api|client)/[A-Za-z0-9_./-]+)`"), exists},
		{"name in the code", regexp.MustCompile("`([A-Z][a-z0-9]*[A-Z][A-Za-z0-9]*[a-z][A-Za-z0-9]*)`"), func(s string) bool { return words[s] || slices.Contains(otherNames, s) }},
		{"value of the chart", regexp.MustCompile(`--set '?([A-Za-z][A-Za-z.]*)=`), func(s string) bool { return hasValue(values, s) }},
	} {
		for _, p := range pages(t) {
			if p.path == "CHANGELOG.md" {
				continue
			}
			for i, line := range strings.Split(string(read(t, p.path)), "\n") {
				for _, m := range kind.find.FindAllStringSubmatch(line, -1) {
					if !kind.exists(m[1]) {
						t.Errorf("%s:%d: there is no %s %s", p.path, i+1, kind.name, m[1])
					}
				}
			}
		}
	}
}

// otherNames are names of Kubernetes, Flux and NVML.
var otherNames = []string{"CreateReplace", "FailedDiscoveryCheck", "GetProcessesUtilizationInfo", "MissingEndpoints"}

// otherPrograms are the programs whose flags pages name, with these flags.
var otherPrograms = map[string]string{
	"kubectl": "as audience clusterrole user duration field-selector for force-conflicts from-file ignore-not-found manifest archive raw " +
		"serviceaccount server-side subresource tail type watch",
	"helm":                 "create-namespace install no-hooks reset-then-reuse-values reuse-values set",
	"docker":               "cap-add cap-drop from gpus read-only target",
	"curl":                 "data-urlencode retry retry-connrefused",
	"promtool":             "http",
	"git":                  "tags",
	"sha256sum, systemctl": "check ignore-missing now",
	"nvidia-smi":           "gpu-reset status",
	"cosign":               "certificate-identity-regexp certificate-oidc-issuer",
	"prometheus-adapter":   "metrics-relist-interval",
	"vllm, tritonserver":   "shutdown-timeout exit-timeout-secs",
	"dcgmproftester":       "no-dcgm-validation target-max-value min-value max-value mode max-processes sync-count cublas log-file",
	"SGLang, llm-d":        "enable-metrics metrics-endpoint-auth",
}

// allFlags are the flags of our programs, with their variables, and those of otherPrograms. The tables of the agent's and the controller's
// flags are generated from their code, which their own tests check.
func allFlags(t *testing.T) map[string]bool {
	t.Helper()
	all := map[string]bool{}
	for _, flags := range otherPrograms {
		for _, name := range strings.Fields(flags) {
			all[name] = true
		}
	}
	row := regexp.MustCompile("(?m)^\\| (?:`-[A-Za-z]+`, )?`--([a-z0-9-]+)` \\| `?([A-Z0-9_]*)")
	for _, p := range pages(t) {
		_, table, _ := strings.Cut(string(read(t, p.path)), "<!-- flags: written by")
		table, _, _ = strings.Cut(table, "<!-- end of flags -->")
		for _, m := range row.FindAllStringSubmatch(table, -1) {
			all[m[1]], all[m[2]] = true, true
		}
	}
	if !all["interval"] || !all["collect-interval"] {
		t.Error("the tables of flags are not found")
	}
	addHelp(t, filepath.Join(programs(t), "gpupilot"), nil, all)
	return all
}

// addHelp adds the flags that a command and its subcommands print.
func addHelp(t *testing.T, program string, command []string, all map[string]bool) {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), program, append(slices.Clone(command), "--help")...).Output() // our own program
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range regexp.MustCompile(`(?m)^ +(?:-[a-zA-Z], )?--([a-z0-9-]+)`).FindAllSubmatch(out, -1) {
		all[string(m[1])] = true
	}
	_, commands, _ := bytes.Cut(out, []byte("Available Commands:\n"))
	commands, _, _ = bytes.Cut(commands, []byte("\n\n"))
	for line := range bytes.Lines(commands) {
		if name := strings.Fields(string(line))[0]; name != "help" && name != "completion" {
			addHelp(t, program, append(slices.Clone(command), name), all)
		}
	}
}

func anyPrefix(words map[string]bool, prefix string) bool {
	for w := range words {
		if strings.HasPrefix(w, prefix) {
			return true
		}
	}
	return false
}

func exists(path string) bool {
	_, err := os.Stat(filepath.Join(root, path))
	return err == nil
}

// hasValue says whether the chart's values have a path such as image.tag. What is below a map without keys is not
// checked.
func hasValue(values, path string) bool {
	indent := ""
	for name := range strings.SplitSeq(path, ".") {
		at := regexp.MustCompile(`(?m)^` + indent + `(?:# )?` + name + `:(.*)`).FindStringSubmatchIndex(values)
		if at == nil {
			return false
		}
		if rest := strings.TrimSpace(values[at[2]:at[3]]); strings.HasPrefix(rest, "{") {
			return true
		}
		values, indent = values[at[1]:], indent+"  "
	}
	return true
}

func TestHasValue(t *testing.T) {
	const values = "a: {}\nb:\n  c: 1\nd:\n  e: 2\n"
	for path, want := range map[string]bool{"a": true, "a.x": true, "b.c": true, "d.e": true, "c": false, "e": false, "x.y": false} {
		if got := hasValue(values, path); got != want {
			t.Errorf("%s: %v, want %v", path, got, want)
		}
	}
}

func read(t *testing.T, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(root, path))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// isNoWord reports whether a rune is neither an ASCII letter nor a digit.
func isNoWord(r rune) bool {
	return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9')
}

// fileWords are the words that find returns of the files of some folders.
func fileWords(t *testing.T, find func([]byte) [][]byte, paths ...string) map[string]bool {
	t.Helper()
	words := map[string]bool{}
	for _, path := range paths {
		err := filepath.WalkDir(filepath.Join(root, path), func(file string, d os.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			if filepath.Base(filepath.Dir(file)) == "docs" {
				return nil // the names in this test are no evidence
			}
			b, err := os.ReadFile(file)
			for _, w := range find(b) {
				for word := range bytes.FieldsSeq(w) {
					if !words[string(word)] { // which copies nothing
						words[string(word)] = true
					}
				}
			}
			return err
		})
		if err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
	}
	return words
}

// repository is what the Go files below internal and cmd say, without tests.
type repository struct {
	literals map[string]map[string]bool // by folder: the string literals that may be names of metrics or parts of them
	imports  map[string]bool
}

var readOnce = sync.OnceValues(func() (*repository, error) {
	r := &repository{literals: map[string]map[string]bool{}, imports: map[string]bool{}}
	for _, dir := range []string{"internal", "cmd"} {
		err := filepath.WalkDir(filepath.Join(root, dir), func(path string, d os.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			return r.add(path)
		})
		if err != nil {
			return nil, err
		}
	}
	return r, nil
})

func readRepository(t *testing.T) *repository {
	t.Helper()
	r, err := readOnce()
	if err != nil {
		t.Fatal(err)
	}
	return r
}

var nameParts = regexp.MustCompile(`[a-z0-9_]{2,}`)

func (r *repository) add(path string) error {
	f, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
	if err != nil {
		return err
	}
	dir := filepath.Dir(path)
	if r.literals[dir] == nil {
		r.literals[dir] = map[string]bool{}
	}
	for _, i := range f.Imports {
		r.imports[strings.Trim(i.Path.Value, `"`)] = true
	}
	ast.Inspect(f, func(n ast.Node) bool {
		if l, ok := n.(*ast.BasicLit); ok && l.Kind == token.STRING {
			if s, err := strconv.Unquote(l.Value); err == nil {
				r.addLiteral(dir, s)
			}
		}
		return true
	})
	return nil
}

// addLiteral keeps a literal that is a name or a part of one, and the metrics that a longer text names.
func (r *repository) addLiteral(dir, s string) {
	if nameParts.FindString(s) == s {
		r.literals[dir][s] = true
		return
	}
	for _, w := range nameParts.FindAllString(s, -1) {
		if strings.HasPrefix(w, "gpupilot_") {
			r.literals[dir][w] = true
		}
	}
}

// isMetric says whether code has a metric, in one literal or as the parts "gpupilot_x_" and "y" in one folder. A name
// that ends with _ stands for all that begin so.
func (r *repository) isMetric(name string) bool {
	if regexp.MustCompile(`^gpupilot_v\d`).MatchString(name) {
		return true // a file of a release
	}
	for _, suffix := range []string{"", "_sum", "_count", "_bucket"} {
		base, ok := strings.CutSuffix(name, suffix)
		if !ok {
			continue
		}
		for _, parts := range r.literals {
			if joins(parts, "", base) || strings.HasSuffix(name, "_") && anyPrefix(parts, name) {
				return true
			}
		}
	}
	return false
}

// joins says whether a name is one of these parts, or several in a row of which the first begins with gpupilot_.
func joins(parts map[string]bool, before, name string) bool {
	if name == "" {
		return before != ""
	}
	for n := len(name); n > 1; n-- {
		if part := name[:n]; parts[part] && (before != "" || strings.HasPrefix(part, "gpupilot_")) && joins(parts, part, name[n:]) {
			return true
		}
	}
	return false
}

func TestIsMetric(t *testing.T) {
	r := &repository{literals: map[string]map[string]bool{"a": {"gpupilot_a_": true, "b_total": true, "gpupilot_c_seconds": true}, "b": {"d": true}}}
	for name, want := range map[string]bool{
		"gpupilot_a_b_total": true, "gpupilot_c_seconds": true, "gpupilot_c_seconds_sum": true, "gpupilot_a_": true,
		"gpupilot_a_d": false, "gpupilot_b_total": false, "gpupilot_x_": false, "gpupilot_c": false,
	} {
		if got := r.isMetric(name); got != want {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
	}
}

// Versions on pages are those of go.mod, of the chart and of the profiles.
func TestVersions(t *testing.T) {
	mod, chart := string(read(t, "go.mod")), string(read(t, "deploy/chart/Chart.yaml"))
	one := func(text, form string) string {
		m := regexp.MustCompile(form).FindStringSubmatch(text)
		if m == nil {
			t.Fatalf("no %s", form)
		}
		return m[1]
	}
	oldest, newest := one(chart, `kubeVersion: ">=(1\.\d+)`), "1."+one(mod, `k8s\.io/api v0\.(\d+)`)
	appVersion := one(chart, `appVersion: (\S+)`)
	goVersion := one(mod, `\ngo (\d+\.\d+)`)
	profiles := []string{"4.8.3", "4.8.4", "1.x"} // releases that the comment of names.Profile48 names
	for _, p := range names.Profiles() {
		profiles = append(profiles, string(p))
	}
	for _, kind := range []struct {
		find *regexp.Regexp
		want []string
	}{
		{regexp.MustCompile(`\bKubernetes v?(1\.\d+)`), []string{oldest, newest, "1.25"}}, // 1.25 removed autoscaling/v2beta1
		{regexp.MustCompile(`\bGo (1\.\d+)`), []string{goVersion}},
		{regexp.MustCompile(`own engine \((3\.\d+)\)`), []string{"3." + one(mod, `prometheus/prometheus v0\.3(\d\d)\.`)}},
		{regexp.MustCompile(`--profile[ =](\d\S*?)[` + "`" + `\s"',]`), profiles},
		{regexp.MustCompile(`ghcr\.io/gpupilot/gpupilot(?:-agent|-controller)?:(\S+?)[` + "`" + `\s"',]`), []string{appVersion}},
		{regexp.MustCompile(`charts/gpupilot --version (\S+?)[` + "`" + `\s]`), []string{strings.TrimPrefix(appVersion, "v")}},
	} {
		for _, p := range pages(t) {
			if p.path == "CHANGELOG.md" {
				continue
			}
			for _, m := range kind.find.FindAllStringSubmatch(string(read(t, p.path))+"\n", -1) {
				if !slices.Contains(kind.want, m[1]) {
					t.Errorf("%s: %s: want one of %q", p.path, strings.TrimSpace(m[0]), kind.want)
				}
			}
		}
	}
}

// A page that names an image of ours says, while no version is released, that the reader has to build it.
func TestImagesAreNotPublished(t *testing.T) {
	released := regexp.MustCompile(`(?m)^## v?\d[^,\s]*$`).Match(read(t, "CHANGELOG.md"))
	for _, p := range pages(t) {
		text := string(read(t, p.path))
		if p.path == "CONTRIBUTING.md" || p.path == "CHANGELOG.md" || !strings.Contains(text, "ghcr.io/gpupilot") {
			continue
		}
		says := regexp.MustCompile(`published\s+yet`).MatchString(text)
		if says == released {
			t.Errorf("%s names ghcr.io/gpupilot, and says that nothing is published yet: %v; released: %v", p.path, says, released)
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

// Package internal holds the import rules of the house (docs/architecture.md).
package internal

import (
	"bytes"
	"cmp"
	"flag"
	"fmt"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/gpupilot/gpupilot/"

var update = flag.Bool("update", false, "write the table of docs/architecture.md")

// wings is the order of the house. A wing imports its own packages and those of the
// wings that it names, all of which stand above it.
var wings = []struct{ name, owns, imports string }{
	{"base", "small tools without a domain", ""},
	{"gpu", "fields, snapshots, owners, the `Reader` port; NVML, DCGM and simulated GPUs behind it", "base"},
	{"node", "the agent: collect loop, exposition, the kubelet's sockets, processes, its small API client", "base gpu"},
	{"scale", "policy, observation and state → decision, without I/O; GPUAutoscaler → policy; models of other autoscalers", "base gpu"},
	{"window", "what is scraped, scraping, windows in memory, 14 days of history, GPUs in use, trust in exporters", "base gpu scale"},
	{"promql", "PromQL over the windows and over an outside Prometheus; rules; prometheus-adapter's rules; tenants' queries", "base gpu window"},
	{"autoscaler", "observe → decide → actuate; GPUExporters, node health; Kubernetes clients, caches, leader election", "base gpu scale window promql"},
	{"loadgen", "known GPU load, and how far metrics are from it", "base gpu"},
	{"serve", "custom and external metrics, MetricQueries, KEDA's scaler, the page", "base gpu scale window promql autoscaler"},
	{"replay", "the same decisions on recorded load: traces, a simulated service, backtests, scenarios, the demo, migration", "base gpu scale window promql loadgen"},
	{"terminal", "what a person at a terminal uses: top, doctor, adopt, hold, mcp, and how they reach the controller", "base gpu scale window promql autoscaler serve"},
}

// pure packages import the standard library and each other: they run anywhere, in the
// controller, in a replay, in a fuzzer.
var pure = []string{
	"base/csvtable", "base/excerpt", "base/promtext", "base/weight", "gpu", "gpu/names", "gpu/price", "gpu/vendorlib", "loadgen/verdict", "scale", "scale/budget", "scale/drain", "scale/facts", "scale/promise", "scale/peers", "scale/latency", "scale/trend", "scale/words",
	"window/history", "window/ledger", "window/ring", "window/series", "window/stat",
}

// only says where third parties' packages may appear: in these packages, and in those
// of these wings.
var only = []struct {
	prefix string
	in     []string
	reason string
}{
	{"k8s.io/", kubernetes, "Kubernetes is one way in and one way out; the engine, the windows and the agent do not know it"},
	{"sigs.k8s.io/", kubernetes, "as k8s.io"},
	{"encoding/csv", []string{"base/csvtable", "node/exposition", "replay/trace"}, "csvtable.Writer keeps spreadsheets from taking a tenant's name for a formula"},
	{"github.com/NVIDIA/go-nvml", []string{"gpu/nvml"}, "one package speaks to the library, behind gpu.Reader"},
	{"github.com/ebitengine/purego", []string{"loadgen/cuda"}, "one package calls libcuda; a static program must not link the loader"},
	{"charm.land/", []string{"terminal/top"}, "one package draws on terminals"},
	{"github.com/modelcontextprotocol/", []string{"terminal/mcp"}, "one package speaks to agents"},
	{"github.com/NVIDIA/go-dcgm", nil, "it links a test framework; gpu/dcgm calls the library by itself, and its tests compare the two"},
}

var kubernetes = []string{
	"scale/policy", "scale/replica", "window/discovery", "window/trust", "window/usage", "promql/adapter", "promql/rules", "promql/source", "promql/windows",
	"autoscaler", "serve", "terminal", "replay/migrate",
}

// never is what must not be linked into a program, not even indirectly.
var never = map[string][]banned{"gpupilot-agent": agentNever, "gpupilot": cliNever}

type banned struct{ prefix, reason string }

var agentNever = []banned{
	{"k8s.io/client-go/kubernetes", "the clientset alone doubles the agent's memory"},
	{"k8s.io/client-go/informers", "as the clientset"},
	{"google.golang.org/grpc", "3 MiB for the one call that node/podres makes by itself"},
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
	{"k8s.io/apiserver", "10 MB; promql/source has the name of a metric by itself"},
	{module + "internal/autoscaler/controller", "the CLI reads what the controller wrote"},
}

// The order admits no import back up.
func TestWingsImportTheWingsAbove(t *testing.T) {
	for i, w := range wings {
		for _, name := range strings.Fields(w.imports) {
			if at := wingAt(name); at < 0 || at >= i {
				t.Errorf("wing %s may import %s, which does not stand above it", w.name, name)
			}
		}
	}
}

func TestImports(t *testing.T) {
	for file, imports := range sources(t) {
		pkg := path.Dir(file)
		at := wingAt(wingOf(pkg))
		if at < 0 {
			t.Errorf("%s: %s is no wing", file, wingOf(pkg))
			continue
		}
		for _, imp := range imports {
			checkImport(t, file, pkg, at, imp)
		}
	}
}

func checkImport(t *testing.T, file, pkg string, wing int, imp string) {
	t.Helper()
	own, ours := strings.CutPrefix(imp, module+"internal/")
	if ours {
		if to := wingOf(own); to != wings[wing].name && !slices.Contains(strings.Fields(wings[wing].imports), to) {
			t.Errorf("%s imports %s: %s may import %q", file, own, wings[wing].name, wings[wing].imports)
		}
	}
	if slices.Contains(pure, pkg) && strings.Contains(strings.Split(imp, "/")[0], ".") && (!ours || !slices.Contains(pure, own)) {
		t.Errorf("%s imports %s: it is pure, so it imports the standard library and pure packages only", file, imp)
	}
	for _, rule := range only {
		if strings.HasPrefix(imp, rule.prefix) && !slices.Contains(rule.in, pkg) && !slices.Contains(rule.in, wingOf(pkg)) {
			t.Errorf("%s imports %s: %s", file, imp, rule.reason)
		}
	}
}

func wingOf(pkg string) string {
	wing, _, _ := strings.Cut(pkg, "/")
	return wing
}

func wingAt(name string) int {
	return slices.IndexFunc(wings, func(w struct{ name, owns, imports string }) bool { return w.name == name })
}

const (
	attacksOnAgent      = "test/e2e/agent/readers_test.go"
	attacksOnController = "test/e2e/readers/rig_test.go"
)

// listeners are the files that may listen or serve. Each hands its listener to a listen.Room, which bounds what clients hold
// (the address pays for connections), and a test attacks it with slow readers by a name: SECURITY.md says who pays for more.
var listeners = map[string]struct{ attackedIn, name string }{
	"internal/base/listen/serve.go":       {attacksOnAgent, "/metrics"},
	"cmd/gpupilot-agent/serve.go":         {attacksOnAgent, "/metrics"},
	"cmd/gpupilot-controller/main.go":     {attacksOnController, `name: "page"`},
	"cmd/gpupilot/demo.go":                {attacksOnController, `name: "page"`}, // the same page, on loopback
	"internal/serve/kedascaler/server.go": {attacksOnController, `name: "KEDA scaler"`},
	"internal/serve/metricsapi/server.go": {attacksOnController, `name: "metrics API"`},
}

func TestListenersAreBounded(t *testing.T) {
	listens := regexp.MustCompile(`http\.Server\{|net\.Listen(\(|Config)|ListenAndServe|grpc\.NewServer|tls\.Listen`)
	found := []string{}
	for _, p := range packages(t, "./cmd/...", "./internal/...") {
		for file := range p.files {
			name := p.path + "/" + file
			b, err := os.ReadFile(filepath.Join("..", name))
			if err != nil {
				t.Fatal(err)
			}
			if line := listens.Find(b); line != nil {
				found = append(found, name)
				attack, ok := listeners[name]
				if !ok {
					t.Errorf("%s has %s: serve with base/listen, and have a test attack it", name, line)
				} else if b, err := os.ReadFile(filepath.Join("..", attack.attackedIn)); err != nil || !bytes.Contains(b, []byte(attack.name)) {
					t.Errorf("%s does not attack %s as %s: %v", attack.attackedIn, name, attack.name, err)
				}
			}
		}
	}
	if len(found) != len(listeners) {
		t.Errorf("%v listen, want %v", found, listeners)
	}
}

// TestSlotsAreFair: what bounds how much is done at a time says who pays, with base/fair. A channel of one is a
// signal.
func TestSlotsAreFair(t *testing.T) {
	semaphore := regexp.MustCompile(`make\(chan struct\{\}, *([^)]*)\)`)
	payer := regexp.MustCompile(`[^.\w][pP]ayer(, \w+)* +string\b`)
	for _, p := range packages(t, "./cmd/...", "./internal/...") {
		for file := range p.files {
			if p.path == "internal/base/fair" || file == "group.go" { // its channel tells of goroutines that have ended
				continue
			}
			b, err := os.ReadFile(filepath.Join("..", p.path, file))
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range semaphore.FindAllSubmatch(b, -1) {
				if string(m[1]) != "1" {
					t.Errorf("%s/%s has %s: bound what is done at a time with fair.Slots, which know who pays", p.path, file, m[0])
				}
			}
			for _, name := range payer.FindAllString(string(b), -1) {
				t.Errorf("%s/%s has %s: a payer is a fair.Payer, which no user's name can be", p.path, file, name)
			}
		}
	}
}

// most are bounds: of the product's packages, and of its own lines that a program links, without tests and
// generated code. What grows beyond them has to lose something first.
var most = struct {
	packages int
	linked   map[string]int
}{packages: 116, linked: map[string]int{"gpupilot-agent": 24500, "gpupilot-controller": 76880, "gpupilot": 73000}}

// largeRoom and largeFile are sizes from which a package or a file is named by go test -v: it may hold two ideas.
const (
	largeRoom = 3500
	largeFile = 500
)

func TestSizes(t *testing.T) {
	lines := map[string]int{} // by package
	for _, p := range packages(t, "./cmd/...", "./internal/...", "./api/...", "./client/...") {
		for file, n := range p.files {
			if n > largeFile {
				t.Logf("%s has %d lines", file, n)
			}
			lines[p.path] += n
		}
		if lines[p.path] > largeRoom {
			t.Logf("%s has %d lines", p.path, lines[p.path])
		}
	}
	if len(lines) > most.packages {
		t.Errorf("%d packages, want at most %d", len(lines), most.packages)
	}
	for program, bound := range most.linked {
		sum := 0
		for _, p := range packages(t, "-deps", "./cmd/"+program) {
			for _, n := range p.files {
				sum += n
			}
		}
		t.Logf("%s links %d lines of ours", program, sum)
		if sum > bound {
			t.Errorf("%s links %d lines of ours, want at most %d", program, sum, bound)
		}
	}
}

// pkg is a package of ours with the lines of its files, without tests and generated code.
type pkg struct {
	path  string
	files map[string]int
}

// packages are those of ours that go list names.
func packages(t *testing.T, args ...string) (out []pkg) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", append([]string{"list", "-f", `{{.ImportPath}} {{.Dir}}{{range .GoFiles}} {{.}}{{end}}{{range .CgoFiles}} {{.}}{{end}}`}, args...)...)
	cmd.Dir = ".."
	list, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	for line := range strings.Lines(string(list)) {
		words := strings.Fields(line)
		if !strings.HasPrefix(words[0], module) {
			continue
		}
		p := pkg{strings.TrimPrefix(words[0], module), map[string]int{}}
		for _, file := range words[2:] {
			b, err := os.ReadFile(filepath.Join(words[1], file))
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Contains(b, []byte("// Code generated ")) {
				p.files[file] = bytes.Count(b, []byte("\n"))
			}
		}
		out = append(out, p)
	}
	return out
}

// docs/architecture.md shows the table of the wings; -update writes it.
func TestArchitecturePage(t *testing.T) {
	const file, begin, end = "../docs/architecture.md", "<!-- wings: go test ./internal -run Architecture -update -->\n", "<!-- end of wings -->"
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(b), begin)
	_, after, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		t.Fatalf("%s lacks %q or %q", file, begin, end)
	}
	want := before + begin + wingTable(t) + end + after
	if *update {
		if err := os.WriteFile(file, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if string(b) != want {
		t.Errorf("%s is not as the code; go test ./internal -run Architecture -update writes it", file)
	}
}

// rooms are the largest packages of each wing, in two or three words.
var rooms = map[string]string{
	"base/listen": "bounded clients", "base/fair": "slots and turns", "base/promtext": "lines of a page", "base/bearer": "tokens, logins", "base/flags": "flags, variables",
	"base/regularfile": "careful reads", "base/csvtable": "CSV", "base/gcpace": "GC pace",

	"gpu": "fields, snapshots", "gpu/nvml": "NVML, GPM", "gpu/dcgm": "DCGM", "gpu/sim": "simulated GPUs", "gpu/auto": "which library", "gpu/vendorlib": "sessions, hung calls",
	"gpu/names": "exporters' names", "gpu/price": "price lists",

	"node/exposition": "the agent's page", "node/agent": "the collect loop", "node/apiwatch": "pods, small client", "node/podres": "the kubelet's socket",
	"node/webconfig": "TLS, passwords", "node/tokenreview": "who may scrape", "node/procs": "/proc", "node/docker": "containers without Kubernetes", "node/hpcjobs": "Slurm's files",

	"scale": "`Decide`", "scale/policy": "object → policy", "scale/promise": "objectives' plans", "scale/replica": "pods → replicas", "scale/facts": "rules' sentences", "scale/drain": "who leaves when",
	"scale/peers": "HPA, KEDA, Knative", "scale/budget": "error budgets", "scale/whatif": "what would change", "scale/trend": "averages, outliers",

	"window/series": "samples in memory", "window/history": "14 days", "window/scrape": "scraping", "window/page": "pages → values", "window/usage": "GPUs of workloads", "window/view": "what viewers see",
	"window/discovery": "targets", "window/trust": "which exporter counts", "window/ring": "columns of samples", "window/stat": "statistics",

	"promql/windows": "windows as storage", "promql/adapter": "prometheus-adapter's rules", "promql/rules": "recording rules", "promql/engine": "evaluation", "promql/api": "HTTP API",
	"promql/queries": "tenants' queries", "promql/past": "recorded results", "promql/client": "an outside Prometheus", "promql/scope": "whose series", "promql/backfill": "history at start",

	"autoscaler/controller": "the control loop", "autoscaler/gpuexporter": "agents' DaemonSets", "autoscaler/aspect": "features of scaling", "autoscaler/kube": "clients, caches", "autoscaler/index": "pods by workload",
	"autoscaler/target": "`/scale`", "autoscaler/objective": "objectives measured", "autoscaler/certificates": "own certificates", "autoscaler/meters": "its /metrics", "autoscaler/shown": "decisions shown",

	"loadgen/load": "kernels, shapes", "loadgen/check": "compare sources", "loadgen/cuda": "libcuda", "loadgen/verdict": "right or wrong", "loadgen/calibration": "activity ↔ watts",

	"serve/webui": "the page", "serve/webui/static": "its files", "serve/metricsapi": "metrics for HPAs", "serve/kedascaler": "KEDA's scaler", "serve/metricquery": "MetricQueries",

	"replay/migrate": "HPA, KEDA → object", "replay/backtest": "recorded load", "replay/contender": "other autoscalers", "replay/service": "a simulated server", "replay/scenario": "scripts",
	"replay/trace": "trace formats", "replay/demo": "`gpupilot demo`",

	"terminal/top": "live views", "terminal/doctor": "checks", "terminal/adopt": "take over", "terminal/remote": "requests", "terminal/mcp": "for agents", "terminal/termtext": "clean text", "terminal/hold": "overrides",
}

// wingTable is the table of the wings in Markdown, with their largest packages.
func wingTable(t *testing.T) string {
	lines := map[string]int{}
	for _, p := range packages(t, "./internal/...") {
		for _, n := range p.files {
			lines[strings.TrimPrefix(p.path, "internal/")] += n
		}
	}
	for room := range rooms {
		if lines[room] == 0 {
			t.Errorf("rooms has %s, which is no package", room)
		}
	}
	var out strings.Builder
	out.WriteString("| wing | owns | largest packages | may import |\n|---|---|---|---|\n")
	for _, w := range wings {
		var own, list []string
		for room := range lines {
			if wingOf(room) == w.name {
				own = append(own, room)
			}
		}
		slices.SortFunc(own, func(a, b string) int { return cmp.Compare(lines[b], lines[a]) })
		for i, room := range own {
			if rooms[room] == "" && i < 5 {
				t.Errorf("rooms lacks %s, one of the five largest of %s", room, w.name)
			}
		}
		slices.Sort(own)
		for _, room := range own {
			if rooms[room] != "" {
				list = append(list, "`"+cmp.Or(strings.TrimPrefix(room, w.name+"/"), room)+"` "+rooms[room])
			}
		}
		fmt.Fprintf(&out, "| `%s` | %s | %s | %s |\n", w.name, w.owns, strings.Join(list, "; "), cmp.Or(strings.ReplaceAll(w.imports, " ", ", "), "–"))
	}
	return out.String()
}

// sources are the imports of every non-test file below internal, by path.
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
		name := filepath.ToSlash(p)
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

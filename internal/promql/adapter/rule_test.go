// SPDX-License-Identifier: Apache-2.0

package adapter

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"
	kubelabels "k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

func load(t testing.TB, file string) *RuleSet {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	set, err := Load(b, Builtin{})
	if err != nil {
		t.Fatal(err)
	}
	return set
}

func parseRules(t testing.TB, text string) (*RuleSet, error) {
	t.Helper()
	return Load([]byte(text), Builtin{})
}

var pods = schema.GroupResource{Resource: "pods"}

func selector(t testing.TB, s string) kubelabels.Selector {
	t.Helper()
	out, err := kubelabels.Parse(s)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestQueries(t *testing.T) {
	set := load(t, "testdata/gpu.yaml")
	f := func(rule int, series string, o Objects, metricSelector, want string) {
		t.Helper()
		o.Selector = selector(t, metricSelector)
		got, _, err := set.Rules[rule].Query(series, &o)
		if err != nil || got != want {
			t.Errorf("%v\n got %s\nwant %s", err, got, want)
		}
	}
	deployments := schema.GroupResource{Group: "apps", Resource: "deployments"}
	f(0, "DCGM_FI_DEV_GPU_UTIL", Objects{pods, "ml", []string{"a"}, nil}, "",
		`avg(DCGM_FI_DEV_GPU_UTIL{namespace="ml",pod="a"}) by (pod)`)
	f(0, "DCGM_FI_DEV_GPU_UTIL", Objects{pods, "ml", []string{"a-0", "a.1"}, nil}, "gpu=0,mode in (x,y.z),old!=1,new notin (a,b),has,!hasnot",
		`avg(DCGM_FI_DEV_GPU_UTIL{gpu="0",has!="",hasnot="",mode=~"x|y\\.z",new!~"a|b",old!="1",namespace="ml",pod=~"a-0|a\\.1"}) by (pod)`)
	f(0, "DCGM_FI_DEV_GPU_UTIL", Objects{pods, "ml", nil, nil}, "", `avg(DCGM_FI_DEV_GPU_UTIL{namespace="ml",pod!=""}) by (pod)`)
	f(0, "DCGM_FI_DEV_GPU_UTIL", Objects{namespaces, "", []string{"ml"}, nil}, "", `avg(DCGM_FI_DEV_GPU_UTIL{namespace="ml"}) by (namespace)`)
	f(1, "cuda_test_gpu_avg", Objects{deployments, "default", []string{"cuda-test"}, nil}, "", `cuda_test_gpu_avg{namespace="default",deployment="cuda-test"}`)
	f(2, "http_requests_total", Objects{deployments, "default", []string{"web"}, nil}, "",
		`sum(rate(http_requests_total{kubernetes_namespace="default",kube_apps_deployment="web"}[2m])) by (kube_apps_deployment)`)
	f(2, "http_requests_total", Objects{pods, "default", []string{"web"}, nil}, "",
		`sum(rate(http_requests_total{kubernetes_namespace="default",kubernetes_pod_name="web"}[2m])) by (kubernetes_pod_name)`)
	g := func(rule int, series, metricSelector, want string) {
		t.Helper()
		got, err := set.Rules[rule].ExternalQuery(series, "ml", selector(t, metricSelector))
		if err != nil || got != want {
			t.Errorf("%v\n got %s\nwant %s", err, got, want)
		}
	}
	g(3, "queue_depth", "topic=a", `sum(queue_depth{topic="a",namespace="ml"}) by (topic)`)
	g(4, "queue_lag", "", `max(queue_lag{})`)
}

func TestNames(t *testing.T) {
	set := load(t, "testdata/gpu.yaml")
	f := func(rule int, series, want string) {
		t.Helper()
		if got, ok := set.Rules[rule].Name(series); got != want || ok != (want != "") {
			t.Errorf("%s is %q, %v; want %q", series, got, ok, want)
		}
	}
	f(0, "DCGM_FI_DEV_GPU_UTIL", "gpu_util")
	f(1, "cuda_test_gpu_avg", "cuda_test_gpu_mean")
	f(1, "cuda_test", "")
	f(2, "http_requests_total", "") // the filter
	f(2, "grpc_requests_total", "grpc_requests")
	f(3, "queue_depth", "queue_depth")
	f(0, `x"}) or vector(1) or ({a="`, "")
	f(0, strings.Repeat("x", 300), "")
}

// A series belongs to the resources that its labels name.
func TestKinds(t *testing.T) {
	set := load(t, "testdata/gpu.yaml")
	f := func(rule int, want string, names ...string) {
		t.Helper()
		var got []string
		for _, k := range set.Rules[rule].Kinds(labels.FromMap(mapOf(names))) {
			got = append(got, k.String())
		}
		slices.Sort(got)
		if s := strings.Join(got, " "); s != want {
			t.Errorf("%v: %q, want %q", names, s, want)
		}
	}
	f(0, "namespaces pods", "namespace", "pod", "node", "gpu")
	f(1, "deployments.apps jobs.batch namespaces services", "namespace", "deployment", "service", "instance", "job")
	f(2, "deployments.apps pods", "kubernetes_pod_name", "kube_apps_deployment", "kube_x_y")
}

func mapOf(names []string) map[string]string {
	m := map[string]string{}
	for _, n := range names {
		m[n] = "x"
	}
	return m
}

// Every mistake is named with the rule, the field and the value.
func TestMistakes(t *testing.T) {
	f := func(rule string, want ...string) {
		t.Helper()
		_, err := parseRules(t, "rules:\n- {seriesQuery: up, metricsQuery: up}\n- "+rule)
		for _, w := range want {
			if err == nil || !strings.Contains(err.Error(), w) {
				t.Errorf("%s:\n%v\nwant %q", rule, err, w)
			}
		}
	}
	f(`{metricsQuery: up}`, "rules[1].seriesQuery: Required value")
	f(`{seriesQuery: "sum(x)", metricsQuery: up}`, "rules[1].seriesQuery", `"sum(x)"`, "is not a PromQL selector")
	f(`{seriesQuery: "{}", metricsQuery: up}`, "rules[1].seriesQuery")
	f(`{seriesQuery: up}`, "rules[1].metricsQuery: Required value")
	f(`{seriesQuery: up, metricsQuery: "sum(<<.Series"}`, "rules[1].metricsQuery", "is not a Go template")
	f(`{seriesQuery: up, metricsQuery: "sum(<<.Nope>>)"}`, "rules[1].metricsQuery", "Nope")
	f(`{seriesQuery: up, metricsQuery: "sum(<<.Series>>"}`, "rules[1].metricsQuery", "does not produce PromQL")
	f(`{seriesQuery: up, metricsQuery: up, seriesFilters: [{is: a, isNot: b}]}`, "rules[1].seriesFilters[0]", "two filters")
	f(`{seriesQuery: up, metricsQuery: up, seriesFilters: [{}]}`, "rules[1].seriesFilters[0]: Required value")
	f(`{seriesQuery: up, metricsQuery: up, seriesFilters: [{isNot: "("}]}`, `rules[1].seriesFilters[0].isNot: Invalid value: "("`)
	f(`{seriesQuery: up, metricsQuery: up, name: {matches: "("}}`, `rules[1].name.matches: Invalid value: "("`)
	f(`{seriesQuery: up, metricsQuery: up, name: {matches: "(a)(b)"}}`, "rules[1].name.as: Required value", "2 groups")
	f(`{seriesQuery: up, metricsQuery: up, resources: {template: "kube_<<.Group>>"}}`, "rules[1].resources.template", "must contain <<.Resource>>")
	f(`{seriesQuery: [up]}`, "cannot unmarshal array")
	// Two mistakes are two errors.
	f(`{seriesQuery: "(", metricsQuery: "<<"}`, "rules[1].seriesQuery", "rules[1].metricsQuery")
}

// A template cannot run for ever or produce a text without bound.
func TestTemplatesAreBounded(t *testing.T) {
	f := func(query, want string) {
		t.Helper()
		_, err := parseRules(t, "rules:\n- {seriesQuery: up, metricsQuery: '"+query+"'}")
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", query, err, want)
		}
	}
	f(`<<range 1000000000000>><<end>>up`, "a range must be over")
	f(`<<define "x">><<template "x">><<end>><<template "x">>`, "must not call another one")
	f(`<<printf "%999999999d" 1>>`, "widths over 999")
	f(`<<printf "%[1]s%[1]s" .Series>>`, "explicit indexes")
	f(`<<$x := print .Series .Series>>`, "must not be the result of a function")
	f(`<<"\\" | js | js>>`, "is not one of the functions")
	f(strings.Repeat("x", maxText+1), "at most 8192 are allowed")
	long := Objects{Resource: pods, Namespace: "ml", Selector: kubelabels.Everything()}
	for range 2000 {
		long.Names = append(long.Names, strings.Repeat("p", 63))
	}
	if _, _, err := load(t, "testdata/gpu.yaml").Rules[0].Query("up", &long); err == nil || !strings.Contains(err.Error(), "more than 65536 bytes") {
		t.Errorf("a long query: %v", err)
	}
}

// The rules come out of the ConfigMap and of the chart's values as well.
func TestContainers(t *testing.T) {
	const rules = "rules:\n- {seriesQuery: up, metricsQuery: up}\n"
	f := func(text string, want string) {
		t.Helper()
		set, err := parseRules(t, text)
		switch {
		case want == "" && (err != nil || len(set.Rules) != 1):
			t.Errorf("%v\n%s", err, text)
		case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
			t.Errorf("%v, want %q", err, want)
		}
	}
	f(rules, "")
	f("kind: ConfigMap\ndata:\n  config.yaml: |\n    "+strings.ReplaceAll(rules, "\n", "\n    "), "")
	f("rules:\n  default: false\n  custom:\n  - {seriesQuery: up, metricsQuery: up}\n", "")
	f("rules:\n  custom: []\n", "rules.default")
	f("rules:\n  existing: mine\n", `"mine"`)
	f("kind: ConfigMap\ndata: {a: b}", "has no config.yaml")
	f("kind: Pod", `kind "Pod" is not ConfigMap`)
	f("{}", "no rules")
	f("rules: [", "did not find expected node content")
}

func TestWarnings(t *testing.T) {
	set, err := parseRules(t, "rules:\n- {seriesQuery: up, metricsQuery: up, seriesFilter: []}\n- {seriesQuery: up, metricsQuery: up, resources: {overrides: {brand: {group: cheese.io, resource: brand}}}}\nexternalRules:\n- {seriesQuery: up, metricsQuery: up}\nresourceRules: {}")
	if err != nil {
		t.Fatal(err)
	}
	all := strings.Join(set.Warnings, "\n")
	for _, want := range []string{
		`unknown field "rules[0].seriesFilter"`, "rules[0].resources: no label is mapped", "externalRules[0].resources", "metrics-server",
		`rules[1].resources.overrides[brand].resource: "brand.cheese.io" is no resource`, "rules[1].resources: no label is mapped",
	} {
		if !strings.Contains(all, want) {
			t.Errorf("no warning %q in\n%s", want, all)
		}
	}
}

// The files of prometheus-adapter itself, and others, are read from the directory in
// $ADAPTER_CONFIGS.
func TestUpstreamFiles(t *testing.T) {
	dir := os.Getenv("ADAPTER_CONFIGS")
	if dir == "" {
		t.Skip("ADAPTER_CONFIGS is not set")
	}
	files, _ := filepath.Glob(filepath.Join(dir, "*.yaml"))
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		set, err := Load(b, Builtin{})
		t.Logf("%s: %v", filepath.Base(file), err)
		if set != nil {
			t.Logf("%d rules, warnings %q", len(set.Rules), set.Warnings)
		}
	}
}

// A query for all objects of a namespace is used only if it gives each of them the value
// of its own query.
func TestBatches(t *testing.T) {
	f := func(query string, want bool) {
		t.Helper()
		set, err := parseRules(t, "rules:\n- seriesQuery: x\n  resources: {template: <<.Resource>>}\n  metricsQuery: '"+query+"'\n")
		if err != nil {
			t.Fatal(err)
		}
		if got := set.Rules[0].Batches("x", "pod"); got != want {
			t.Errorf("%s: %v", query, got)
		}
	}
	f(`<<.Series>>{<<.LabelMatchers>>}`, true)
	f(`avg(<<.Series>>{<<.LabelMatchers>>}) by (<<.GroupBy>>)`, true)
	f(`topk by (pod) (1, <<.Series>>{<<.LabelMatchers>>})`, true)
	f(`sum without (gpu) (rate(<<.Series>>{<<.LabelMatchers>>}[1m]))`, true)
	f(`sum(x{<<.LabelMatchers>>}) by (<<.GroupBy>>) / sum(y{<<.LabelMatchers>>}) by (<<.GroupBy>>)`, true)
	f(`x{<<.LabelMatchers>>} * on (namespace, pod) group_left y{<<.LabelMatchers>>}`, true)
	f(`avg(<<.Series>>{<<.LabelMatchers>>})`, false)
	f(`<<.Series>>{<<.LabelMatchers>>} / on (gpu) group_left () y{<<.LabelMatchers>>}`, false)
	f(`<<.Series>>{<<.LabelMatchers>>} / ignoring (pod) group_left () y{<<.LabelMatchers>>}`, false)
	f(`<<.Series>>{<<.LabelMatchers>>} / ignoring (gpu) group_left () y{<<.LabelMatchers>>}`, true)
	f(`topk(1, <<.Series>>{<<.LabelMatchers>>})`, false)
	f(`sum without (pod) (<<.Series>>{<<.LabelMatchers>>})`, false)
	f(`<<.Series>>{<<.LabelMatchers>>} / on () group_left sum(<<.Series>>{<<.LabelMatchers>>})`, false)
	f(`<<.Series>>{<<.LabelMatchers>>} / scalar(sum(y))`, false)
	f(`absent(<<.Series>>{<<.LabelMatchers>>})`, false)
	f(`<<.Series>>{pod=~"<<index .LabelValuesByName "pod">>"}`, false)
	f(`label_replace(<<.Series>>{<<.LabelMatchers>>}, "pod", "a", "", "")`, false)
}

// Whatever the names and selectors of a request are, the query has exactly the rule's
// selector with exactly these values.
func FuzzNoInjection(f *testing.F) {
	plain, values := ruleOf(f, `sum(<<.Series>>{<<.LabelMatchers>>,a="b"}) by (<<.GroupBy>>)`),
		ruleOf(f, `sum(<<.Series>>{namespace="<<index .LabelValuesByName "namespace">>",pod=~"<<.LabelValuesByName.pod>>"}) by (<<.GroupBy>>)`)
	f.Add("ml", "a", "b", "gpu", "0")
	f.Add(`ml"}) or vector(1) or ({x="`, "a\n", `b"\`, `x="1",y`, "`}")
	f.Add("m`l", "\x00\xff", "|.*", "gpu", "$1{{.}}<<.Series>>")
	f.Fuzz(func(t *testing.T, namespace, first, second, key, value string) {
		if namespace == "" || first == "" {
			return
		}
		names := []string{first}
		if second != "" && second != first {
			names = append(names, second)
		}
		o := Objects{Resource: pods, Namespace: namespace, Names: names, Selector: unchecked{key, value}.selector()}
		query, _, err := plain.Query("up", &o)
		if err != nil {
			return
		}
		m := onlySelector(t, query)
		if !matches(m, "namespace", namespace) || matches(m, "namespace", namespace+"x") || key != "a" && !matches(m, "a", "b") || len(m) != 4+min(1, len(key)) {
			t.Fatalf("%s has the matchers %v", query, m)
		}
		for _, n := range names {
			if !matches(m, "pod", n) || matches(m, "pod", n+"x") && !slices.Contains(names, n+"x") {
				t.Fatalf("%s does not match %q alone", query, n)
			}
		}
		if key != "" && key != "pod" && key != "namespace" && key != "a" && (!matches(m, key, value) || matches(m, key, value+"x")) {
			t.Fatalf("%s does not match %s=%q alone", query, key, value)
		}
		if query, _, err = values.Query("up", &o); err != nil {
			return
		}
		m = onlySelector(t, query)
		if len(m) != 3 || !matches(m, "namespace", namespace) || !matches(m, "pod", first) {
			t.Fatalf("%s has the matchers %v", query, m)
		}
	})
}

func ruleOf(t testing.TB, query string) *Rule {
	t.Helper()
	set, err := parseRules(t, "rules:\n- seriesQuery: up\n  resources: {template: <<.Resource>>}\n  metricsQuery: '"+query+"'\n")
	if err != nil {
		t.Fatal(err)
	}
	return set.Rules[0]
}

// onlySelector returns the matchers of the only selector of a query of the shape
// sum(up{…}) by (pod).
func onlySelector(t *testing.T, query string) []*labels.Matcher {
	t.Helper()
	expr, err := selectors.ParseExpr(query)
	if err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	sum, ok := expr.(*parser.AggregateExpr)
	all := parser.ExtractSelectors(expr)
	if !ok || sum.Op != parser.SUM || len(all) != 1 || !slices.Equal(sum.Grouping, []string{"pod"}) {
		t.Fatalf("%s is another query", query)
	}
	return all[0]
}

// matches reports whether all matchers of a label match a value.
func matches(ms []*labels.Matcher, label, value string) bool {
	found := false
	for _, m := range ms {
		if m.Name == label {
			if !m.Matches(value) {
				return false
			}
			found = true
		}
	}
	return found
}

// unchecked is a selector that has not been validated.
type unchecked struct{ key, value string }

func (u unchecked) selector() kubelabels.Selector {
	if u.key == "" {
		return kubelabels.Everything()
	}
	return kubelabels.SelectorFromValidatedSet(kubelabels.Set{u.key: u.value})
}

// FuzzLoad checks that a file of any content is refused or compiled, and that what is
// compiled produces PromQL.
func FuzzLoad(f *testing.F) {
	b, err := os.ReadFile("testdata/gpu.yaml")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add([]byte("rules:\n- {seriesQuery: up, metricsQuery: '<<range .GroupBySlice>><<.>><<end>>up'}"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) > 1<<12 {
			return
		}
		set, err := Load(b, Builtin{})
		if err != nil {
			return
		}
		for _, r := range set.Rules {
			q, _, err := r.Query("up", &Objects{Resource: pods, Namespace: "a", Names: []string{"b"}, Selector: kubelabels.Everything()})
			if err == nil && len(q) > maxOutput {
				t.Fatalf("a query of %d bytes", len(q))
			}
		}
	})
}

// SPDX-License-Identifier: Apache-2.0

package adapter

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// A file is bounded, and what it is in is read with the same care.
func TestFilesAreBounded(t *testing.T) {
	const rule = "- {seriesQuery: up, metricsQuery: up}\n"
	f := func(what, text, want string) {
		t.Helper()
		_, _, err := Parse([]byte(text))
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %.200v, want %q", what, err, want)
		}
	}
	f("the largest file", "rules:\n"+rule+strings.Repeat("#", maxFile-len(rule)-7), "")
	f("a larger file", "rules:\n"+rule+strings.Repeat("#", maxFile-len(rule)-6), "at most 4194304 are allowed")
	f("the most rules", "rules:\n"+strings.Repeat(rule, maxRules), "")
	f("more rules", "rules:\n"+strings.Repeat(rule, maxRules+1), "rules: Too many: 1001")
	f("more external rules", "externalRules:\n"+strings.Repeat(rule, maxRules+1), "externalRules: Too many: 1001")
	f("a field twice", "rules:\n"+rule+"rules: []\n", `"rules" already set`)
	f("a ConfigMap with a file of another name", "kind: ConfigMap\ndata: {other: a, my.yml: \"rules: [{seriesQuery: up}]\"}", "")
	f("a ConfigMap with two files", "kind: ConfigMap\ndata: {a.yaml: \"rules: [{}]\", b.yaml: \"rules: [{}]\"}", "no config.yaml")
	f("a ConfigMap whose data is a list", "kind: ConfigMap\ndata: []", "cannot unmarshal array")
	f("values with a wrong type", "rules: {default: false, custom: 3}", "cannot unmarshal number")
	f("values with the chart's default rules", "rules: {default: true, custom: [{seriesQuery: up}]}", "rules.default")
	f("values with external rules alone", "rules: {default: false, external: [{seriesQuery: up}]}", "")
	long := strings.Repeat("x", maxText+1)
	for _, bad := range []string{"name: {matches: " + long + "}", "seriesFilters: [{is: " + long + "}]", "seriesFilters: [{is: '('}]"} {
		if _, err := parseRules(t, "rules:\n- {seriesQuery: up, metricsQuery: up, "+bad+"}"); err == nil || !strings.Contains(err.Error(), "is not a regular expression") {
			t.Errorf("%.50s: %.100v", bad, err)
		}
	}
}

// A label's template is bounded and makes names of labels.
func TestLabelsOfResources(t *testing.T) {
	f := func(resources, want string) {
		t.Helper()
		set, err := parseRules(t, "rules:\n- {seriesQuery: up, metricsQuery: up, resources: "+resources+"}")
		got := ""
		if err == nil {
			var label string
			if label, err = set.Rules[0].mapping.label(schema.GroupResource{Group: "leaderworkerset.x-k8s.io", Resource: "leaderworkersets"}); err == nil {
				got = label
			}
		}
		if err != nil {
			got = err.Error()
		}
		if !strings.Contains(got, want) {
			t.Errorf("%s: %q, want %q", resources, got, want)
		}
	}
	f(`{template: "k_<<.Group>>_<<.Resource>>"}`, "k_leaderworkerset_x_k8s_io_leaderworkerset")
	f(`{template: "<<.Resource"}`, "resources.template")
	f(`{template: "<<.Nope>><<.Resource>>"}`, "resources.template")
	f(`{template: "(<<.Resource>>"}`, "resources.template")
	f(`{template: "<<.Resource>>!"}`, `"leaderworkerset!" is not the name of a label`)
	f(`{template: "<<if eq .Resource \"leaderworkerset\">><<index .Group 99>><<end>><<.Resource>>"}`, "resources.template: template: :1:")
	f(`{overrides: {"a-b": {resource: pod}}}`, `rules[0].resources.overrides[a-b]`)
	f(`{overrides: {pod: {resource: pod}}}`, "no label for leaderworkersets.leaderworkerset.x-k8s.io: add it to overrides")
	lws := `{group: leaderworkerset.x-k8s.io, resource: leaderworkerset}`
	for range 10 { // whatever the order of a map
		f(`{overrides: {z: `+lws+`, b: `+lws+`, k: `+lws+`}}`, "b")
	}
	set, err := parseRules(t, `rules: [{seriesQuery: up, metricsQuery: up, resources: {overrides: {z: `+lws+`, b: `+lws+`}}}]`)
	if err != nil {
		t.Fatal(err)
	}
	for _, label := range []string{"b", "z"} { // both are read
		if k, ok := set.Rules[0].mapping.kindOf(label); !ok || k.Resource != "leaderworkersets" {
			t.Errorf("%s is %v, %v", label, k, ok)
		}
	}
}

// Branches, loops over the arguments and variables are allowed, and what they contain is
// checked.
func TestTemplates(t *testing.T) {
	f := func(query, want string, readsValues bool) {
		t.Helper()
		set, err := parseRules(t, "rules:\n- {seriesQuery: up, resources: {template: <<.Resource>>}, metricsQuery: '"+query+"'}")
		if err != nil {
			if want == "" || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v, want %q", query, err, want)
			}
			return
		}
		r := set.Rules[0]
		got, _, err := r.Query("x", &Objects{Resource: pods, Namespace: "ml", Names: []string{"a"}, Selector: selector(t, "")})
		if err != nil || got != want || r.readsValue != readsValues {
			t.Errorf("%s: %s, %v, reads values %v; want %s, %v", query, got, err, r.readsValue, want, readsValues)
		}
	}
	f(`<<if .Series>>x<<else>>y<<end>>`, "x", false)
	f(`<<with .GroupBy>><<.>><<else>>y<<end>>`, "pod", true) // the dot may be anything
	f(`up{<<range $n, $v := .LabelValuesByName>><<$n>>="<<$v>>",<<end>>}`, `up{namespace="ml",pod="a",}`, true)
	f(`sum(up) by (<<range .GroupBySlice>><<.>><<end>>)`, "sum(up) by (pod)", true)
	f(`sum(up) by (<<range $.GroupBySlice>><<.>><<else>>z<<end>>)`, "sum(up) by (pod)", true)
	f(`up{pod="<<$.LabelValuesByName.pod>>"}`, `up{pod="a"}`, true)
	f(`up{pod="<<(index .LabelValuesByName "pod")>>"}`, `up{pod="a"}`, true)
	f(`up{pod="<<(.LabelValuesByName).pod>>"}`, `up{pod="a"}`, true)
	f(`<<$x := .Series>><<$x>>`, "x", false)
	f(`up{a="<<len (print $)>>"}`, `up{a="60"}`, true) // the whole
	f(`<<if .Series>>x<<else>>y{a="<<.LabelValuesByName.pod>>"}<<end>>`, "x", true)
	f(`<<if .Series>><<range 9999>>x<<end>><<end>>up`, "a range must be over", false)
	f(`<<with .Series>>x<<else>><<range 9999>>x<<end>><<end>>`, "a range must be over", false)
	f(`<<range .GroupBySlice>><<range 9999>>x<<end>><<end>>up`, "a range must be over", false)
	f(`<<range $x := .GroupBySlice | len>>x<<end>>up`, "a range must be over", false)
	f(`<<range $.Series>>x<<end>>up`, "a range must be over", false)
	f(`<<if print .Series | js>>x<<end>>up`, "is not one of the functions", false)
	f(`<<with $x := print .Series>>x<<end>>up`, "must not be the result of a function", false)
	f(`<<printf "%*d" 9 9>>`, "widths over 999", false)
	f(`<<printf "%.1000f" 9.0>>`, "widths over 999", false)
}

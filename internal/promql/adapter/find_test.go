// SPDX-License-Identifier: Apache-2.0

package adapter

import (
	"fmt"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// A metric's rule and series are found by the metric's name. The last rule wins, as in
// discovery.
func TestFind(t *testing.T) {
	set, err := parseRules(t, `
rules:
- {seriesQuery: 'gpu{pod!=""}', resources: {template: <<.Resource>>}, name: {as: util}, metricsQuery: <<.Series>>}
- {seriesQuery: '{__name__=~".+_total"}', resources: {overrides: {pod: {resource: pod}}}, name: {matches: "^(.+)_total$"}, metricsQuery: <<.Series>>}
- {seriesQuery: '{__name__=~"^container_.+"}', seriesFilters: [{is: "^container_b"}, {isNot: cpu}], resources: {template: <<.Resource>>}, name: {matches: "^container_(.+)_seconds_total$"}, metricsQuery: <<.Series>>}
- {seriesQuery: last, resources: {template: <<.Resource>>}, name: {as: util}, metricsQuery: <<.Series>>}
- {seriesQuery: '{__name__=~"^vllm:num_requests_waiting$"}', resources: {template: <<.Resource>>}, name: {as: vllm_num_requests_waiting}, metricsQuery: <<.Series>>}
- {seriesQuery: '{__name__=~"^(first|second):depth$",pod!=""}', resources: {template: <<.Resource>>}, name: {matches: "^(.*):depth$", as: "${1}_depth"}, metricsQuery: <<.Series>>}
- {seriesQuery: '{__name__=~"^sglang:.*"}', resources: {template: <<.Resource>>}, name: {matches: "^sglang:(?P<what>.*)_(reqs)$", as: "${what}_of_sglang_$2"}, metricsQuery: <<.Series>>}
externalRules:
- {seriesQuery: queue, resources: {namespaced: false}, name: {as: util}, metricsQuery: <<.Series>>}
`)
	if err != nil {
		t.Fatal(err)
	}
	deployments := schema.GroupResource{Group: "apps", Resource: "deployments"}
	f := func(name string, resource schema.GroupResource, want string) {
		t.Helper()
		got := ""
		if r, series, ok := set.Find(name, resource); ok {
			got = r.Path + " " + series
		}
		if got != want {
			t.Errorf("%s of %v: %q, want %q", name, resource, got, want)
		}
	}
	f("util", pods, "rules[3] last")
	f("requests", pods, "rules[1] requests_total")
	f("requests", deployments, "") // rules[1] maps pods alone
	f("busy", deployments, "rules[2] container_busy_seconds_total")
	f("busy_cpu", deployments, "") // the second filter
	f("idle", deployments, "")     // the first
	f("util", schema.GroupResource{}, "externalRules[0] queue")
	f("requests", schema.GroupResource{}, "")
	f("util", schema.GroupResource{Group: "x.io", Resource: "things"}, "")
	f("other", deployments, "")
	// A selector by an anchored expression, by one that is a list, and a name that is made of groups.
	f("vllm_num_requests_waiting", schema.GroupResource{Resource: "namespaces"}, "rules[4] vllm:num_requests_waiting")
	f("second_depth", pods, "rules[5] second:depth")
	f("third_depth", deployments, "")
	f("num_queue_of_sglang_reqs", pods, "rules[6] sglang:num_queue_reqs")
}

// What migrate reads of a rule.
func TestAboutARule(t *testing.T) {
	set, err := parseRules(t, `
rules:
- {seriesQuery: '{__name__="gpu",pod!=""}', resources: {overrides: {pod: {resource: pod}, ns: {resource: namespace}}}, metricsQuery: 'sum(<<.Series>>{<<.LabelMatchers>>}) by (<<.GroupBy>>)'}
- {seriesQuery: '{__name__=~"gpu.*"}', metricsQuery: 'up{a="<<.LabelValuesByName.pod>>"}'}
- {seriesQuery: '{__name__!="gpu",pod!=""}', resources: {template: <<.Resource>>}, metricsQuery: '<<if eq .Series "example">>up<<end>>'}
`)
	if err != nil {
		t.Fatal(err)
	}
	f := func(rule int, want string) {
		t.Helper()
		r := set.Rules[rule]
		name, one := r.SeriesName()
		example, err := r.Example("gpu_x")
		if got := fmt.Sprintf("%s %v %v %d %q %v", name, one, r.MapsResources(), len(r.Mapped()), example, err); got != want {
			t.Errorf("rule %d: %s, want %s", rule, got, want)
		}
	}
	f(0, `gpu true true 2 "sum(gpu_x{pod=\"example\"}) by (pod)" <nil>`)
	f(1, ` false false 0 "up{a=\"example\"}" <nil>`)
	f(2, ` false true 0 "" the template produces an empty query`)
	if k := set.Rules[0].Mapped()["ns"]; k.Resource != "namespaces" || k.Namespaced {
		t.Errorf("the label ns is mapped to %+v", k)
	}
}

// Without an API server every resource with a group is taken for a custom one.
func TestUnchecked(t *testing.T) {
	f := func(group, resource, want string) {
		t.Helper()
		got := "none"
		if k, ok := (Unchecked{}).Find(group, resource); ok {
			got = fmt.Sprint(k.String(), k.Namespaced)
		}
		if got != want {
			t.Errorf("%s.%s: %s, want %s", resource, group, got, want)
		}
	}
	f("", "pod", "podstrue")
	f("", "nodes", "nodesfalse")
	f("apps", "deployment", "deployments.appstrue")
	f("serving.kserve.io", "inferenceservice", "inferenceservice.serving.kserve.iotrue")
	f("serving.kserve.io", "", "none")
	f("nogroup", "thing", "none")
	f("", "thing", "none")
}

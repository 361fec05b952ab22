// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package promql

import (
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/test/stack"
)

// wrong reports whether the controller's metrics name a refused source.
func wrong(t *testing.T, source string) bool {
	t.Helper()
	status, body := get(t, "all", "/metrics", nil)
	if status != http.StatusOK {
		t.Fatalf("/metrics: %d %s", status, body)
	}
	return strings.Contains(body, fmt.Sprintf("gpupilot_rules_source_wrong{source=%q} 1", source))
}

func awaitWrong(t *testing.T, source string, want bool) {
	t.Helper()
	stack.Eventually(t, func() error {
		if wrong(t, source) != want {
			return fmt.Errorf("gpupilot_rules_source_wrong of %s is not %t", source, want)
		}
		return nil
	})
}

// A changed rule file is read again, a broken one keeps its last version, and the rules
// of a removed one end, without a restart.
func TestRuleFiles(t *testing.T) {
	file := filepath.Join(rig.dir, "team.yaml")
	write := func(text string) {
		t.Helper()
		// As an editor does: a new file in place of the old one.
		if err := os.WriteFile(file+".new", []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(file+".new", file); err != nil {
			t.Fatal(err)
		}
	}
	rules := func(expr string) string {
		return "groups: [{name: files, rules: [{record: from_file, expr: '" + expr + "'}]}]"
	}
	write(rules("vector(1)"))
	awaitQuery(t, "all", "from_file", `"1"]`)
	write(rules("vector(2)"))
	awaitQuery(t, "all", "from_file", `"2"]`)
	write(rules("vector("))
	awaitWrong(t, file, true)
	if body := query(t, "all", "from_file"); !strings.Contains(body, `"2"]`) {
		t.Errorf("a broken file ended the rules: %s", body)
	}
	write("groups: [") // no YAML
	if body := query(t, "all", "from_file"); !strings.Contains(body, `"2"]`) {
		t.Errorf("a broken file ended the rules: %s", body)
	}
	write(rules("vector(3)"))
	awaitQuery(t, "all", "from_file", `"3"]`)
	awaitWrong(t, file, false)
	if _, body := get(t, "all", "/api/v1/rules", nil); !strings.Contains(body, `"from_file"`) {
		t.Errorf("the rules are %s", body)
	}
	if _, body := get(t, "mine", "/api/v1/rules", nil); strings.Contains(body, `"from_file"`) {
		t.Errorf("the operator's rules are shown to the viewer of one namespace: %s", body)
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	awaitQuery(t, "all", "from_file", `"result":[]`)
	if _, body := get(t, "all", "/api/v1/rules", nil); strings.Contains(body, `"from_file"`) {
		t.Errorf("the removed rules are %s", body)
	}
	// What cannot be read is wrong, and is forgotten when it is gone.
	if err := os.Mkdir(file, 0o700); err != nil {
		t.Fatal(err)
	}
	awaitWrong(t, file, true)
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	awaitWrong(t, file, false)
}

// eventsOf returns the Events of an object by its reason.
func eventsOf(t *testing.T, o client.Object) (out map[string][]eventsv1.Event) {
	t.Helper()
	var list eventsv1.EventList
	if err := rig.Client.List(t.Context(), &list, client.InNamespace(o.GetNamespace())); err != nil {
		t.Fatal(err)
	}
	out = map[string][]eventsv1.Event{}
	for i := range list.Items {
		if e := &list.Items[i]; e.Regarding.Name == o.GetName() && e.Regarding.UID == o.GetUID() && e.ReportingController == "gpupilot-controller" {
			out[e.Reason] = append(out[e.Reason], *e)
		}
	}
	return out
}

func awaitEvent(t *testing.T, o client.Object, reason, text string) {
	t.Helper()
	began := time.Now()
	stack.Eventually(t, func() error {
		all := eventsOf(t, o)
		for _, e := range all[reason] {
			if strings.Contains(e.Note, text) && e.Type == "Warning" && e.Regarding.Kind == o.GetObjectKind().GroupVersionKind().Kind {
				t.Logf("%s %s after %s: %s", o.GetName(), reason, time.Since(began).Round(time.Second), e.Note)
				return nil
			}
		}
		return fmt.Errorf("%s %s has no Event %s with %q: %+v", o.GetObjectKind().GroupVersionKind().Kind, o.GetName(), reason, text, all)
	})
}

func prometheusRule(t *testing.T, namespace, name string, rules ...string) *unstructured.Unstructured {
	t.Helper()
	rig.MustApply(t, fmt.Sprintf(`
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata: {name: %s, namespace: %s}
spec:
  groups:
  - name: g
    rules:
    %s
`, name, namespace, strings.Join(rules, "\n    ")))
	u := &unstructured.Unstructured{}
	u.SetAPIVersion("monitoring.coreos.com/v1")
	u.SetKind("PrometheusRule")
	if err := rig.Client.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: name}, u); err != nil {
		t.Fatal(err)
	}
	return u
}

// What is wrong with a PrometheusRule is an Event of that object, once, from however many
// replicas. The deciding replica evaluates no rules.
func TestEventsOfRules(t *testing.T) {
	awaitBoth(t)
	rig.MustApplyFile(t, "../../journeys/walkthrough/testdata/prometheusrules-crd.yaml")
	_, stop, err := rig.StartReplica(t.Context(), "127.0.0.1", rig.args...) // a second replica for queries
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	good := prometheusRule(t, mine, "good", `- {record: team_util, expr: 'avg(DCGM_FI_DEV_GPU_UTIL)', labels: {deployment: alpha}}`)
	syntax := prometheusRule(t, mine, "syntax", `- {record: x, expr: 'sum('}`)
	spoof := prometheusRule(t, mine, "spoof", `- {record: DCGM_FI_DEV_GPU_UTIL, expr: 'vector(100)'}`)
	failing := prometheusRule(t, mine, "failing",
		`- {record: joined, expr: 'kube_pod_status_phase * on (pod) kube_pod_status_phase'}`, `- {record: fine, expr: 'vector(1)'}`)
	limited := prometheusRule(t, other, "failing", `- {record: joined, expr: 'kube_pod_status_phase * on (pod) kube_pod_status_phase'}`)
	odd := prometheusRule(t, mine, "odd", `- {record: odd, expr: 'vector(1)', labels: {namespace: team-a, shard: x}}`)
	awaitEvent(t, syntax, "RulesRefused", "parse error")
	awaitEvent(t, spoof, "RulesRefused", "may not record DCGM_FI_DEV_GPU_UTIL")
	awaitEvent(t, failing, "RuleFailed", "rule joined")
	awaitEvent(t, limited, "RuleFailed", "rule joined")
	awaitEvent(t, odd, "UnknownResource", "odd has the label namespace")
	awaitQuery(t, "mine", "team_util", `"deployment":"alpha"`)
	awaitQuery(t, "mine", "fine", `"1"]`)
	if _, body := get(t, "mine", "/api/v1/rules", nil); !strings.Contains(body, `"many-to-many`) && !strings.Contains(body, "many-to-many") || strings.Contains(body, "PrometheusRule/team-b") {
		t.Errorf("the rules of %s are %s", mine, body)
	}
	for _, u := range []*unstructured.Unstructured{syntax, spoof, failing, limited, odd, good} {
		for reason, list := range eventsOf(t, u) {
			if len(list) > 1 && list[0].Note == list[1].Note || u == good {
				t.Errorf("%s has %d Events %s: %s", u.GetName(), len(list), reason, list[0].Note)
			}
		}
	}
	if n := len(eventsOf(t, failing)); n != 1 {
		t.Errorf("the failing rules have Events of %d reasons", n)
	}
	for _, e := range eventsOf(t, failing)["RuleFailed"] {
		if isForeign(e.Note) {
			t.Errorf("an Event names another namespace: %s", e.Note)
		}
	}
}

// What is wrong with a MetricQuery is an Event of that object, beside its condition.
func TestEventsOfMetricQueries(t *testing.T) {
	awaitBoth(t)
	q := func(name, metric, promql string) *v1alpha1.MetricQuery {
		o := &v1alpha1.MetricQuery{
			ObjectMeta: metav1.ObjectMeta{Namespace: mine, Name: name},
			Spec:       v1alpha1.MetricQuerySpec{MetricName: metric, Query: &v1alpha1.MetricQueryPromQL{PromQL: promql}},
		}
		if err := rig.Client.Create(t.Context(), o); err != nil {
			t.Fatal(err)
		}
		o.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind("MetricQuery"))
		return o
	}
	fine := q("load", "", `sum(DCGM_FI_DEV_GPU_UTIL{pod=~"alpha-.*"})`)
	twin := q("twin", "load", "vector(1)")
	broken := q("broken", "", "sum(")
	foreign := q("foreign", "", `sum(DCGM_FI_DEV_GPU_UTIL{namespace="team-b"})`)
	awaitEvent(t, twin, "Conflict", "older MetricQuery load")
	awaitEvent(t, broken, "NoValue", "parse")
	awaitEvent(t, foreign, "NoValue", "")
	stack.Eventually(t, func() error { // over the other replica's windows
		var o v1alpha1.MetricQuery
		if err := rig.Client.Get(t.Context(), client.ObjectKeyFromObject(fine), &o); err != nil {
			return err
		}
		if o.Status.Value == nil || math.Abs(o.Status.Value.AsApproximateFloat64()-40) > noise {
			b, _ := json.Marshal(o.Status)
			return fmt.Errorf("the status is %s", b)
		}
		return nil
	})
}

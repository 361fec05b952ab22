// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package promql

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/gpupilot/gpupilot/test/stack"
)

// reaching are queries that try to read the series of other namespaces. The viewer of
// one namespace gets the rest of them; the viewer of all gets what they ask for.
var reaching = []string{
	`DCGM_FI_DEV_GPU_UTIL`,
	`dcgm_gpu_utilization`,
	`DCGM_FI_DEV_GPU_UTIL{namespace=~".*"}`,
	`DCGM_FI_DEV_GPU_UTIL{namespace="team-b"}`,
	`DCGM_FI_DEV_GPU_UTIL{namespace!="team-a"}`,
	`DCGM_FI_DEV_GPU_UTIL{namespace=~"team-a|team-b"}`,
	`{__name__=~"DCGM_.+", namespace!~"team-a"}`,
	`{pod=~"beta-.*"}`,
	`{__name__=~".+"}`,
	`label_replace(DCGM_FI_DEV_GPU_UTIL{pod=~"beta-.*"}, "pod", "x-$1", "pod", "(.*)")`,
	`label_join(DCGM_FI_DEV_GPU_UTIL, "namespace", "-", "namespace", "pod")`,
	`sum by (namespace, pod) (DCGM_FI_DEV_GPU_UTIL)`,
	`DCGM_FI_DEV_GPU_UTIL * on (node) group_left () max by (node) (DCGM_FI_DEV_GPU_UTIL{pod=~"beta-.*"}) or kube_pod_info{pod=~"beta-.*"}`,
	`kube_pod_labels{namespace="team-b"}`,
	`max by (node, pod, namespace) (dcgm_gpu_utilization) * on (pod) group_left (label_app) max by (pod, label_app) (kube_pod_labels{label_app="beta"})`,
	`kube_pod_labels{label_app=~"be.*"} and on (pod) DCGM_FI_DEV_GPU_UTIL`,
	`kube_pod_info and on () vector(1)`,
	`kube_pod_owner{owner_name=~"beta-.*"}`,
	`max_over_time(DCGM_FI_DEV_GPU_UTIL{pod=~"beta-.*"}[1m])`,
	`max_over_time((DCGM_FI_DEV_GPU_UTIL{namespace=~".*b"})[1m:1s])`,
	`max_over_time(label_replace(kube_pod_info{namespace="team-b"}, "namespace", "team-a-$1", "pod", "(.*)")[30s:1s])`,
	`count_values("pod_of_beta", DCGM_FI_DEV_GPU_UTIL{pod=~"beta-.*"})`,
	`topk(50, {namespace="team-b"})`,
	`gpupilot_gpu_allocation_info{pod=~"beta-.*"}`,
	`gpupilot_gpu_allocation_info{exported_namespace=~"team-.*"} or gpupilot_gpu_allocation_info{namespace=~"team-.*"}`,
}

// awaitBoth waits until the series of both namespaces are there.
func awaitBoth(t *testing.T) {
	t.Helper()
	awaitQuery(t, "all", `count(count by (namespace) (DCGM_FI_DEV_GPU_UTIL{namespace=~"team-a|team-b"}))`, `"2"]`)
	awaitQuery(t, "all", `count(count by (namespace) (kube_pod_labels{namespace=~"team-a|team-b"}))`, `"2"]`)
	awaitQuery(t, "mine", `count(count by (namespace) (DCGM_FI_DEV_GPU_UTIL))`, `"1"]`)
}

// isForeign reports whether a text has something of the other namespace. The texts of
// the queries are not in answers.
func isForeign(body string) bool {
	return strings.Contains(body, "beta") || strings.Contains(body, other)
}

// A viewer of one namespace reads its series, whatever the query and the endpoint.
func TestViewersSeeTheirNamespaces(t *testing.T) {
	awaitBoth(t)
	now := time.Now()
	span := url.Values{"start": {fmt.Sprint(now.Add(-time.Minute).Unix())}, "end": {fmt.Sprint(now.Unix())}, "step": {"5"}}
	with := func(name, value string) url.Values {
		v := url.Values{name: {value}}
		for k, x := range span {
			v[k] = x
		}
		return v
	}
	check := func(method, path string, params url.Values) {
		t.Helper()
		for viewer, sees := range map[string]bool{"all": true, "mine": false, "none": false} {
			status, body := ask(t, method, viewer, "/api/v1/"+path, params)
			if status != http.StatusOK {
				t.Errorf("%s %s %v as %s: %d %.300s", method, path, params, viewer, status, body)
			}
			if isForeign(body) != sees {
				t.Errorf("%s %s %v as %s: it has something of %s: %t\n%.500s", method, path, params, viewer, other, !sees, body)
			}
			if viewer == "none" && strings.Contains(body, "alpha") {
				t.Errorf("%s %s %v: who may see nothing sees %.500s", method, path, params, body)
			}
		}
	}
	for _, promql := range reaching {
		if strings.HasPrefix(promql, "count_values") {
			continue // its result has no name of the other namespace
		}
		check(http.MethodGet, "query", url.Values{"query": {promql}})
		check(http.MethodPost, "query_range", with("query", promql))
	}
	if body := query(t, "mine", `count_values("v", DCGM_FI_DEV_GPU_UTIL{pod=~"beta-.*"})`); !strings.Contains(body, `"result":[]`) {
		t.Errorf("values of another namespace: %s", body)
	}
	for _, match := range []string{`{namespace=~".*"}`, `{pod=~"beta.*"}`, `{__name__=~".+"}`, `kube_pod_labels`, `{namespace="team-b"}`} {
		check(http.MethodGet, "series", with("match[]", match))
		check(http.MethodPost, "series", with("match[]", match))
		check(http.MethodGet, "label/namespace/values", with("match[]", match))
		check(http.MethodGet, "label/pod/values", with("match[]", match))
	}
	check(http.MethodGet, "label/pod/values", nil)
	check(http.MethodGet, "label/label_app/values", span)
	if body := query(t, "mine", "DCGM_FI_DEV_GPU_UTIL"); !strings.Contains(body, "alpha") {
		t.Errorf("the viewer does not see its own series: %s", body)
	}
	if body := query(t, "mine", `absent(DCGM_FI_DEV_GPU_UTIL{namespace="team-b"})`); !strings.Contains(body, `"1"]`) {
		t.Errorf("a series of another namespace exists: %s", body)
	}
	// Series without a namespace are for those who see all: idle GPUs, targets, the
	// controller's own metrics.
	for _, promql := range []string{`count(up)`, `count(DCGM_FI_DEV_GPU_UTIL{namespace=""})`, `count(gpupilot_rules_groups)`} {
		awaitQuery(t, "all", promql, `"value"`)
		if body := query(t, "mine", promql); !strings.Contains(body, `"result":[]`) {
			t.Errorf("%s: %s", promql, body)
		}
	}
	names := func(viewer string) string {
		_, body := get(t, viewer, "/api/v1/labels", span)
		return body
	}
	if !strings.Contains(names("all"), `"version"`) || strings.Contains(names("mine"), `"version"`) || !strings.Contains(names("mine"), `"label_app"`) {
		t.Errorf("the names of labels are %s, and for one namespace %s", names("all"), names("mine"))
	}
}

// The metadata of a viewer is that of the viewer's metrics.
func TestMetadata(t *testing.T) {
	awaitBoth(t)
	_, all := get(t, "all", "/api/v1/metadata", nil)
	_, own := get(t, "mine", "/api/v1/metadata", nil)
	_, none := get(t, "none", "/api/v1/metadata", nil)
	for _, want := range []string{
		`"DCGM_FI_DEV_GPU_UTIL":[{"type":"gauge","help":"`, `"unit":"%"`, `"DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION":[{"type":"counter"`,
		`"kube_pod_labels":[{"type":"gauge"`,
	} {
		if !strings.Contains(all, want) || !strings.Contains(own, want) {
			t.Errorf("the metadata lacks %s:\n%s\n%s", want, all, own)
		}
	}
	for _, want := range []string{`"gpupilot_rules_groups":[{"type":"gauge"`, `"gpupilot_config_reloads_total":[{"type":"counter"`, `"up":[`} {
		if !strings.Contains(all, want) || strings.Contains(own, want) {
			t.Errorf("%s: %t for all, %t for one namespace", want, strings.Contains(all, want), strings.Contains(own, want))
		}
	}
	if !strings.HasPrefix(none, `{"status":"success","data":{},"warnings":["the token's owner may see the series of no namespace`) {
		t.Errorf("who may see nothing sees %s", none)
	}
	if _, one := get(t, "mine", "/api/v1/metadata", url.Values{"metric": {"DCGM_FI_DEV_GPU_UTIL"}}); strings.Count(one, `"type"`) != 1 {
		t.Errorf("one metric: %s", one)
	}
}

// Without a valid token nothing is answered.
func TestTokens(t *testing.T) {
	t.Parallel() // it waits for what the controller remembers for half a minute
	awaitBoth(t)
	if status, _ := get(t, "revoked", "/api/v1/query", url.Values{"query": {"1"}}); status != http.StatusOK {
		t.Errorf("before its account is deleted, the token gets %d", status)
	}
	if err := rig.revoke(); err != nil {
		t.Fatal(err)
	}
	stack.Eventually(t, func() error { // an accepted token is remembered for half a minute
		if status, body := get(t, "revoked", "/api/v1/query", url.Values{"query": {"1"}}); status != http.StatusUnauthorized {
			return fmt.Errorf("a token of a deleted account: %d %s", status, body)
		}
		return nil
	})
	params := url.Values{"query": {"DCGM_FI_DEV_GPU_UTIL"}, "match[]": {`{namespace=~".+"}`}, "start": {"0"}, "end": {"60"}, "step": {"10"}}
	for _, path := range []string{
		"query", "query_range", "series", "labels", "label/pod/values", "rules", "metadata", "alerts", "format_query", "query_exemplars", "status/buildinfo",
	} {
		for _, viewer := range []string{"nobody", "wrong", "foreign", "revoked"} {
			status, body := get(t, viewer, "/api/v1/"+path, params)
			if status != http.StatusUnauthorized && status != http.StatusTooManyRequests || isForeign(body) || strings.Contains(body, "alpha") {
				t.Errorf("%s as %s: %d %.300s", path, viewer, status, body)
			}
		}
	}
}

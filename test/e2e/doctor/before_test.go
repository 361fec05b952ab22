// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package doctor

import (
	"io"
	"net/http"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/gpupilot/gpupilot/internal/terminal/doctor"
	"github.com/gpupilot/gpupilot/test/stack"
)

// daemonSet runs a dcgm-exporter on the GPU nodes.
func daemonSet(ns, name string) breakage {
	code := "GP104"
	if ns == "gke-managed-system" {
		code = "GP105"
	}
	return breakage{[]string{code + " DaemonSet " + ns + "/" + name}, func(t *testing.T) {
		create(t, object(t, `{apiVersion: apps/v1, kind: DaemonSet, metadata: {namespace: `+ns+`, name: `+name+`}, spec: {selector: {matchLabels: {app: x}}, template: {metadata: {labels: {app: x}}, spec: {terminationGracePeriodSeconds: 0, nodeSelector: {nvidia.com/gpu.present: "true"}, containers: [{name: x, image: "registry.example/dcgm-exporter:4"}]}}}}`))
	}}
}

// without takes the resource of GPUs from nodes, and with labels also the labels that tell of them, until the test ends.
func without(t *testing.T, labels bool, nodes ...int) {
	t.Helper()
	set := func(t *testing.T, label, n string) {
		for _, i := range nodes {
			stack.Must(t, patchNode(i, "", `{"metadata":{"labels":{"nvidia.com/gpu.present":`+label+`,"nvidia.com/gpu.count":`+label+`,"nvidia.com/gpu.product":`+label+`}}}`))
			stack.Must(t, patchNode(i, "status", `{"status":{"capacity":{"nvidia.com/gpu":`+n+`},"allocatable":{"nvidia.com/gpu":`+n+`}}}`))
		}
	}
	label := `"true"`
	if labels {
		label = "null"
	}
	set(t, label, "null")
	t.Cleanup(func() { set(t, `"true"`, `"16"`) })
}

// beforeInstallation is what --pre looks at. GKE's managed exporter and one that follows Google's own guide have the
// names that they have there.
var beforeInstallation = []together{
	{{[]string{"GP103 APIService v1beta1.external.metrics.k8s.io"}, func(t *testing.T) {
		create(t, object(t, `{apiVersion: apiregistration.k8s.io/v1, kind: APIService, metadata: {name: v1beta1.external.metrics.k8s.io}, spec: {group: external.metrics.k8s.io, version: v1beta1, groupPriorityMinimum: 100, versionPriority: 100, insecureSkipTLSVerify: true, service: {namespace: keda, name: keda-operator-metrics-apiserver}}}`))
	}}},
	{daemonSet("gke-managed-system", "dcgm-exporter")},
	{daemonSet("gpu-operator", "nvidia-dcgm-exporter"), daemonSet("gmp-public", "nvidia-dcgm-exporter")},
	{{[]string{"GP106 cluster"}, func(t *testing.T) { without(t, true, 0, 1, 2, 3, 4, 5) }}},
	{{[]string{"GP107 Node gpu-node-1"}, func(t *testing.T) { without(t, false, 1) }}},
}

// older is an API server that says it has an older version: no older control plane runs here, and everything else that
// --pre asks for is as it is.
type older struct{ http.RoundTripper }

func (o older) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := o.RoundTripper.RoundTrip(r)
	if err == nil && r.URL.Path == "/version" {
		_ = resp.Body.Close()
		resp.Body, resp.ContentLength = io.NopCloser(strings.NewReader(`{"major": "1", "minor": "29", "gitVersion": "v1.29.15-gke.1000"}`)), -1
	}
	return resp, err
}

// looksAs is what depends on who looks.
func looksAs(t *testing.T) {
	t.Helper()
	old := rest.CopyConfig(rig.REST)
	old.Wrap(func(r http.RoundTripper) http.RoundTripper { return older{r} })
	(&look{Selection: doctor.Selection{Pre: true}, as: old}).wants(t, "GP101 API server")

	// Who may read everything and create nothing.
	role := func(name string, rules ...rbacv1.PolicyRule) *rest.Config {
		create(t, &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name}, Rules: rules})
		remove, err := rig.CreateAccount(t.Context(), name, name, "*")
		stack.Must(t, err)
		t.Cleanup(func() { _ = remove() })
		cfg, err := rig.AccountREST(name)
		stack.Must(t, err)
		return cfg
	}
	reader := role("reader", rbacv1.PolicyRule{Verbs: []string{"get", "list"}, APIGroups: []string{"*"}, Resources: []string{"*"}})
	var want []string
	for _, resource := range strings.Fields("customresourcedefinitions.apiextensions.k8s.io clusterroles.rbac.authorization.k8s.io clusterrolebindings.rbac.authorization.k8s.io " +
		"apiservices.apiregistration.k8s.io validatingadmissionpolicies.admissionregistration.k8s.io validatingadmissionpolicybindings.admissionregistration.k8s.io gpuexporters.gpupilot.dev namespaces") {
		want = append(want, "GP102 right to create "+resource)
	}
	for _, resource := range strings.Fields("serviceaccounts services deployments.apps poddisruptionbudgets.policy roles.rbac.authorization.k8s.io rolebindings.rbac.authorization.k8s.io") {
		want = append(want, "GP102 right to create "+resource+" in gpupilot-system")
	}
	(&look{Selection: doctor.Selection{Pre: true}, as: reader}).wants(t, want...)

	// Who may read nothing: what cannot be checked says so.
	(&look{Selection: doctor.Selection{Pre: true, Skip: []string{"GP102"}}, as: role("nobody")}).wants(t, "GP103?", "GP104?", "GP105?", "GP106?", "GP107?")
}

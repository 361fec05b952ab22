// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/test/stack"
)

// account is a service account of ours, asking the API server by path.
type account struct {
	client *http.Client
	vars   *strings.Replacer // $POD, $NODE, ... in paths and bodies
}

func newAccount(t *testing.T, name string, vars ...string) *account {
	t.Helper()
	cfg, err := rig.AccountREST(name)
	if err != nil {
		t.Fatal(err)
	}
	c, err := rest.HTTPClientFor(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.CloseIdleConnections)
	return &account{client: c, vars: strings.NewReplacer(vars...)}
}

// contentTypes are those of bodies by method. A patch is a merge patch unless the method says otherwise.
var contentTypes = map[string]string{
	"PATCH": "application/merge-patch+json", "PATCH-JSON": "application/json-patch+json",
	"PATCH-STRATEGIC": "application/strategic-merge-patch+json", "PATCH-APPLY": "application/apply-patch+yaml",
}

// call makes a request such as "PATCH /api/v1/nodes/n1". The error is the API server's.
func (a *account) call(ctx context.Context, request, body string, headers ...string) ([]byte, error) {
	kind, path, _ := strings.Cut(a.vars.Replace(request), " ")
	method, _, _ := strings.Cut(kind, "-")
	req, err := http.NewRequestWithContext(ctx, method, rig.Cluster.URL()+path, strings.NewReader(a.vars.Replace(body)))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", cmp.Or(contentTypes[kind], "application/json"))
	for i := 0; i+1 < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	resp, err := a.client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode < 300 {
		return answer, err
	}
	failed := &apierrors.StatusError{}
	if err := json.Unmarshal(answer, &failed.ErrStatus); err != nil {
		return nil, fmt.Errorf("%s: %s", resp.Status, answer)
	}
	return nil, failed
}

// refused checks that a request is refused, and by what: RBAC or a policy.
func (a *account) refused(t *testing.T, by, what, request, body string, headers ...string) {
	t.Helper()
	_, err := a.call(t.Context(), request, body, headers...)
	says := "ValidatingAdmissionPolicy '" + by + "'"
	if by == byRBAC {
		says = "cannot "
	}
	if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), says) {
		t.Errorf("%s: %s answers %v, want it forbidden by %s", what, request, err, by)
	}
}

// What stops a request.
const (
	byRBAC   = "RBAC"
	byPods   = "gpupilot-controller-pods"
	byNodes  = "gpupilot-controller-nodes"
	byScale  = "gpupilot-controller-scale"
	byOwn    = "gpupilot-controller-own"
	byEvents = "gpupilot-controller-events"

	byDaemonSets = "gpupilot-controller-daemonsets"
	byExporters  = "gpupilot-controller-exporter-objects"
)

const (
	podPath    = "/api/v1/namespaces/llm/pods/$POD"
	nodePath   = "/api/v1/nodes/$NODE"
	ourSecrets = "/api/v1/namespaces/gpupilot-system/secrets"
	ourLeases  = "/apis/coordination.k8s.io/v1/namespaces/gpupilot-system/leases"
	apis       = "/apis/apiregistration.k8s.io/v1/apiservices"
	rbacPath   = "/apis/rbac.authorization.k8s.io/v1"
	workload   = "/apis/apps/v1/namespaces/llm/deployments/$NAME"
	autoscaler = "/apis/gpupilot.dev/v1alpha1/namespaces/llm/gpuautoscalers/$NAME"
)

// subjects are what the requests are about: a workload with its GPUAutoscaler, a pod of it, a node, and a
// Deployment of the cluster's own.
// Each test has its own: pods of an earlier workload of the same name would be taken for this one's.
func subjects(t *testing.T, name string) []string {
	t.Helper()
	rig.Deploy(t, name, 1, 0)
	rig.Autoscale(t, name, nil)
	ours := stack.Deployment(metav1.NamespaceSystem, "dns", 0, 0)
	if err := rig.Client.Create(t.Context(), ours); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = rig.Client.Delete(context.Background(), ours) })
	var pods corev1.PodList
	if err := rig.Client.List(t.Context(), &pods, client.InNamespace(namespace), client.MatchingLabels{"app": name}); err != nil {
		t.Fatal(err)
	}
	p := &pods.Items[0]
	// Something that a write could take away.
	mark := client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"annotations":{"example.com/owner":"team-a"}}}`))
	if err := rig.Client.Patch(t.Context(), p, mark); err != nil {
		t.Fatal(err)
	}
	return []string{"$NAME", name, "$POD", p.Name, "$NODE", p.Spec.NodeName}
}

// What the controller's account must not do, however the controller is tricked.
func TestControllersAccountMayNot(t *testing.T) {
	a := newAccount(t, stack.ControllerAccount, subjects(t, "rights-denied")...)
	t.Run("pods", func(t *testing.T) { mayNotPods(t, a) })
	t.Run("nodes", func(t *testing.T) { mayNotNodes(t, a) })
	t.Run("workloads", func(t *testing.T) { mayNotWorkloads(t, a) })
	t.Run("secrets and rights", func(t *testing.T) { mayNotRights(t, a) })
	t.Run("own objects", func(t *testing.T) { mayNotOwn(t, a) })
}

func mayNotPods(t *testing.T, a *account) {
	f := func(by, what, request, body string) { t.Helper(); a.refused(t, by, what, request, body) }
	const cost = "controller.kubernetes.io/pod-deletion-cost"
	f(byPods, "change a pod's image", "PATCH-STRATEGIC "+podPath, `{"spec":{"containers":[{"name":"server","image":"evil"}]}}`)
	f(byPods, "change a pod's image", "PATCH-JSON "+podPath, `[{"op":"replace","path":"/spec/containers/0/image","value":"evil"}]`)
	f(byPods, "change a pod's image beside the annotation", "PATCH-STRATEGIC "+podPath,
		`{"metadata":{"annotations":{"`+cost+`":"-1073741824"}},"spec":{"containers":[{"name":"server","image":"evil"}]}}`)
	f(byPods, "apply a pod's image", "PATCH-APPLY "+podPath+"?fieldManager=x&force=true",
		`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"$POD"},"spec":{"containers":[{"name":"server","image":"evil"}]}}`)
	f(byPods, "add a toleration", "PATCH-JSON "+podPath, `[{"op":"add","path":"/spec/tolerations/-","value":{"operator":"Exists"}}]`)
	f(byPods, "set a deadline", "PATCH "+podPath, `{"spec":{"activeDeadlineSeconds":1}}`)
	f(byPods, "add a label", "PATCH "+podPath, `{"metadata":{"labels":{"role":"admin"}}}`)
	f(byPods, "take a label away", "PATCH "+podPath, `{"metadata":{"labels":{"app":null}}}`)
	f(byPods, "add another annotation", "PATCH "+podPath, `{"metadata":{"annotations":{"example.com/x":"1"}}}`)
	f(byPods, "change another annotation", "PATCH "+podPath, `{"metadata":{"annotations":{"example.com/owner":"team-b"}}}`)
	f(byPods, "take another annotation away", "PATCH "+podPath, `{"metadata":{"annotations":{"example.com/owner":null}}}`)
	f(byPods, "take all annotations away", "PATCH "+podPath, `{"metadata":{"annotations":null}}`)
	f(byPods, "set another deletion cost", "PATCH "+podPath, `{"metadata":{"annotations":{"`+cost+`":"2147483647"}}}`)
	f(byPods, "add a finalizer", "PATCH "+podPath, `{"metadata":{"finalizers":["example.com/hold"]}}`)
	f(byPods, "remove the owners of a pod", "PATCH "+podPath, `{"metadata":{"ownerReferences":null}}`)

	f(byRBAC, "delete a pod", "DELETE "+podPath, "")
	f(byRBAC, "delete all pods", "DELETE /api/v1/namespaces/llm/pods", "")
	f(byRBAC, "evict a pod", "POST "+podPath+"/eviction", `{"apiVersion":"policy/v1","kind":"Eviction","metadata":{"name":"$POD"}}`)
	f(byRBAC, "create a pod", "POST /api/v1/namespaces/llm/pods", `{"metadata":{"name":"x"},"spec":{"containers":[{"name":"x","image":"x"}]}}`)
	f(byRBAC, "replace a pod", "PUT "+podPath, `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"$POD"}}`)
	f(byPods, "fake a pod's status", "PATCH "+podPath+"/status", `{"status":{"phase":"Failed"}}`)
	f(byPods, "make a pod not ready", "PATCH-STRATEGIC "+podPath+"/status", `{"status":{"conditions":[{"type":"Ready","status":"False"}]}}`)
	f(byPods, "write a readiness gate that the pod does not declare", "PATCH-STRATEGIC "+podPath+"/status", `{"status":{"conditions":[{"type":"gpupilot.dev/serving","status":"False"}]}}`)
	f(byPods, "take all conditions away", "PATCH "+podPath+"/status", `{"status":{"conditions":[{"type":"gpupilot.dev/serving","status":"True"}]}}`)
	f(byPods, "label a pod by its status", "PATCH "+podPath+"/status", `{"metadata":{"labels":{"x":"y"}}}`)
	f(byRBAC, "add an ephemeral container", "PATCH-STRATEGIC "+podPath+"/ephemeralcontainers", `{"spec":{"ephemeralContainers":[{"name":"x","image":"x"}]}}`)
	f(byRBAC, "resize a pod", "PATCH-STRATEGIC "+podPath+"/resize", `{"spec":{"containers":[{"name":"server","resources":{"limits":{"cpu":"1"}}}]}}`)
	f(byRBAC, "bind a pod", "POST "+podPath+"/binding", `{"metadata":{"name":"$POD"},"target":{"name":"$NODE"}}`)
	f(byRBAC, "run a command in a pod", "POST "+podPath+"/exec?command=id&container=server&stdout=true", "")
	f(byRBAC, "attach to a pod", "POST "+podPath+"/attach?container=server&stdout=true", "")
	f(byRBAC, "forward a pod's port", "POST "+podPath+"/portforward", "")
	f(byRBAC, "proxy to a pod", "GET "+podPath+"/proxy/", "")
	f(byRBAC, "read a pod's log", "GET "+podPath+"/log", "")
}

func mayNotNodes(t *testing.T, a *account) {
	f := func(by, what, request, body string) { t.Helper(); a.refused(t, by, what, request, body) }
	f(byNodes, "change a node's capacity", "PATCH "+nodePath+"/status", `{"status":{"capacity":{"nvidia.com/gpu":"80"}}}`)
	f(byNodes, "change what is allocatable", "PATCH "+nodePath+"/status", `{"status":{"allocatable":{"nvidia.com/gpu":"0"}}}`)
	f(byNodes, "change a node's address", "PATCH-JSON "+nodePath+"/status", `[{"op":"replace","path":"/status/addresses/0/address","value":"192.0.2.1"}]`)
	f(byNodes, "claim an image", "PATCH "+nodePath+"/status", `{"status":{"images":[{"names":["x"],"sizeBytes":1}]}}`)
	f(byNodes, "claim a volume", "PATCH "+nodePath+"/status", `{"status":{"volumesInUse":["x"]}}`)
	f(byNodes, "change where the kubelet is", "PATCH "+nodePath+"/status", `{"status":{"daemonEndpoints":{"kubeletEndpoint":{"Port":1}}}}`)
	f(byNodes, "change the kubelet's version", "PATCH "+nodePath+"/status", `{"status":{"nodeInfo":{"kubeletVersion":"v0"}}}`)
	f(byNodes, "make a node not ready", "PATCH-STRATEGIC "+nodePath+"/status", `{"status":{"conditions":[{"type":"Ready","status":"False"}]}}`)
	f(byNodes, "add another condition", "PATCH-STRATEGIC "+nodePath+"/status", `{"status":{"conditions":[{"type":"Mine","status":"True"}]}}`)
	f(byNodes, "take all conditions away", "PATCH "+nodePath+"/status", `{"status":{"conditions":[{"type":"GPUHealthy","status":"True"}]}}`)
	f(byNodes, "label a node by its status", "PATCH "+nodePath+"/status", `{"metadata":{"labels":{"x":"y"}}}`)
	f(byNodes, "annotate a node by its status", "PATCH "+nodePath+"/status", `{"metadata":{"annotations":{"x":"y"}}}`)

	f(byNodes, "label a node", "PATCH "+nodePath, `{"metadata":{"labels":{"x":"y"}}}`)
	f(byNodes, "take a label away beside ours", "PATCH "+nodePath, `{"metadata":{"labels":{"gpupilot.dev/gpu":"true","nvidia.com/gpu.present":null}}}`)
	f(byNodes, "give our label another value", "PATCH "+nodePath, `{"metadata":{"labels":{"gpupilot.dev/gpu":"yes"}}}`)
	f(byNodes, "annotate a node", "PATCH "+nodePath, `{"metadata":{"annotations":{"x":"y"}}}`)
	f(byNodes, "taint a node", "PATCH "+nodePath, `{"spec":{"taints":[{"key":"x","effect":"NoExecute"}]}}`)
	f(byNodes, "cordon a node", "PATCH "+nodePath, `{"spec":{"unschedulable":true}}`)
	f(byRBAC, "delete a node", "DELETE "+nodePath, "")
	f(byRBAC, "create a node", "POST /api/v1/nodes", `{"metadata":{"name":"x"}}`)
	f(byRBAC, "proxy to the kubelet", "GET "+nodePath+"/proxy/pods", "")
}

func mayNotWorkloads(t *testing.T, a *account) {
	f := func(by, what, request, body string) { t.Helper(); a.refused(t, by, what, request, body) }
	f(byRBAC, "change a template", "PATCH "+workload, `{"spec":{"template":{"metadata":{"labels":{"x":"y"}}}}}`)
	f(byRBAC, "change replicas beside the scale", "PATCH "+workload, `{"spec":{"replicas":0}}`)
	f(byRBAC, "patch a scale", "PATCH "+workload+"/scale", `{"spec":{"replicas":0}}`)
	f(byRBAC, "delete a workload", "DELETE "+workload, "")
	f(byRBAC, "create a workload", "POST /apis/apps/v1/namespaces/llm/deployments", `{"metadata":{"name":"x"}}`)
	f(byRBAC, "create a Job", "POST /apis/batch/v1/namespaces/llm/jobs", `{"metadata":{"name":"x"}}`)
	f(byRBAC, "change an autoscaler", "PATCH "+autoscaler, `{"spec":{"maxReplicas":1000}}`)
	f(byRBAC, "delete an autoscaler", "DELETE "+autoscaler, "")
	f(byRBAC, "change an HPA", "PATCH /apis/autoscaling/v2/namespaces/llm/horizontalpodautoscalers/x", `{}`)
	scale := func(ns string) string {
		return fmt.Sprintf(`{"apiVersion":"autoscaling/v1","kind":"Scale","metadata":{"name":"dns","namespace":%q},"spec":{"replicas":3}}`, ns)
	}
	f(byScale, "scale the cluster's own", "PUT /apis/apps/v1/namespaces/kube-system/deployments/dns/scale", scale("kube-system"))

	// The status subresource keeps the rest, whatever is sent with it.
	if _, err := a.call(t.Context(), "PATCH "+autoscaler+"/status", `{"metadata":{"labels":{"x":"y"}},"spec":{"maxReplicas":1000}}`); err != nil {
		t.Error(err)
	}
	var is v1alpha1.GPUAutoscaler
	if err := rig.Client.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: a.vars.Replace("$NAME")}, &is); err != nil {
		t.Fatal(err)
	}
	if is.Spec.MaxReplicas != 12 || len(is.Labels) != 0 {
		t.Errorf("through the status the spec became %+v, the labels %v", is.Spec, is.Labels)
	}
}

func mayNotRights(t *testing.T, a *account) {
	f := func(what, request, body string, headers ...string) {
		t.Helper()
		a.refused(t, byRBAC, what, request, body, headers...)
	}
	f("list Secrets", "GET /api/v1/secrets", "")
	f("list a tenant's Secrets", "GET /api/v1/namespaces/llm/secrets", "")
	f("list the Secrets beside its own", "GET "+ourSecrets, "")
	f("read another Secret", "GET "+ourSecrets+"/another", "")
	f("read a tenant's Secret", "GET /api/v1/namespaces/llm/secrets/x", "")
	f("read ConfigMaps", "GET /api/v1/namespaces/llm/configmaps", "")
	f("delete its Secret", "DELETE "+ourSecrets+"/gpupilot-controller-tls", "")
	f("make a token", "POST /api/v1/namespaces/kube-system/serviceaccounts/namespace-controller/token", `{"spec":{}}`)
	f("make a token of its own", "POST /api/v1/namespaces/gpupilot-system/serviceaccounts/gpupilot-controller/token", `{"spec":{}}`)
	a.refused(t, byExporters, "create an account", "POST /api/v1/namespaces/gpupilot-system/serviceaccounts", `{"metadata":{"name":"x"}}`)
	f("impersonate a user", "GET "+podPath, "", "Impersonate-User", "kubernetes-admin")
	f("impersonate a group", "GET "+podPath, "", "Impersonate-User", "x", "Impersonate-Group", "system:masters")
	f("bind a role", "POST "+rbacPath+"/clusterrolebindings", `{"metadata":{"name":"x"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"cluster-admin"},"subjects":[]}`)
	f("bind a role in its namespace", "POST "+rbacPath+"/namespaces/gpupilot-system/rolebindings", `{"metadata":{"name":"x"}}`)
	f("widen its role", "PATCH "+rbacPath+"/clusterroles/gpupilot-controller", `{"rules":[{"apiGroups":["*"],"resources":["*"],"verbs":["*"]}]}`)
	f("create a role", "POST "+rbacPath+"/clusterroles", `{"metadata":{"name":"x"}}`)
	f("read roles", "GET "+rbacPath+"/clusterroles", "")
	f("approve a certificate", "PUT /apis/certificates.k8s.io/v1/certificatesigningrequests/x/approval", `{"metadata":{"name":"x"}}`)
	f("ask for a certificate", "POST /apis/certificates.k8s.io/v1/certificatesigningrequests", `{"metadata":{"name":"x"}}`)
	const admission = "/apis/admissionregistration.k8s.io/v1"
	f("delete a policy", "DELETE "+admission+"/validatingadmissionpolicies/"+byPods, "")
	f("delete a policy's binding", "DELETE "+admission+"/validatingadmissionpolicybindings/"+byPods, "")
	f("change a policy", "PATCH "+admission+"/validatingadmissionpolicies/"+byPods, `{"spec":{"failurePolicy":"Ignore"}}`)
	f("create a webhook", "POST "+admission+"/mutatingwebhookconfigurations", `{"metadata":{"name":"x"}}`)
	f("change a CRD", "PATCH /apis/apiextensions.k8s.io/v1/customresourcedefinitions/gpuautoscalers.gpupilot.dev", `{}`)
	f("create a namespace", "POST /api/v1/namespaces", `{"metadata":{"name":"x"}}`)
	f("delete a namespace", "DELETE /api/v1/namespaces/llm", "")
	a.refused(t, byExporters, "change a Service", "PATCH /api/v1/namespaces/gpupilot-system/services/gpupilot-controller", `{"spec":{"externalName":"x"}}`)
}

func mayNotOwn(t *testing.T, a *account) {
	f := func(by, what, request, body string) { t.Helper(); a.refused(t, by, what, request, body) }
	f(byOwn, "create another Secret", "POST "+ourSecrets, `{"metadata":{"name":"x"},"type":"kubernetes.io/tls","data":{"tls.crt":"","tls.key":""}}`)
	f(byOwn, "create a Secret of a generated name", "POST "+ourSecrets, `{"metadata":{"generateName":"gpupilot-controller-tls"}}`)
	f(byOwn, "create a Secret that gets an account's token", "POST "+ourSecrets,
		`{"metadata":{"name":"gpupilot-controller-tls","annotations":{"kubernetes.io/service-account.name":"default"}},"type":"kubernetes.io/service-account-token"}`)
	own := ourSecrets + "/gpupilot-controller-tls"
	held := func(change func(map[string]any)) string {
		t.Helper()
		answer, err := a.call(t.Context(), "GET "+own, "")
		var o map[string]any
		if err != nil || json.Unmarshal(answer, &o) != nil {
			t.Fatal(err)
		}
		change(o)
		body, err := json.Marshal(o)
		if err != nil {
			t.Fatal(err)
		}
		return string(body)
	}
	in := func(o map[string]any, field, key string, value any) {
		m, _ := o[field].(map[string]any)
		if m == nil {
			m = map[string]any{}
		}
		m[key], o[field] = value, m
	}
	f(byOwn, "add a file to its Secret", "PUT "+own, held(func(o map[string]any) { in(o, "data", "evil.so", "eA==") }))
	f(byOwn, "annotate its Secret", "PUT "+own, held(func(o map[string]any) { in(o, "metadata", "annotations", map[string]string{"x": "y"}) }))
	f(byOwn, "label its Secret", "PUT "+own, held(func(o map[string]any) { in(o, "metadata", "labels", map[string]string{"x": "y"}) }))
	f(byOwn, "keep its Secret for ever", "PUT "+own, held(func(o map[string]any) { in(o, "metadata", "finalizers", []string{"example.com/hold"}) }))
	f(byOwn, "make its Secret immutable", "PUT "+own, held(func(o map[string]any) { o["immutable"] = true }))
	f(byRBAC, "create a Secret elsewhere", "POST /api/v1/namespaces/llm/secrets", `{"metadata":{"name":"gpupilot-controller-tls"}}`)

	f(byOwn, "create another lease", "POST "+ourLeases, `{"metadata":{"name":"x"}}`)
	f(byRBAC, "create a lease elsewhere", "POST /apis/coordination.k8s.io/v1/namespaces/kube-system/leases", `{"metadata":{"name":"gpupilot-controller"}}`)
	f(byRBAC, "take another lease", "PATCH /apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/$NODE", `{"spec":{"holderIdentity":"x"}}`)
	f(byRBAC, "delete its lease", "DELETE "+ourLeases+"/gpupilot-controller", "")

	api := func(name, group, service string) string {
		return fmt.Sprintf(`{"metadata":{"name":%q},"spec":{"group":%q,"version":"v1beta1","groupPriorityMinimum":100,"versionPriority":100,
			"service":{"namespace":"gpupilot-system","name":%q},"insecureSkipTLSVerify":false,"caBundle":"eA=="}}`, name, group, service)
	}
	f(byOwn, "serve another API", "POST "+apis, api("v1beta1.metrics.k8s.io", "metrics.k8s.io", "gpupilot-controller"))
	f(byOwn, "serve its API by another Service", "POST "+apis, api("v1beta1.custom.metrics.k8s.io", "custom.metrics.k8s.io", "another"))
	own = apis + "/v1beta1.custom.metrics.k8s.io"
	f(byOwn, "move its API to another Service", "PATCH "+own, `{"spec":{"service":{"name":"another"}}}`)
	f(byOwn, "move its API to another namespace", "PATCH "+own, `{"spec":{"service":{"namespace":"llm"}}}`)
	f(byOwn, "serve its API without TLS", "PATCH "+own, `{"spec":{"caBundle":null,"insecureSkipTLSVerify":true}}`)
	f(byOwn, "label its API", "PATCH "+own, `{"metadata":{"labels":{"kube-aggregator.kubernetes.io/automanaged":"onstart"}}}`)
	f(byOwn, "move its API to another port", "PATCH "+own, `{"spec":{"service":{"port":9443}}}`)
	f(byOwn, "change its API's priority", "PATCH "+own, `{"spec":{"groupPriorityMinimum":20000}}`)
	owned := func(kind, name string) string {
		return strings.Replace(api("v1beta1.external.metrics.k8s.io", "external.metrics.k8s.io", "gpupilot-controller"), `"metadata":{`,
			`"metadata":{"ownerReferences":[{"apiVersion":"rbac.authorization.k8s.io/v1","kind":"`+kind+`","name":"`+name+`","uid":"u"}],`, 1)
	}
	f(byOwn, "give its API another owner", "POST "+apis, owned("ClusterRole", "cluster-admin"))
	f(byRBAC, "change another API", "PATCH "+apis+"/v1.apps", `{"spec":{"groupPriorityMinimum":1}}`)
	f(byRBAC, "delete its API", "DELETE "+own, "")

	event := func(controller string) string {
		return fmt.Sprintf(`{"metadata":{"name":"x"},"eventTime":%q,"reportingController":%q,"reportingInstance":"x","action":"x","reason":"x","type":"Normal"}`,
			time.Now().UTC().Format(metav1.RFC3339Micro), controller)
	}
	f(byEvents, "create an Event as another controller", "POST /apis/events.k8s.io/v1/namespaces/default/events", event("kubelet"))
	f(byRBAC, "create an Event of core/v1", "POST /api/v1/namespaces/default/events", `{"metadata":{"name":"x"}}`)
	f(byRBAC, "delete events", "DELETE /apis/events.k8s.io/v1/namespaces/default/events", "")
}

// What the agent's account must not do. It only reads pods and ResourceSlices.
func TestAgentsAccountMayNot(t *testing.T) {
	a := newAccount(t, stack.AgentAccount, subjects(t, "rights-agent")...)
	for what, request := range map[string]string{
		"read Secrets": "GET /api/v1/secrets", "read nodes": "GET /api/v1/nodes", "change a pod": "PATCH " + podPath, "delete a pod": "DELETE " + podPath,
		"run a command in a pod": "POST " + podPath + "/exec?command=id", "read a pod's log": "GET " + podPath + "/log",
		"change a node's status": "PATCH " + nodePath + "/status", "scale": "PUT " + workload + "/scale", "read autoscalers": "GET " + autoscaler,
		"create a lease": "POST " + ourLeases, "create an event": "POST /apis/events.k8s.io/v1/namespaces/default/events",
		"read ConfigMaps": "GET /api/v1/namespaces/gpupilot-system/configmaps",
		"make a token":    "POST /api/v1/namespaces/gpupilot-system/serviceaccounts/gpupilot-controller/token",
	} {
		a.refused(t, byRBAC, what, request, "{}")
	}
	for _, request := range []string{
		"GET /api/v1/pods?fieldSelector=spec.nodeName%3D$NODE", "GET /apis/resource.k8s.io/v1/resourceslices",
	} {
		if _, err := a.call(t.Context(), request, ""); err != nil {
			t.Errorf("%s: %v", request, err)
		}
	}
}

// What the controller's account must be able to do. The other tests show it through the controller.
func TestControllersAccountMay(t *testing.T) {
	a := newAccount(t, stack.ControllerAccount, subjects(t, "rights-granted")...)
	f := func(request, body string) []byte {
		t.Helper()
		out, err := a.call(t.Context(), request, body)
		if err != nil {
			t.Errorf("%s: %v", request, err)
		}
		return out
	}
	var watches sync.WaitGroup
	for _, path := range []string{
		"/api/v1/pods", "/api/v1/nodes", "/apis/apps/v1/deployments", "/apis/apps/v1/statefulsets",
		"/apis/autoscaling/v2/horizontalpodautoscalers", "/apis/gpupilot.dev/v1alpha1/gpuautoscalers",
		"/apis/resource.k8s.io/v1/resourceclaims", "/apis/resource.k8s.io/v1/resourceclaimtemplates", "/apis/resource.k8s.io/v1/resourceslices",
	} {
		f("GET "+path, "")
		watches.Go(func() { f("GET "+path+"?watch=true&timeoutSeconds=1", "") })
	}
	watches.Wait()
	const cost = `{"metadata":{"annotations":{"controller.kubernetes.io/pod-deletion-cost":%s}}}`
	f("PATCH "+podPath, fmt.Sprintf(cost, `"-1073741824"`))
	f("PATCH "+podPath, fmt.Sprintf(cost, "null"))
	f("PATCH-STRATEGIC "+nodePath+"/status?dryRun=All", `{"status":{"conditions":[{"type":"GPUHealthy","status":"False","reason":"GPULost"}]}}`)
	f("PATCH "+autoscaler+"/status?dryRun=All", `{"status":{"currentReplicas":1}}`)
	f("PUT "+workload+"/scale?dryRun=All", string(f("GET "+workload+"/scale", "")))
	f("PUT "+ourSecrets+"/gpupilot-controller-tls?dryRun=All", string(f("GET "+ourSecrets+"/gpupilot-controller-tls", "")))
	f("PATCH "+apis+"/v1beta2.custom.metrics.k8s.io?dryRun=All", `{"spec":{"caBundle":"eA=="}}`)
	f("GET "+ourLeases+"/gpupilot-controller", "")
	f("POST /apis/authentication.k8s.io/v1/tokenreviews", `{"spec":{"token":"x"}}`)
	f("POST /apis/authorization.k8s.io/v1/subjectaccessreviews",
		`{"spec":{"user":"x","resourceAttributes":{"group":"gpupilot.dev","resource":"gpuautoscalers","verb":"get","namespace":"llm"}}}`)
}

// A cost that somebody else has set stays.
func TestAnotherCostStays(t *testing.T) {
	a := newAccount(t, stack.ControllerAccount, subjects(t, "rights-cost")...)
	const cost = `{"metadata":{"annotations":{"controller.kubernetes.io/pod-deletion-cost":%s}}}`
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: a.vars.Replace("$POD")}}
	if err := rig.Client.Patch(t.Context(), pod, client.RawPatch("application/merge-patch+json", fmt.Appendf(nil, cost, `"7"`))); err != nil {
		t.Fatal(err)
	}
	a.refused(t, byPods, "change another's cost", "PATCH "+podPath, fmt.Sprintf(cost, `"-1073741824"`))
	a.refused(t, byPods, "remove another's cost", "PATCH "+podPath, fmt.Sprintf(cost, "null"))
}

// The API server finds nothing to warn of in the policies.
func TestPoliciesHaveNoWarnings(t *testing.T) {
	for _, name := range []string{byPods, byNodes, byScale, byOwn, byEvents, byDaemonSets, byExporters} {
		stack.Eventually(t, func() error {
			var p admissionv1.ValidatingAdmissionPolicy
			if err := rig.Client.Get(t.Context(), client.ObjectKey{Name: name}, &p); err != nil {
				return err
			}
			if p.Status.ObservedGeneration != p.Generation || p.Status.TypeChecking == nil {
				return fmt.Errorf("policy %s is not checked yet", name)
			}
			if w := p.Status.TypeChecking.ExpressionWarnings; len(w) > 0 {
				return fmt.Errorf("policy %s: %+v", name, w)
			}
			return nil
		})
	}
}

// The pods that are to go are marked: the policies let the controller do its work.
func TestVictimsAreMarked(t *testing.T) {
	const name = "advise"
	rig.Offer(name, 0.1)
	rig.Deploy(t, name, 3, 0)
	ctx, cancel := context.WithTimeout(t.Context(), stack.Patience)
	defer cancel()
	w, err := rig.Client.Watch(ctx, &corev1.PodList{}, client.InNamespace(namespace), client.MatchingLabels{"app": name})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	rig.Autoscale(t, name, nil)
	marked := map[string]bool{}
	for e := range w.ResultChan() {
		if p, ok := e.Object.(*corev1.Pod); ok && p.Annotations[corev1.PodDeletionCost] == "-1073741824" {
			if marked[p.Name] = true; len(marked) == 2 {
				return
			}
		}
	}
	t.Errorf("marked pods: %v, want the two that go", marked)
}

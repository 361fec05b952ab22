// SPDX-License-Identifier: Apache-2.0

package policies

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/apiserver/pkg/admission"
	plugincel "k8s.io/apiserver/pkg/admission/plugin/cel"
	"k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/cel/environment"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// oldest is the oldest version of Kubernetes that the policies are for: they have what its language has.
var oldest = version.MajorMinor(1, 30)

// judge is a policy, compiled as the API server does it. An API server checks an object before it asks the policies; a
// judge can be asked about any object.
type judge struct {
	name      string
	validator validating.Validator
}

// newJudge compiles a policy of deploy/admission; values replace expressions of its variables.
func newJudge(t *testing.T, name string, values map[string]string) *judge {
	t.Helper()
	policies, _ := shipped(t)
	for _, p := range policies {
		if p.Name == name {
			return compile(t, p, values)
		}
	}
	t.Fatalf("no policy %s", name)
	return nil
}

func compile(t *testing.T, p *admissionv1.ValidatingAdmissionPolicy, values map[string]string) *judge {
	t.Helper()
	set, err := environment.MustBaseEnvSet(oldest).Extend(environment.StrictCostOpt)
	if err != nil {
		t.Fatal(err)
	}
	compiler, err := plugincel.NewCompositedCompiler(set)
	if err != nil {
		t.Fatal(err)
	}
	var variables []plugincel.NamedExpressionAccessor
	for _, v := range p.Spec.Variables {
		if value, ok := values[v.Name]; ok {
			v.Expression = value
		}
		variables = append(variables, &validating.Variable{Name: v.Name, Expression: v.Expression})
	}
	declared := plugincel.OptionalVariableDeclarations{HasAuthorizer: true}
	for i, v := range variables {
		result := compiler.CompileAndStoreVariable(v, declared, environment.NewExpressions)
		if result.Error != nil {
			t.Fatalf("policy %s: variable %s: %v", p.Name, p.Spec.Variables[i].Name, result.Error)
		}
	}
	var conditions []plugincel.ExpressionAccessor
	for _, v := range p.Spec.Validations {
		c := &validating.ValidationCondition{Expression: v.Expression, Message: v.Message, Reason: v.Reason}
		if result := compiler.CompileCELExpression(c, declared, environment.NewExpressions); result.Error != nil {
			t.Fatalf("policy %s: %s: %v", p.Name, v.Message, result.Error)
		}
		conditions = append(conditions, c)
	}
	none := compiler.CompileCondition(nil, declared, environment.NewExpressions)
	return &judge{p.Name, validating.NewValidator(compiler.CompileCondition(conditions, declared, environment.NewExpressions), nil, none, none, p.Spec.FailurePolicy, nil)}
}

// refuses returns why a write is refused; empty: it is not. before is nil for a creation. Both ways in which API servers
// show objects to policies must give the same answer.
func (j *judge) refuses(t *testing.T, resource string, object, before client.Object) string {
	t.Helper()
	gvk := object.GetObjectKind().GroupVersionKind()
	gvr := gvk.GroupVersion().WithResource(resource)
	operation := admission.Create
	var old runtime.Object
	if before != nil {
		operation, old = admission.Update, before
	}
	name, subresource, _ := strings.Cut(resource, "/")
	gvr.Resource = name
	ask := func(object, old runtime.Object) string {
		record := admission.NewAttributesRecord(object, old, gvk, object.(client.Object).GetNamespace(), object.(client.Object).GetName(), gvr, subresource, operation, nil, false, &user.DefaultInfo{}) //nolint:forcetypeassert // all are
		attributes := &admission.VersionedAttributes{Attributes: record, VersionedKind: gvk}
		attributes.VersionedObject.Set(object)
		if old != nil {
			attributes.VersionedOldObject.Set(old)
		}
		var why []string
		for _, d := range j.validator.Validate(t.Context(), gvr, attributes, nil, &corev1.Namespace{}, celconfig.RuntimeCELCostBudget, nil).Decisions {
			if d.Action == validating.ActionDeny {
				why = append(why, d.Message)
			}
		}
		slices.Sort(why)
		return strings.Join(why, "; ")
	}
	typed := ask(object, old)
	if old != nil {
		old = unstructuredOf(t, old)
	}
	if maps := ask(unstructuredOf(t, object), old); maps != typed {
		t.Errorf("policy %s: as maps refused by %q, as structs by %q", j.name, maps, typed)
	}
	return typed
}

func unstructuredOf(t *testing.T, o runtime.Object) *unstructured.Unstructured {
	t.Helper()
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
	if err != nil {
		t.Fatal(err)
	}
	return &unstructured.Unstructured{Object: fields}
}

const (
	daemonSetPolicy = "gpupilot-controller-daemonsets"
	objectPolicy    = "gpupilot-controller-exporter-objects"
)

// rendered are the objects that the reconciler makes of a GPUExporter that sets every field, and of others.
const rendered = "../../internal/autoscaler/gpuexporter/testdata/"

// everything are the values of the policies' variables that a cluster with that GPUExporter needs.
var everything = map[string]string{
	"images":      "['registry.example/agent', 'ghcr.io/gpupilot/gpupilot-agent']",
	"hostPaths":   "['/run/nvidia/driver', '/data/kubelet/pod-resources', '/var/lib/kubelet/pod-resources']",
	"secrets":     "['web']",
	"podMetadata": "['team', 'example.com/a']",
	"env":         "['GODEBUG']",
	"privileged":  "true",
}

// resourceOf is the resource of a kind.
func resourceOf(o client.Object) string {
	return strings.ToLower(o.GetObjectKind().GroupVersionKind().Kind) + "s"
}

// What the reconciler renders passes, as a new object and as the one that is there, and with the fields that others add.
func TestRenderedObjectsPass(t *testing.T) {
	variables := maps.Clone(everything)
	variables["tokenFiles"] = "['/var/run/secrets/kubernetes.io/serviceaccount/token']"
	judges := []*judge{newJudge(t, daemonSetPolicy, variables), newJudge(t, objectPolicy, variables)}
	for _, golden := range []string{"defaults", "everything", "elsewhere", "tokens"} {
		for _, o := range objects(t, rendered+golden+".yaml") {
			object, ok := o.(client.Object)
			if !ok {
				t.Fatalf("%T", o)
			}
			j := judges[1]
			if resourceOf(object) == "daemonsets" {
				j = judges[0]
			}
			for _, before := range []client.Object{nil, object} {
				if why := j.refuses(t, resourceOf(object), object, before); why != "" {
					t.Errorf("%s: %s %s is refused: %s", golden, resourceOf(object), object.GetName(), why)
				}
			}
		}
	}
}

// mustStay are the fields that may not be removed. Of the others, the API server sets the default, which is the shape's,
// or the object is of no use without them.
var mustStay = []string{
	"metadata.ownerReferences", "metadata.ownerReferences[].controller", "spec.template.spec.containers[].securityContext",
	"spec.template.spec.containers[].securityContext.allowPrivilegeEscalation", "spec.template.spec.containers[].securityContext.capabilities",
	"spec.template.spec.containers[].securityContext.capabilities.drop", "spec.template.spec.containers[].securityContext.readOnlyRootFilesystem",
	"spec.template.spec.containers[].securityContext.runAsUser", "spec.template.spec.containers[].securityContext.seccompProfile",
}

// Every field, found by reflection, is refused unless it is on the list, and every entry of the lists is needed.
func TestFieldsThatTheAccountMayChoose(t *testing.T) {
	unused := slices.Concat(MayChoose, mustStay)
	may := func(change string) bool {
		entry := Chosen(change)
		path, removed := strings.CutSuffix(change, " removed")
		if removed {
			entry = path
		}
		unused = slices.DeleteFunc(unused, func(e string) bool { return e == entry })
		return removed && !slices.Contains(mustStay, path) || !removed && entry != ""
	}
	judges := []*judge{newJudge(t, daemonSetPolicy, everything), newJudge(t, objectPolicy, everything)}
	tried, refused := 0, 0
	for _, o := range objects(t, rendered+"everything.yaml") {
		object, ok := o.(client.Object)
		if !ok {
			t.Fatalf("%T", o)
		}
		j := judges[1]
		if resourceOf(object) == "daemonsets" {
			j = judges[0]
		}
		change := func(change string) {
			tried++
			why := j.refuses(t, resourceOf(object), object, nil)
			if why != "" {
				refused++
			}
			if !may(change) && why == "" {
				t.Errorf("%s %s: %s is allowed", resourceOf(object), object.GetName(), change)
			}
		}
		if u, ok := object.(*unstructured.Unstructured); ok {
			changeMaps(u.Object["spec"], "spec", change)
			continue
		}
		Changes(object, change)
	}
	t.Logf("%d changes, %d refused", tried, refused)
	if len(unused) > 0 {
		t.Errorf("these fields are on a list, and were not changed: %q", unused)
	}
}

// changeMaps is Changes for an object without Go types: it adds an unknown field to each map, and changes each value.
func changeMaps(v any, path string, f func(change string)) {
	switch v := v.(type) {
	case map[string]any:
		v["unknown"] = "x"
		f(path + ".unknown")
		delete(v, "unknown")
		for key, was := range v {
			switch was.(type) {
			case map[string]any, []any:
				changeMaps(was, path+"."+key, f)
			default:
				v[key] = fmt.Sprint(was, "x")
				f(path + "." + key)
				v[key] = was
			}
		}
	case []any:
		for _, x := range v {
			changeMaps(x, path+"[]", f)
		}
	}
}

// What a monitor must not make Prometheus do, besides what no rule names.
func TestMonitorsOfTheAccount(t *testing.T) {
	j := newJudge(t, objectPolicy, everything)
	for _, o := range objects(t, rendered+"everything.yaml") {
		u, ok := o.(*unstructured.Unstructured)
		if !ok || u.GetKind() != "ServiceMonitor" {
			continue
		}
		f := func(allowed bool, endpoint string) {
			t.Helper()
			monitor := u.DeepCopy()
			var fields map[string]any
			if err := yaml.Unmarshal([]byte(endpoint), &fields); err != nil {
				t.Fatal(err)
			}
			fields["port"] = "metrics"
			monitor.Object["spec"].(map[string]any)["endpoints"] = []any{fields} //nolint:forcetypeassert // ours
			if why := j.refuses(t, "servicemonitors", monitor, nil); (why == "") != allowed {
				t.Errorf("%s: refused by %q, want allowed %v", endpoint, why, allowed)
			}
		}
		f(true, `{relabelings: [{sourceLabels: [__meta_kubernetes_pod_node_name], targetLabel: node}]}`)
		f(true, `{relabelings: [{action: LabelDrop, regex: pod}]}`)
		f(true, `{scheme: https, tlsConfig: {serverName: x, ca: {secret: {name: web, key: ca.crt}}, keySecret: {name: web, key: k}}}`)
		f(true, `{basicAuth: {username: {name: web, key: u}, password: {name: web, key: p}}, authorization: {type: Bearer, credentials: {name: web, key: t}}}`)
		f(false, `{bearerTokenFile: /var/run/secrets/kubernetes.io/serviceaccount/token}`)
		f(false, `{bearerTokenSecret: {name: web, key: t}}`)
		f(false, `{oauth2: {}}`)
		f(false, `{proxyUrl: "http://192.0.2.1"}`)
		f(false, `{path: /federate}`)
		f(false, `{params: {a: [b]}}`)
		f(false, `{targetPort: 6443}`)
		f(false, `{followRedirects: true}`)
		f(false, `{basicAuth: {username: {name: grafana, key: u}}}`)
		f(false, `{authorization: {credentials: {name: grafana, key: t}}}`)
		f(false, `{authorization: {credentialsFile: /var/run/secrets/kubernetes.io/serviceaccount/token}}`)
		f(false, `{tlsConfig: {caFile: /etc/x}}`)
		f(false, `{tlsConfig: {certFile: /etc/x, keyFile: /etc/y}}`)
		f(false, `{tlsConfig: {ca: {secret: {name: grafana, key: ca.crt}}}}`)
		f(false, `{relabelings: [{targetLabel: __address__, replacement: "192.0.2.1:80"}]}`)
		f(false, `{relabelings: [{sourceLabels: [a], regex: (.*), targetLabel: "${1}", replacement: x}]}`)
		f(false, `{relabelings: [{action: labelmap, regex: (.*), replacement: __address__}]}`)
		f(false, `{relabelings: [{action: LabelMap, regex: (.*), replacement: __address__}]}`)
	}
}

// Of an object of others, the account may change one thing, and nothing else in any version of Kubernetes.
func TestFieldsOfOthersStay(t *testing.T) {
	ready := corev1.NodeCondition{Type: corev1.NodeReady, Status: corev1.ConditionTrue}
	meta := metav1.ObjectMeta{Name: "x", Namespace: "llm", UID: "1", Labels: map[string]string{"a": "b"}, Annotations: map[string]string{"c": "d"}}
	pod := &corev1.Pod{ObjectMeta: meta, Spec: corev1.PodSpec{NodeName: "n", Containers: []corev1.Container{{Name: "c", Image: "i"}}}}
	node := &corev1.Node{ObjectMeta: meta, Spec: corev1.NodeSpec{ProviderID: "p"}, Status: corev1.NodeStatus{Phase: corev1.NodeRunning, Conditions: []corev1.NodeCondition{ready}}}
	f := func(policy, subresource string, object client.Object, may func(path string) bool) {
		t.Helper()
		j := newJudge(t, policy, nil)
		object.GetObjectKind().SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind(reflect.TypeOf(object).Elem().Name()))
		before, ok := object.DeepCopyObject().(client.Object)
		if !ok {
			t.Fatal(object)
		}
		if why := j.refuses(t, resourceOf(object)+subresource, object, before); why != "" {
			t.Errorf("%s: no change is refused: %s", policy, why)
		}
		n := 0
		Changes(object, func(change string) {
			n++
			if j.refuses(t, resourceOf(object)+subresource, object, before) == "" && !may(change) {
				t.Errorf("policy %s: %s of %s%s is allowed", policy, change, resourceOf(object), subresource)
			}
		})
		t.Logf("%s%s: %d changes", resourceOf(object), subresource, n)
	}
	f("gpupilot-controller-pods", "", pod, func(string) bool { return false })
	f("gpupilot-controller-nodes", "", node, func(string) bool { return false })
	f("gpupilot-controller-nodes", "/status", node, func(string) bool { return false })
}

// The controller's own objects pass, and no other field of them.
func TestFieldsOfItsOwn(t *testing.T) {
	f := func(policy, gvk string, object, before client.Object, may ...string) {
		t.Helper()
		j := newJudge(t, policy, nil)
		version, kind, _ := strings.Cut(gvk, " ")
		object.GetObjectKind().SetGroupVersionKind(schema.FromAPIVersionAndKind(version, kind))
		if why := j.refuses(t, resourceOf(object), object, before); why != "" {
			t.Errorf("%s: refused: %s", kind, why)
		}
		Changes(object, func(change string) {
			if j.refuses(t, resourceOf(object), object, before) == "" && !strings.HasSuffix(change, " removed") &&
				change != "metadata.namespace" && !slices.ContainsFunc(may, func(m string) bool { return strings.HasPrefix(change, m) }) {
				t.Errorf("%s: %s is allowed", kind, change)
			}
		})
	}
	owners := []metav1.OwnerReference{{APIVersion: "v1", Kind: "Service", Name: "gpupilot-controller", UID: "1"}}
	meta := metav1.ObjectMeta{Namespace: namespace, Name: "gpupilot-controller-tls", Labels: map[string]string{"app.kubernetes.io/managed-by": "gpupilot-controller"}, OwnerReferences: owners}
	file := []byte("x")
	secret := &corev1.Secret{ObjectMeta: meta, Type: corev1.SecretTypeTLS, Data: map[string][]byte{"tls.crt": file, "tls.key": file, "ca.crt": file, "ca.key": file}}
	f("gpupilot-controller-own", "v1 Secret", secret, nil, "metadata.ownerReferences[].uid", "data.tls.", "data.ca.")
	f("gpupilot-controller-own", "v1 Secret", secret, secret.DeepCopy(), "metadata.ownerReferences[].uid", "data.tls.", "data.ca.")
	meta.Name = "gpupilot-controller"
	lease := &coordinationv1.Lease{ObjectMeta: meta}
	f("gpupilot-controller-own", "coordination.k8s.io/v1 Lease", lease, nil, "metadata.ownerReferences[].uid", "spec.")
	port := int32(443)
	api := &apiregistrationv1.APIService{ObjectMeta: metav1.ObjectMeta{Name: "v1beta1.custom.metrics.k8s.io"}, Spec: apiregistrationv1.APIServiceSpec{
		Group: "custom.metrics.k8s.io", Version: "v1beta1", CABundle: file, GroupPriorityMinimum: 100, VersionPriority: 100,
		Service: &apiregistrationv1.ServiceReference{Namespace: namespace, Name: "gpupilot-controller", Port: &port},
	}}
	// The API server accepts no other group and version for this name, and no other namespace than the request's.
	f("gpupilot-controller-own", "apiregistration.k8s.io/v1 APIService", api, nil, "status.", "spec.caBundle", "spec.group", "spec.version", "spec.service.port")
	f("gpupilot-controller-own", "apiregistration.k8s.io/v1 APIService", api, api.DeepCopy(), "status.", "spec.caBundle")
	event := &eventsv1.Event{ObjectMeta: metav1.ObjectMeta{Namespace: "llm", Name: "x"}, ReportingController: "gpupilot-controller"}
	f("gpupilot-controller-events", "events.k8s.io/v1 Event", event, nil, "metadata.name", "eventTime", "reportingInstance", "action", "reason", "regarding", "note", "type")
}

// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package chart

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	helmkube "helm.sh/helm/v4/pkg/kube"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	apiregistration "k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset/typed/apiregistration/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	sigsyaml "sigs.k8s.io/yaml"

	"github.com/gpupilot/gpupilot/internal/autoscaler/certificates"
	"github.com/gpupilot/gpupilot/internal/autoscaler/kube"
	"github.com/gpupilot/gpupilot/test/stack"
)

// What the API server and Helm create in a namespace, or in any cluster while the test runs.
var ofTheCluster = []string{"Namespace " + namespace, "ConfigMap " + namespace + "/kube-root-ca.crt", "ServiceAccount " + namespace + "/default"}

const wait = stack.Patience

// TestInstall installs, upgrades and uninstalls the chart in a real control plane, with a real controller as a process.
func TestInstall(t *testing.T) {
	var before inventory
	var h *helm
	s := startStack(t, func(ctx context.Context, s *stack.Stack) error {
		port, err := s.ServicePort()
		if err != nil {
			return err
		}
		if h, err = newHelm(s.Cluster.Kubeconfig(), &toLoopback{port: port}); err != nil {
			return err
		}
		err = stack.Await(ctx, wait, func() error {
			if before, err = takeInventory(ctx, s.REST); err != nil {
				return err
			}
			return before.settled()
		})
		if err != nil {
			return err
		}
		return h.install(ctx, nil)
	})
	ctx := t.Context()

	t.Run("objects", func(t *testing.T) { testObjects(t, s) })
	t.Run("API", func(t *testing.T) { stack.Eventually(t, func() error { return customMetrics(ctx, s) }) })
	t.Run("restricted", func(t *testing.T) { testRestricted(t, s) })
	t.Run("upgrade", func(t *testing.T) { testUpgrade(t, s, h) })
	t.Run("CRDs", func(t *testing.T) { testOlderCRD(t, s, h) })
	t.Run("dry run", func(t *testing.T) { testDryRun(t, s) })
	t.Run("tick during uninstall", func(t *testing.T) { testTick(t, s, h) })
	t.Run("uninstall", func(t *testing.T) { testUninstall(t, s, h, before) })
}

// Everything that the chart renders exists.
func testObjects(t *testing.T, s *stack.Stack) {
	for k, o := range mustRender(t, "") {
		have := &unstructured.Unstructured{}
		have.SetGroupVersionKind(o.GroupVersionKind())
		if err := s.Client.Get(t.Context(), client.ObjectKeyFromObject(o), have); err != nil {
			t.Errorf("%s: %v", k, err)
		}
	}
}

// customMetrics is kubectl get --raw.
func customMetrics(ctx context.Context, s *stack.Stack) error {
	clients, err := kubernetes.NewForConfig(s.REST)
	if err != nil {
		return err
	}
	_, err = clients.RESTClient().Get().AbsPath("/apis/custom.metrics.k8s.io/v1beta2").DoRaw(ctx)
	return err
}

// The controller's pods are admitted at the Pod Security level restricted.
func testRestricted(t *testing.T, s *stack.Stack) {
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "restricted", Labels: map[string]string{"pod-security.kubernetes.io/enforce": "restricted"}}}
	if err := s.Client.Create(t.Context(), ns); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := s.Client.Delete(t.Context(), ns); err != nil {
			t.Error(err)
		}
	}()
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: ns.Name, Name: "gpupilot-controller"}}
	if err := s.Client.Create(t.Context(), account); err != nil {
		t.Fatal(err)
	}
	pod := func() *unstructured.Unstructured {
		template := mustRender(t, "").get(t, "Deployment/gpupilot-controller", "spec|template|spec")
		return &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "v1", "kind": "Pod", "metadata": map[string]any{"name": "controller", "namespace": ns.Name}, "spec": template,
		}}
	}
	if err := s.Client.Create(t.Context(), pod(), client.DryRunAll); err != nil {
		t.Errorf("the level restricted refuses the controller: %v", err)
	}
	root := pod()
	if err := unstructured.SetNestedField(root.Object, false, "spec", "securityContext", "runAsNonRoot"); err != nil {
		t.Fatal(err)
	}
	if err := s.Client.Create(t.Context(), root, client.DryRunAll); !apierrors.IsForbidden(err) {
		t.Errorf("a pod with runAsNonRoot: false is admitted: the level is not enforced (%v)", err)
	}
}

// An upgrade changes what its values say, and nothing that the controller wrote.
func testUpgrade(t *testing.T, s *stack.Stack, h *helm) {
	bundle := func() string {
		o := get(t, s, "apiregistration.k8s.io/v1", "APIService", "", "v1beta2.custom.metrics.k8s.io")
		b, _, err := unstructured.NestedString(o.Object, "spec", "caBundle")
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	holder := func() string {
		o := get(t, s, "coordination.k8s.io/v1", "Lease", namespace, "gpupilot-controller")
		id, _, err := unstructured.NestedString(o.Object, "spec", "holderIdentity")
		if err != nil {
			t.Fatal(err)
		}
		return id
	}
	wantBundle, wantHolder := bundle(), holder()
	if wantBundle == "" || wantHolder == "" {
		t.Fatalf("caBundle %q, leader %q: neither may be empty", wantBundle, wantHolder)
	}
	if err := h.upgrade(t.Context(), values(t, "{replicaCount: 3, ports: {api: 10250}, gpuExporter: {spec: {interval: 2s}}}")); err != nil {
		t.Fatal(err)
	}
	deployment := get(t, s, "apps/v1", "Deployment", namespace, "gpupilot-controller")
	if n, _, _ := unstructured.NestedInt64(deployment.Object, "spec", "replicas"); n != 3 {
		t.Errorf("%d replicas after the upgrade, want 3", n)
	}
	ports := objects{"it": deployment}.get(t, "it", "spec|template|spec|containers|0|ports")
	if list, ok := ports.([]any); !ok || len(list) != 2 || fmt.Sprint(list[0]) != "map[containerPort:10250 name:https protocol:TCP]" {
		t.Errorf("the ports after the upgrade: %v, want 10250 and 8080", ports)
	}
	exporter := get(t, s, "gpupilot.dev/v1alpha1", "GPUExporter", "", "default")
	if interval, _, _ := unstructured.NestedString(exporter.Object, "spec", "interval"); interval != "2s" {
		t.Errorf("the exporter's interval is %q after the upgrade, want 2s", interval)
	}
	if got := bundle(); got != wantBundle {
		t.Errorf("the upgrade changed the caBundle")
	}
	stack.Eventually(t, func() error { return customMetrics(t.Context(), s) })
	if got := holder(); got != wantHolder {
		t.Errorf("the leader is %s, and was %s: the controller was disturbed", got, wantHolder)
	}
}

func get(t *testing.T, s *stack.Stack, apiVersion, kind, ns, name string) *unstructured.Unstructured {
	t.Helper()
	o := &unstructured.Unstructured{Object: map[string]any{"apiVersion": apiVersion, "kind": kind}}
	if err := s.Client.Get(t.Context(), client.ObjectKey{Namespace: ns, Name: name}, o); err != nil {
		t.Fatal(err)
	}
	return o
}

// Helm does not change CRDs, so an upgrade stops at an older one, until it is applied.
func testOlderCRD(t *testing.T, s *stack.Stack, h *helm) {
	ctx := t.Context()
	const name = "gpuexporters.gpupilot.dev"
	crd := get(t, s, "apiextensions.k8s.io/v1", "CustomResourceDefinition", "", name)
	versions, _, err := unstructured.NestedSlice(crd.Object, "spec", "versions")
	if err != nil {
		t.Fatal(err)
	}
	spec := []string{"schema", "openAPIV3Schema", "properties", "spec", "properties", "podLabels"}
	version, ok := versions[0].(map[string]any)
	if !ok {
		t.Fatalf("the CRD's first version is a %T", versions[0])
	}
	unstructured.RemoveNestedField(version, spec...)
	if err := unstructured.SetNestedSlice(crd.Object, versions, "spec", "versions"); err != nil {
		t.Fatal(err)
	}
	// The rules about the field go with it.
	unstructured.RemoveNestedField(version, "schema", "openAPIV3Schema", "properties", "spec", "x-kubernetes-validations")
	if err := unstructured.SetNestedSlice(crd.Object, versions, "spec", "versions"); err != nil {
		t.Fatal(err)
	}
	if err := s.Client.Update(ctx, crd); err != nil {
		t.Fatal(err)
	}
	err = h.upgrade(ctx, nil)
	if err == nil || !strings.Contains(err.Error(), "helm show crds") || !strings.Contains(err.Error(), name) {
		t.Fatalf("upgrade with an older CRD: %v, want an error that says how to apply it", err)
	}
	if err := h.upgrade(ctx, values(t, "crds: {check: false}")); err != nil {
		t.Errorf("upgrade without the check: %v", err)
	}
	chrt, err := loadChart()
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range chrt.CRDObjects() {
		crds, err := decode(file.File.Data)
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range crds { // kubectl apply --server-side --force-conflicts
			if err := s.Client.Apply(ctx, client.ApplyConfigurationFromUnstructured(o), client.FieldOwner("test"), client.ForceOwnership); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := h.upgrade(ctx, nil); err != nil {
		t.Errorf("upgrade with the chart's CRDs: %v", err)
	}
}

// The leader's minute tick, at any moment of an uninstallation, leaves no APIService: it may create one after Helm has
// deleted it, and before Helm deletes the Service. Argo CD deletes in another order.
func testTick(t *testing.T, s *stack.Stack, h *helm) {
	ctx := t.Context()
	config := rest.CopyConfig(s.REST)
	config.Impersonate = rest.ImpersonationConfig{
		UserName: "system:serviceaccount:" + namespace + ":gpupilot-controller",
		Groups:   []string{"system:serviceaccounts", "system:serviceaccounts:" + namespace, "system:authenticated"},
	}
	set, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	apis, err := apiregistration.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	const api, service = "APIService v1beta1.custom.metrics.k8s.io", "Service gpupilot-controller"
	const binding, role = "ClusterRoleBinding gpupilot-controller:apiservices", "ClusterRole gpupilot-controller:apiservices"
	objects := mustRender(t, "")
	for name, order := range map[string][]string{
		"Helm": {api, service, binding, role}, "roles first": {role, binding, api, service}, "API last": {service, role, binding, api},
	} {
		owner := kube.NewClusterRoleOwner(set.RbacV1().ClusterRoles(), certificates.OwnerRole)
		cfg := certificates.APIServiceConfig{
			APIs: certificates.CustomMetrics(), Namespace: namespace, Service: "gpupilot-controller", Port: 443,
			CreateIfMissing: true, Owner: owner, ServiceOwner: kube.NewServiceOwner(set.CoreV1().Services(namespace), "gpupilot-controller"),
		}
		for _, o := range []*kube.Owner{cfg.Owner, cfg.ServiceOwner} {
			stack.Eventually(t, func() error { // the API server knows a binding that was made again after a while
				refs, err := o.References(ctx)
				if err == nil && len(refs) != 1 {
					err = fmt.Errorf("%s: owners %v", name, refs)
				}
				return err
			})
		}
		again := 0
		for _, what := range order {
			o := objects[strings.Replace(what, " ", "/", 1)].DeepCopy()
			if err := s.Client.Delete(ctx, o); client.IgnoreNotFound(err) != nil {
				t.Fatal(err)
			}
			// Each of them ends with what the others have deleted: forbidden, uninstalled, or made again.
			err := certificates.EnsureAPIServices(ctx, apis.APIServices(), cfg)
			if what == api && err == nil {
				again++
			}
		}
		if name == "Helm" && again != 1 {
			t.Errorf("%s: the tick did not run in the gap", name)
		}
		stack.Eventually(t, func() error {
			o := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService"}}
			err := s.Client.Get(ctx, client.ObjectKey{Name: "v1beta1.custom.metrics.k8s.io"}, o)
			if err == nil {
				err = fmt.Errorf("%s: %s is there, owners %v", name, o.GetName(), o.GetOwnerReferences())
			}
			return client.IgnoreNotFound(err)
		})
		if err := certificates.EnsureAPIServices(ctx, apis.APIServices(), cfg); err == nil {
			t.Errorf("%s: the tick after the uninstallation has no error", name)
		}
		if err := h.upgrade(ctx, nil); err != nil { // makes them again
			t.Fatal(err)
		}
	}
}

// Nothing is left after the uninstallation and the deletion of the CRDs and of the namespace.
func testUninstall(t *testing.T, s *stack.Stack, h *helm, before inventory) {
	ctx := t.Context()
	if err := h.uninstall(); err != nil {
		t.Fatal(err)
	}
	crds := make([]string, len(crdNames))
	for i, name := range crdNames {
		crds[i] = "apiextensions.k8s.io/CustomResourceDefinition " + name
	}
	// The controller still runs, as its pods do in their grace period. It must not create anything again.
	stack.Eventually(t, func() error {
		return leftSince(ctx, s.REST, before, slices.Concat(ofTheCluster, crds, ofCRDs, ofOthers)...)
	})
	s.StopController()
	for _, identity := range crds {
		crd := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition"}}
		crd.SetName(identity[strings.LastIndex(identity, " ")+1:])
		if err := s.Client.Delete(ctx, crd); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Client.Delete(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}); err != nil {
		t.Fatal(err)
	}
	stack.Eventually(t, func() error { return leftSince(ctx, s.REST, before, ofOthers...) })
}

// crdNames are the CRDs of the chart, which docs/upgrade.md#uninstall deletes.
var crdNames = []string{"gpuautoscalers.gpupilot.dev", "gpuexporters.gpupilot.dev", "metricqueries.gpupilot.dev"}

// ofCRDs are the objects that the API server makes for our CRDs, and removes with them.
var ofCRDs = []string{"apiregistration.k8s.io/APIService v1alpha1.gpupilot.dev"}

// ofOthers are the CRDs that testDryRun installs.
var ofOthers = []string{
	"apiextensions.k8s.io/CustomResourceDefinition servicemonitors.monitoring.coreos.com",
	"apiextensions.k8s.io/CustomResourceDefinition prometheusrules.monitoring.coreos.com",
	"apiextensions.k8s.io/CustomResourceDefinition httproutes.gateway.networking.k8s.io",
	"apiregistration.k8s.io/APIService v1.monitoring.coreos.com", // the API server's, for the CRDs
	"apiregistration.k8s.io/APIService v1.gateway.networking.k8s.io",
	"apiregistration.k8s.io/APIService v1beta1.gateway.networking.k8s.io",
}

// The API server accepts every object that the chart renders with any of the values files, and every example, without
// an unknown field. This is stronger than a check of schemas: it includes CEL rules and the validation of built-in kinds.
func testDryRun(t *testing.T, s *stack.Stack) {
	ctx := t.Context()
	installOtherCRDs(t, s)
	for _, ns := range []string{"llm", "studio"} {
		if err := s.Client.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}}); err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := s.Client.Delete(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}}); err != nil {
				t.Error(err)
			}
		}()
	}
	accepted := 0
	for file, vals := range valuesFiles(t) {
		rendered, _, err := render(vals)
		if err != nil {
			t.Fatal(err)
		}
		for k, o := range rendered {
			if strings.HasPrefix(o.GetAPIVersion(), "cert-manager.io/") {
				continue // its CRDs are not in a Go module
			}
			if err := dryRun(ctx, s, o); err != nil {
				t.Errorf("%s: %s: %v", file, k, err)
			}
			accepted++
		}
	}
	examples, err := filepath.Glob(filepath.Join(root, "examples", "*.yaml"))
	if err != nil || len(examples) == 0 {
		t.Fatalf("%d examples, %v", len(examples), err)
	}
	for _, file := range examples {
		b := readFile(t, file)
		if !bytes.Contains(b, []byte("\nkind:")) {
			continue // a part of a configuration
		}
		objects, err := decode(b)
		if err != nil {
			t.Fatal(err)
		}
		for k, o := range objects {
			if o.GetNamespace() != "" {
				o.SetNamespace("llm") // one that exists
			}
			if err := dryRun(ctx, s, o); err != nil {
				t.Errorf("%s: %s: %v", file, k, err)
			}
			accepted++
		}
	}
	t.Logf("the API server accepted %d objects", accepted)
}

// dryRun is helm upgrade --dry-run=server, and validates strictly.
func dryRun(ctx context.Context, s *stack.Stack, o *unstructured.Unstructured) error {
	mapping, err := s.Client.RESTMapper().RESTMapping(o.GroupVersionKind().GroupKind(), o.GroupVersionKind().Version)
	if err != nil {
		return err
	}
	objects, err := dynamic.NewForConfig(s.REST)
	if err != nil {
		return err
	}
	if o.GetNamespace() == "" && mapping.Scope.Name() == meta.RESTScopeNameNamespace {
		o.SetNamespace(namespace)
	}
	text, err := o.MarshalJSON()
	if err != nil {
		return err
	}
	force := true
	_, err = objects.Resource(mapping.Resource).Namespace(o.GetNamespace()).Patch(ctx, o.GetName(), types.ApplyPatchType, text, metav1.PatchOptions{
		FieldManager: helmkube.ManagedFieldsManager, Force: &force, DryRun: []string{metav1.DryRunAll}, FieldValidation: metav1.FieldValidationStrict,
	})
	return err
}

// otherCRDs are those of kinds that the chart renders on request, by the module that has them.
var otherCRDs = map[string][]string{
	"github.com/prometheus-operator/prometheus-operator@v0.85.0": {
		"example/prometheus-operator-crd/monitoring.coreos.com_servicemonitors.yaml",
		"example/prometheus-operator-crd/monitoring.coreos.com_prometheusrules.yaml",
	},
	"sigs.k8s.io/gateway-api@v1.4.1": {"config/crd/standard/gateway.networking.k8s.io_httproutes.yaml"},
}

// installOtherCRDs installs them.
func installOtherCRDs(t *testing.T, s *stack.Stack) {
	t.Helper()
	for name, files := range otherCRDs {
		cmd := exec.CommandContext(t.Context(), "go", "mod", "download", "-json", name)
		cmd.Dir, cmd.Stderr = t.TempDir(), os.Stderr
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("download %s: %v", name, err)
		}
		var module struct{ Dir string }
		if err := json.Unmarshal(out, &module); err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			installCRD(t, s, readFile(t, module.Dir, file))
		}
	}
}

// installCRD installs a CRD, and waits until its kind is served.
func installCRD(t *testing.T, s *stack.Stack, text []byte) {
	t.Helper()
	var o unstructured.Unstructured
	if err := sigsyaml.Unmarshal(text, &o.Object); err != nil {
		t.Fatal(err)
	}
	if err := s.Client.Create(t.Context(), &o); err != nil {
		t.Fatal(err)
	}
	group, _, _ := unstructured.NestedString(o.Object, "spec", "group")
	kind, _, _ := unstructured.NestedString(o.Object, "spec", "names", "listKind")
	list := &unstructured.UnstructuredList{Object: map[string]any{"apiVersion": group + "/v1", "kind": kind}}
	stack.Eventually(t, func() error {
		if err := s.Client.List(t.Context(), list); err != nil {
			return fmt.Errorf("%s: %w", o.GetName(), err)
		}
		return nil
	})
}

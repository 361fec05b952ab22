// SPDX-License-Identifier: Apache-2.0

package policies

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/yaml"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
)

// The namespace and the user of the controller, as deploy/ has them.
const (
	namespace = "gpupilot-system"
	account   = "system:serviceaccount:" + namespace + ":gpupilot-controller"
)

// shipped are the objects of deploy/admission.
func shipped(t *testing.T) (policies []*admissionv1.ValidatingAdmissionPolicy, bindings []*admissionv1.ValidatingAdmissionPolicyBinding) {
	t.Helper()
	for _, o := range slices.Concat(objects(t, "../../deploy/admission/controller.yaml"), objects(t, "../../deploy/admission/exporter.yaml")) {
		switch o := o.(type) {
		case *admissionv1.ValidatingAdmissionPolicy:
			policies = append(policies, o)
		case *admissionv1.ValidatingAdmissionPolicyBinding:
			bindings = append(bindings, o)
		default:
			t.Errorf("%T: neither a policy nor a binding", o)
		}
	}
	return policies, bindings
}

// objects are those of a manifest.
func objects(t *testing.T, path string) (out []runtime.Object) {
	t.Helper()
	body, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for docs := yaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(body))); ; {
		doc, err := docs.Read()
		if errors.Is(err, io.EOF) {
			return out
		}
		if err != nil {
			t.Fatal(err)
		}
		o, _, err := clientgoscheme.Codecs.UniversalDeserializer().Decode(doc, nil, nil)
		if runtime.IsNotRegisteredError(err) {
			u := &unstructured.Unstructured{}
			o, err = u, yaml.Unmarshal(doc, &u.Object)
		}
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		out = append(out, o)
	}
}

// Every policy denies, fails closed, and judges the controller's account alone.
func TestPoliciesDenyTheControllerOnly(t *testing.T) {
	policies, bindings := shipped(t)
	if len(policies) == 0 || len(policies) != len(bindings) {
		t.Errorf("%d policies and %d bindings, want one binding for each policy", len(policies), len(bindings))
	}
	for _, b := range bindings {
		known := slices.ContainsFunc(policies, func(p *admissionv1.ValidatingAdmissionPolicy) bool { return p.Name == b.Spec.PolicyName })
		if !known || !slices.Equal(b.Spec.ValidationActions, []admissionv1.ValidationAction{admissionv1.Deny}) || b.Spec.ParamRef != nil || b.Spec.MatchResources != nil {
			t.Errorf("binding %s: %+v, want Deny for a policy of these files, everywhere", b.Name, b.Spec)
		}
	}
	only := "request.userInfo.username == '" + account + "'"
	for _, p := range policies {
		compile(t, p, nil)
		if p.Spec.FailurePolicy == nil || *p.Spec.FailurePolicy != admissionv1.Fail {
			t.Errorf("policy %s does not fail closed", p.Name)
		}
		if len(p.Spec.MatchConditions) != 1 || p.Spec.MatchConditions[0].Expression != only {
			t.Errorf("policy %s is for %+v, want %s", p.Name, p.Spec.MatchConditions, only)
		}
		// A missing parameter would refuse everybody's writes: it is looked up before the conditions.
		if p.Spec.ParamKind != nil {
			t.Errorf("policy %s has a paramKind", p.Name)
		}
		for _, v := range p.Spec.Validations {
			if v.Message == "" || v.Reason == nil || *v.Reason != metav1.StatusReasonForbidden {
				t.Errorf("policy %s: %q has the message %q and the reason %v", p.Name, v.Expression, v.Message, v.Reason)
			}
		}
	}
}

// grants are the rights of a manifest's roles that change something: verb, resource with its group, names.
func grants(t *testing.T, glob string) (out []string) {
	t.Helper()
	files, err := filepath.Glob(glob)
	if err != nil || len(files) == 0 {
		t.Fatalf("%s: %d files, %v", glob, len(files), err)
	}
	for _, file := range files {
		for _, o := range objects(t, file) {
			var rules []rbacv1.PolicyRule
			switch o := o.(type) {
			case *rbacv1.ClusterRole:
				rules = o.Rules
			case *rbacv1.Role:
				rules = o.Rules
			}
			for _, r := range rules {
				for _, verb := range r.Verbs {
					if slices.Contains([]string{"get", "list", "watch"}, verb) {
						continue
					}
					for _, resource := range r.Resources {
						out = append(out, strings.TrimSpace(fmt.Sprintf("%s %s.%s %s", verb, resource, r.APIGroups[0], strings.Join(r.ResourceNames, ","))))
					}
				}
			}
		}
	}
	slices.Sort(out)
	return out
}

// What the accounts may write, all of it. What a policy does not limit further says so.
func TestGrants(t *testing.T) {
	f := func(glob string, want ...string) {
		t.Helper()
		if diff := cmp.Diff(want, grants(t, glob)); diff != "" {
			t.Errorf("%s: rights to write (-want +got):\n%s", glob, diff)
		}
	}
	f("../../deploy/rbac/agent.yaml")
	f("../../deploy/rbac/controller.yaml",
		"create events.events.k8s.io",
		"create leases.coordination.k8s.io",
		"patch gpuautoscalers/status.gpupilot.dev", // the CRD keeps spec and metadata
		"patch metricqueries/status.gpupilot.dev",  // likewise
		"patch pods.",
		"patch pods/status.", // one condition of pods with our readiness gate, by a policy
		"update */scale.*",
		"update leases.coordination.k8s.io gpupilot-controller",
	)
	f("../../deploy/rbac/metrics-apiserver.yaml",
		"create apiservices.apiregistration.k8s.io",
		"create secrets.",
		"patch apiservices.apiregistration.k8s.io v1beta1.custom.metrics.k8s.io,v1beta2.custom.metrics.k8s.io",
		"update secrets. gpupilot-controller-tls",
	)
	f("../../deploy/rbac/exporter.yaml",
		"create configmaps.",
		"create daemonsets.apps",
		"create podmonitors.monitoring.coreos.com",
		"create prometheusrules.monitoring.coreos.com",
		"create serviceaccounts.",
		"create servicemonitors.monitoring.coreos.com",
		"create services.",
		"delete daemonsets.apps",
		"delete podmonitors.monitoring.coreos.com",
		"delete prometheusrules.monitoring.coreos.com",
		"delete servicemonitors.monitoring.coreos.com",
		"patch configmaps.",
		"patch daemonsets.apps",
		"patch gpuexporters/status.gpupilot.dev", // the CRD keeps spec and metadata
		"patch nodes.",
		"patch podmonitors.monitoring.coreos.com",
		"patch prometheusrules.monitoring.coreos.com",
		"patch serviceaccounts.",
		"patch servicemonitors.monitoring.coreos.com",
		"patch services.",
		"update gpuexporters/finalizers.gpupilot.dev", // no such subresource: OpenShift asks for the right
	)
	f("../../deploy/node-health/*.yaml", "patch nodes/status.")
	f("../../deploy/external-metrics/*.yaml",
		"create horizontalpodautoscalers.autoscaling", // those of GPUAutoscalers, by a policy
		"delete horizontalpodautoscalers.autoscaling", // likewise
		"patch apiservices.apiregistration.k8s.io v1beta1.external.metrics.k8s.io",
		"update horizontalpodautoscalers.autoscaling", // likewise
	)
}

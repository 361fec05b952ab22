// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

var trustChecks = []Check{
	{
		Code: "GP501", Group: Trust, Level: Warning, Title: "the page and /metrics require a token",
		Fix: "remove --page-auth=none: docs/access.md", run: checkPageAuth,
	},
	{
		Code: "GP502", Group: Trust, Level: Error, Title: "the API server reaches the controller's metrics APIs",
		Fix: "the condition says why: docs/access.md#certificates, docs/troubleshooting.md", run: checkAPIServices,
	},
	{
		Code: "GP503", Group: Trust, Level: Error, Title: "the admission policies are there and fail closed",
		Fix: "apply deploy/admission of this release, or upgrade the chart: docs/access.md#what-the-controller-may-write", run: checkAdmission,
	},
	{
		Code: "GP504", Group: Trust, Level: Warning, Title: "the controller has no rights beyond the shipped ones",
		Fix: "delete the binding: docs/access.md#what-the-controller-may-write", run: checkRBAC,
	},
	{
		Code: "GP505", Group: Trust, Level: Warning, Title: "certificates of the metrics APIs are valid for a week",
		Fix: "see the log of the controller, or of the program that keeps its Secret, such as cert-manager: docs/access.md#certificates", run: checkCertificates,
	},
}

// ours reports whether a metrics API is the controller's.
func (a *apiService) ours(f *Facts) bool {
	return a.Spec.Service != nil && a.Spec.Service.Name == controllerName && a.Spec.Service.Namespace == f.Namespace
}

// errNoPods is why a check of pods cannot pass: a controller that is no pod here was not looked at.
var errNoPods = errors.New("no pod of the controller is in the namespace: what runs elsewhere was not looked at")

func checkPageAuth(f *Facts) (out []Finding, err error) {
	looked := false
	for i := range f.Pods.Items {
		p := &f.Pods.Items[i]
		looked = looked || p.isController()
		for j := range p.Spec.Containers {
			if p.isController() && p.Spec.Containers[j].flag("page-auth") == "none" {
				out = append(out, Finding{"Pod " + p.name(), "it runs with --page-auth=none: everybody in the cluster sees all namespaces"})
			}
		}
	}
	if f.Pods.Err == nil && !looked {
		return nil, errNoPods
	}
	return out, f.Pods.Err
}

func checkAPIServices(f *Facts) (out []Finding, err error) {
	if f.isEnded() {
		return nil, errEnded
	}
	for i := range f.APIServices.Items {
		a := &f.APIServices.Items[i]
		if c := condition(a.Status.Conditions, "Available"); a.ours(f) && c != nil && c.Status != metav1.ConditionTrue {
			out = append(out, Finding{"APIService " + a.Metadata.Name, fmt.Sprintf("it is not available, %s: %s. HPAs get no metrics of it", c.Reason, c.Message)})
		}
	}
	return out, f.APIServices.Err
}

// policies are the admission policies that every installation has.
var policies = []string{
	"gpupilot-controller-pods", "gpupilot-controller-nodes", "gpupilot-controller-scale", "gpupilot-controller-own", "gpupilot-controller-events",
}

func checkAdmission(f *Facts) (out []Finding, err error) {
	if err := errors.Join(f.Policies.Err, f.Bindings.Err); err != nil {
		return nil, err
	}
	bound := map[string]bool{}
	for i := range f.Bindings.Items {
		bound[f.Bindings.Items[i].Name] = true
	}
	found := map[string]*admissionPolicy{}
	for i := range f.Policies.Items {
		found[f.Policies.Items[i].Metadata.Name] = &f.Policies.Items[i]
	}
	for _, name := range policies {
		object := "ValidatingAdmissionPolicy " + name
		switch p := found[name]; {
		case p == nil:
			out = append(out, Finding{object, "it does not exist: the controller's account may write more than it needs"})
		case p.Spec.FailurePolicy == "Ignore":
			out = append(out, Finding{object, "failurePolicy is Ignore: an error lets every write of the controller's account through"})
		case !bound[name]:
			out = append(out, Finding{object, "it has no binding, so it has no effect"})
		}
	}
	return out, nil
}

func checkRBAC(f *Facts) (out []Finding, err error) {
	rules := map[string][]policyRule{}
	for i := range f.Roles.Items {
		rules[f.Roles.Items[i].Metadata.Name] = f.Roles.Items[i].Rules
	}
	for i := range f.RoleBinding.Items {
		b := &f.RoleBinding.Items[i]
		for _, s := range b.Subjects {
			if s.Kind != "ServiceAccount" || s.Namespace != f.Namespace || s.Name != controllerName && s.Name != agentName {
				continue
			}
			for _, r := range rules[b.RoleRef.Name] {
				if slices.Contains(r.Verbs, "*") || slices.Contains(r.Resources, "*") && !readOnly(r.Verbs) || slices.Contains(r.Resources, "secrets") {
					out = append(out, Finding{
						"ClusterRoleBinding " + b.Metadata.Name,
						fmt.Sprintf("it gives %s the role %s, with the verbs %s for %s in all namespaces", s.Name, b.RoleRef.Name, strings.Join(r.Verbs, ","), strings.Join(r.Resources, ",")),
					})
					break
				}
			}
		}
	}
	return out, errors.Join(f.Roles.Err, f.RoleBinding.Err)
}

func readOnly(verbs []string) bool {
	for _, v := range verbs {
		if v != "get" && v != "list" && v != "watch" {
			return false
		}
	}
	return true
}

// soon is the rest of a certificate's validity that is noted.
const soon = 7 * 24 * time.Hour

func checkCertificates(f *Facts) (out []Finding, err error) {
	for i := range f.APIServices.Items {
		a := &f.APIServices.Items[i]
		if !a.ours(f) {
			continue
		}
		last, ok := lastExpiry(a.Spec.CABundle)
		if left := last.Sub(f.Now); ok && left < soon {
			out = append(out, Finding{"APIService " + a.Metadata.Name, fmt.Sprintf("the last authority of its caBundle is valid until %s", last.UTC().Format(time.RFC3339))})
		}
	}
	return out, f.APIServices.Err
}

// lastExpiry is the end of the last certificate of a bundle. ok is false without one.
func lastExpiry(bundle []byte) (last time.Time, ok bool) {
	for block, rest := pem.Decode(bundle); block != nil; block, rest = pem.Decode(rest) {
		if c, err := x509.ParseCertificate(block.Bytes); err == nil && c.NotAfter.After(last) {
			last, ok = c.NotAfter, true
		}
	}
	return last, ok
}

var capacityChecks = []Check{
	{
		Code: "GP601", Group: Capacity, Level: Error, Title: "the controller runs",
		Fix: "kubectl -n gpupilot-system describe pods -l app.kubernetes.io/component=controller", run: checkController,
	},
	{
		Code: "GP602", Group: Capacity, Level: Warning, Title: "no controller or agent ran out of memory",
		Fix: "raise its memory limit: docs/operate.md#size-it", run: checkMemory,
	},
	{
		Code: "GP603", Group: Capacity, Level: Error, Title: "a controller is the leader",
		Fix: "see the controllers' logs: without a leader nothing is scaled. docs/operate.md#run-two-replicas", run: checkLeader,
	},
}

// checkController passes if the controller answers, or has a ready pod.
func checkController(f *Facts) ([]Finding, error) {
	if len(f.View.Items) > 0 {
		return nil, nil
	}
	waiting := ""
	for i := range f.Pods.Items {
		if p := &f.Pods.Items[i]; p.isController() {
			if p.ready() {
				return nil, f.View.Err // it runs, and did not answer us
			}
			waiting = "the pod " + p.name() + " is not ready: " + p.waiting()
		}
	}
	if f.Pods.Err != nil {
		return nil, f.Pods.Err
	}
	if waiting == "" {
		waiting = "no pod of the controller exists in the namespace " + f.Namespace + ", and " + orMissing(f.View.Err, "it was not asked").Error()
	}
	return []Finding{{"controller", waiting}}, nil
}

func checkMemory(f *Facts) (out []Finding, err error) {
	looked := false
	for i := range f.Pods.Items {
		p := &f.Pods.Items[i]
		if !p.isController() && !p.isAgent() {
			continue
		}
		looked = true
		for j := range p.Status.ContainerStatuses {
			s := &p.Status.ContainerStatuses[j]
			for _, end := range []string{reasonOf(s.State.Terminated), reasonOf(s.LastTerminationState.Terminated)} {
				if end == "OOMKilled" {
					out = append(out, Finding{"Pod " + p.name(), fmt.Sprintf("the container %s was killed for its memory, %d restarts", s.Name, s.RestartCount)})
					break
				}
			}
		}
	}
	if f.Pods.Err == nil && !looked {
		return nil, errNoPods
	}
	return out, f.Pods.Err
}

// errEnded is why a check of what a controller does cannot run.
var errEnded = errors.New("no controller runs (GP601)")

// isEnded reports whether GP601 fails: what follows from it has no code of its own.
func (f *Facts) isEnded() bool {
	found, _ := checkController(f)
	return len(found) > 0
}

func checkLeader(f *Facts) ([]Finding, error) {
	if f.isEnded() {
		return nil, errEnded
	}
	if f.Leases.Err != nil {
		return nil, f.Leases.Err
	}
	object := "Lease " + f.Namespace + "/" + controllerName
	if len(f.Leases.Items) == 0 {
		return []Finding{{object, "it does not exist: no controller decides"}}, nil
	}
	l := &f.Leases.Items[0]
	if l.Spec.HolderIdentity == "" {
		return []Finding{{object, "it has no holder"}}, nil
	}
	if l.Spec.RenewTime == nil {
		return []Finding{{object, "it was never renewed"}}, nil
	}
	// A minute more than the lease lasts: this machine's clock may differ.
	if age := f.Now.Sub(l.Spec.RenewTime.Time); age > time.Duration(l.Spec.LeaseDurationSeconds)*time.Second+time.Minute {
		return []Finding{{object, fmt.Sprintf("%s renewed it last %s ago", l.Spec.HolderIdentity, age.Round(time.Second))}}, nil
	}
	return nil, nil
}

func reasonOf(t *corev1.ContainerStateTerminated) string {
	if t == nil {
		return ""
	}
	return t.Reason
}

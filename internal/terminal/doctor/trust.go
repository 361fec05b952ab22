// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"crypto/x509"
	"encoding/pem"
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
		Fix: "remove --page-auth=none: docs/access.md", at: []evidence{someOwn}, run: checkPageAuth,
	},
	{
		Code: "GP502", Group: Trust, Level: Error, Title: "the API server reaches the controller's metrics APIs",
		Fix: "the condition says why: docs/access.md#certificates, docs/troubleshooting.md", at: []evidence{metricsAPIs, running}, run: checkAPIServices,
	},
	{
		Code: "GP503", Group: Trust, Level: Error, Title: "the admission policies are there and fail closed",
		Fix: "apply deploy/admission of this release, or upgrade the chart: docs/access.md#what-the-controller-may-write", at: []evidence{admitted}, run: checkAdmission,
	},
	{
		Code: "GP504", Group: Trust, Level: Warning, Title: "the controller has no rights beyond the shipped ones",
		Fix: "delete the binding: docs/access.md#what-the-controller-may-write", at: []evidence{roles, bindings, own}, run: checkRBAC,
	},
	{
		Code: "GP505", Group: Trust, Level: Warning, Title: "certificates of the metrics APIs are valid for a week",
		Fix: "see the log of the controller, or of the program that keeps its Secret, such as cert-manager: docs/access.md#certificates", at: []evidence{certified}, run: checkCertificates,
	},
	{
		Code: "GP506", Group: Trust, Level: Error, Title: "the controller's account has the shipped rights",
		Fix: "apply deploy/rbac/controller.yaml of this release, or upgrade the chart: docs/access.md#what-the-controller-may-write", at: []evidence{needs, someOwn}, run: checkNeeds,
	},
}

// ours reports whether a metrics API is the controller's.
func (a *apiService) ours(f *Facts) bool {
	return a.Spec.Service != nil && a.Spec.Service.Name == controllerName && a.Spec.Service.Namespace == f.Namespace
}

func checkPageAuth(f *Facts) (out []Finding) {
	for i := range f.Pods.Items {
		p := &f.Pods.Items[i]
		for j := range p.Spec.Containers {
			if p.isController() && p.Spec.Containers[j].flag("page-auth") == "none" {
				out = append(out, Finding{"Pod " + p.name(), "it runs with --page-auth=none: everybody in the cluster sees all namespaces"})
			}
		}
	}
	return out
}

func checkAPIServices(f *Facts) (out []Finding) {
	if f.isEnded() {
		return nil // GP601
	}
	for i := range f.APIServices.Items {
		a := &f.APIServices.Items[i]
		if c := condition(a.Status.Conditions, "Available"); a.ours(f) && c != nil && c.Status != metav1.ConditionTrue {
			out = append(out, Finding{"APIService " + a.Metadata.Name, fmt.Sprintf("it is not available, %s: %s. HPAs get no metrics of it", c.Reason, c.Message)})
		}
	}
	return out
}

// policies are the admission policies that every installation has.
var policies = []string{
	"gpupilot-controller-pods", "gpupilot-controller-nodes", "gpupilot-controller-scale", "gpupilot-controller-own", "gpupilot-controller-events",
}

func checkAdmission(f *Facts) (out []Finding) {
	if f.Policies.Err != nil || f.Bindings.Err != nil {
		return nil
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
	return out
}

func checkRBAC(f *Facts) (out []Finding) {
	rules := map[string][]policyRule{}
	for i := range f.Roles.Items {
		rules[f.Roles.Items[i].Metadata.Name] = f.Roles.Items[i].Rules
	}
	for i := range f.RoleBinding.Items {
		b := &f.RoleBinding.Items[i]
		for _, s := range b.Subjects {
			account := f.accountOf(s.Kind, s.Namespace, s.Name)
			if account == "" {
				continue
			}
			for _, r := range rules[b.RoleRef.Name] {
				if slices.Contains(r.Verbs, "*") || slices.Contains(r.Resources, "*") && !readOnly(r.Verbs) || slices.Contains(r.Resources, "secrets") {
					out = append(out, Finding{
						"ClusterRoleBinding " + b.Metadata.Name,
						fmt.Sprintf("it gives %s the role %s, with the verbs %s for %s in all namespaces", account, b.RoleRef.Name, strings.Join(r.Verbs, ","), strings.Join(r.Resources, ",")),
					})
					break
				}
			}
		}
	}
	return out
}

// accountOf returns whom of ours a subject of a binding is: an account, or a group that all accounts are in; empty: nobody.
func (f *Facts) accountOf(kind, namespace, name string) string {
	const user = "system:serviceaccount:"
	switch kind {
	case "User":
		namespace, name, _ = strings.Cut(strings.TrimPrefix(name, user), ":")
	case "Group":
		switch name {
		case "system:serviceaccounts", "system:serviceaccounts:" + f.Namespace, "system:authenticated":
			return "every account of the group " + name
		}
		return ""
	}
	if namespace == f.Namespace && (name == controllerName || name == agentName || slices.ContainsFunc(f.Pods.Items, func(p pod) bool {
		return p.isController() && p.Spec.Account == name
	})) {
		return name
	}
	return ""
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

func checkCertificates(f *Facts) (out []Finding) {
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
	return out
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
		Fix: "kubectl -n gpupilot-system describe pods -l app.kubernetes.io/component=controller", at: []evidence{controllers}, run: checkController,
	},
	{
		Code: "GP602", Group: Capacity, Level: Warning, Title: "no controller or agent ran out of memory",
		Fix: "raise its memory limit: docs/operate.md#size-it", at: []evidence{ownPods}, run: checkMemory,
	},
	{
		Code: "GP603", Group: Capacity, Level: Error, Title: "a controller is the leader",
		Fix: "see the controllers' logs: without a leader nothing is scaled. docs/operate.md#run-two-replicas", at: []evidence{leases, running}, run: checkLeader,
	},
}

// checkController passes if the controller answers, or has a ready pod.
func checkController(f *Facts) []Finding {
	if len(f.View.Items) > 0 {
		return nil
	}
	waiting := ""
	for i := range f.Pods.Items {
		if p := &f.Pods.Items[i]; p.isController() {
			if p.ready() {
				return nil
			}
			waiting = "the pod " + p.name() + " is not ready: " + p.waiting()
		}
	}
	if f.Pods.Err != nil {
		return nil
	}
	if waiting == "" {
		waiting = "no pod of the controller exists in the namespace " + f.Namespace + ", and " + orMissing(f.View.Err, "it was not asked").Error()
	}
	return []Finding{{"controller", waiting}}
}

func checkMemory(f *Facts) (out []Finding) {
	for i := range f.Pods.Items {
		p := &f.Pods.Items[i]
		if !p.isController() && !p.isAgent() {
			continue
		}
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
	return out
}

// isEnded reports whether GP601 fails: what follows from it has no code of its own.
func (f *Facts) isEnded() bool {
	return len(checkController(f)) > 0
}

func checkLeader(f *Facts) []Finding {
	if f.isEnded() || f.Leases.Err != nil {
		return nil
	}
	object := "Lease " + f.Namespace + "/" + controllerName
	if len(f.Leases.Items) == 0 {
		return []Finding{{object, "it does not exist: no controller decides"}}
	}
	l := &f.Leases.Items[0]
	if l.Spec.HolderIdentity == "" {
		return []Finding{{object, "it has no holder"}}
	}
	if l.Spec.RenewTime == nil {
		return []Finding{{object, "it was never renewed"}}
	}
	// A minute more than the lease lasts: this machine's clock may differ.
	if age := f.Now.Sub(l.Spec.RenewTime.Time); age > time.Duration(l.Spec.LeaseDurationSeconds)*time.Second+time.Minute {
		return []Finding{{object, fmt.Sprintf("%s renewed it last %s ago", l.Spec.HolderIdentity, age.Round(time.Second))}}
	}
	return nil
}

func reasonOf(t *corev1.ContainerStateTerminated) string {
	if t == nil {
		return ""
	}
	return t.Reason
}

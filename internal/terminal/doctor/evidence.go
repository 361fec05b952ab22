// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
)

// evidence is a kind of objects that a check looks at, and how many there are. An error says why not all of them could be
// looked at: then the check does not pass.
type evidence func(*Facts) (n int, what string, err error)

// looked says what there was to look at, or why it could not be looked at.
func looked(at []evidence, f *Facts) (string, error) {
	var all []string
	var missing error
	for _, look := range at {
		n, what, err := look(f)
		all, missing = append(all, fmt.Sprintf("%s: %d", what, n)), cmp.Or(missing, err)
	}
	return strings.Join(all, ", "), missing
}

// kind is evidence of a list.
func kind[T any](what string, of func(*Facts) *listed[T]) evidence {
	return func(f *Facts) (int, string, error) {
		l := of(f)
		return len(l.Items), what, l.Err
	}
}

// Lists of the cluster.
var (
	rights      = kind("rights", func(f *Facts) *listed[right] { return &f.Rights })
	needs       = kind("rights of the controller", func(f *Facts) *listed[right] { return &f.Needs })
	nodes       = kind("nodes", func(f *Facts) *listed[node] { return &f.Nodes })
	daemonSets  = kind("DaemonSets", func(f *Facts) *listed[workload] { return &f.DaemonSets })
	autoscalers = kind("GPUAutoscalers", func(f *Facts) *listed[v1alpha1.GPUAutoscaler] { return &f.Autoscalers })
	hpas        = kind("HorizontalPodAutoscalers", func(f *Facts) *listed[scaler] { return &f.HPAs })
	scaled      = kind("ScaledObjects", func(f *Facts) *listed[scaler] { return &f.Scaled })
	vpas        = kind("VerticalPodAutoscalers", func(f *Facts) *listed[scaler] { return &f.VPAs })
	budgets     = kind("PodDisruptionBudgets", func(f *Facts) *listed[disruptionBudget] { return &f.PDBs })
	roles       = kind("ClusterRoles", func(f *Facts) *listed[clusterRole] { return &f.Roles })
	bindings    = kind("ClusterRoleBindings", func(f *Facts) *listed[clusterRoleBinding] { return &f.RoleBinding })
	apis        = kind("metrics APIs", func(f *Facts) *listed[apiService] { return &f.APIServices })
	leases      = kind("leases", func(f *Facts) *listed[lease] { return &f.Leases })
)

// versions is the API server's version.
func versions(f *Facts) (n int, what string, err error) {
	_, err = f.minor()
	return len(f.Version.Items), "API servers", err
}

// podsThat is evidence of pods of the installation.
func podsThat(what string, are func(*pod) bool) evidence {
	return func(f *Facts) (n int, _ string, err error) {
		for i := range f.Pods.Items {
			if are(&f.Pods.Items[i]) {
				n++
			}
		}
		return n, what, f.Pods.Err
	}
}

var (
	agents    = podsThat("agents", (*pod).isAgent)
	exporters = podsThat("agents and dcgm-exporters", func(p *pod) bool { return p.isAgent() || p.isDCGM() })
	ownPods   = atLeastOne(podsThat("controllers and agents", func(p *pod) bool { return p.isAgent() || p.isController() }))
	own       = podsThat("controllers", (*pod).isController)
	someOwn   = atLeastOne(own)
)

// errNoPods is why a check of pods cannot pass: a controller that is no pod here was not looked at.
var errNoPods = errors.New("no pod of the controller is in the namespace: what runs elsewhere was not looked at")

// atLeastOne is evidence without which a check cannot pass.
func atLeastOne(pods evidence) evidence {
	return func(f *Facts) (int, string, error) {
		n, what, err := pods(f)
		if n == 0 {
			err = cmp.Or(err, errNoPods)
		}
		return n, what, err
	}
}

// metricsAPIs are the metrics APIs that are the controller's.
func metricsAPIs(f *Facts) (n int, what string, err error) {
	for i := range f.APIServices.Items {
		if a := &f.APIServices.Items[i]; a.ours(f) {
			n++
			if condition(a.Status.Conditions, "Available") == nil {
				err = fmt.Errorf("the API server has not tried %s yet", a.Metadata.Name)
			}
		}
	}
	return n, "metrics APIs of the controller", cmp.Or(f.APIServices.Err, err)
}

// certified are those whose certificates are verified by the API server.
func certified(f *Facts) (n int, what string, err error) {
	for i := range f.APIServices.Items {
		if a := &f.APIServices.Items[i]; a.ours(f) && !a.Spec.Insecure {
			n++
			if _, ok := lastExpiry(a.Spec.CABundle); !ok {
				err = fmt.Errorf("the APIService %s has no certificate in its caBundle", a.Metadata.Name)
			}
		}
	}
	return n, "metrics APIs of the controller", cmp.Or(f.APIServices.Err, err)
}

// scraped is what the controller scrapes, as far as the user may see it.
func scraped(f *Facts) (n int, what string, err error) {
	v, err := f.view()
	if err != nil {
		return 0, "scrape targets", err
	}
	return len(v.Targets), "scrape targets", nil
}

// workloads are the Deployments and StatefulSets of GPUAutoscalers. Pods of other kinds are not looked at.
func workloads(f *Facts) (n int, what string, err error) {
	for i := range f.Autoscalers.Items {
		if f.workload(&f.Autoscalers.Items[i]) != nil {
			n++
		}
	}
	return n, fmt.Sprintf("Deployments and StatefulSets of %d GPUAutoscalers", len(f.Autoscalers.Items)), cmp.Or(f.Autoscalers.Err, f.Deployments.Err, f.StatefulSet.Err)
}

// status returns evidence of what a controller has written into the statuses of n objects: without a controller they are
// those of former times. behind says which object it has not read as it is now.
func (f *Facts) status(n int, what string, err error, behind func(i int) string) (int, string, error) {
	if f.isEnded() {
		err = cmp.Or(err, errEnded)
	}
	late, first := 0, ""
	for i := range n {
		if name := behind(i); name != "" {
			late, first = late+1, cmp.Or(first, name)
		}
	}
	if late > 0 {
		err = cmp.Or(err, fmt.Errorf("the controller has not looked at %d of %d %s yet, such as %s", late, n, what, first))
	}
	return n - late, what, err
}

// decided are the GPUAutoscalers whose status is of their spec.
func decided(f *Facts) (int, string, error) {
	return f.status(len(f.Autoscalers.Items), "GPUAutoscalers", f.Autoscalers.Err, func(i int) string {
		if a := &f.Autoscalers.Items[i]; a.Status.ObservedGeneration < a.Generation || len(a.Status.Conditions) == 0 {
			return a.Namespace + "/" + a.Name
		}
		return ""
	})
}

// applied are the GPUExporters whose status is of their spec.
func applied(f *Facts) (int, string, error) {
	return f.status(len(f.Exporters.Items), "GPUExporters", f.Exporters.Err, func(i int) string {
		if e := &f.Exporters.Items[i]; e.Status.ObservedGeneration < e.Generation || len(e.Status.Conditions) == 0 {
			return e.Name
		}
		return ""
	})
}

// admitted are the admission policies of the controller's account.
func admitted(f *Facts) (n int, what string, err error) {
	for i := range f.Policies.Items {
		if slices.Contains(policies, f.Policies.Items[i].Metadata.Name) {
			n++
		}
	}
	return n, "admission policies of the controller", cmp.Or(f.Policies.Err, f.Bindings.Err)
}

// controllers are those that answer, or else those that are ready.
func controllers(f *Facts) (n int, what string, err error) {
	if len(f.View.Items) > 0 {
		return 1, "controllers that answer", nil
	}
	for i := range f.Pods.Items {
		if p := &f.Pods.Items[i]; p.isController() && p.ready() {
			n++
		}
	}
	return n, "ready controllers", cmp.Or(f.Pods.Err, f.View.Err)
}

// errEnded is why a check of what a controller does cannot run.
var errEnded = errors.New("no controller runs (GP601)")

// running is evidence without which nothing is known of what controllers do.
func running(f *Facts) (n int, what string, err error) {
	n, what, _ = controllers(f)
	if f.isEnded() {
		err = errEnded
	}
	return n, what, err
}

// scheduled are the GPUAutoscalers, of whose schedules the windows were looked at.
func scheduled(f *Facts) (n int, what string, err error) {
	_, err = f.scheduleProblems()
	return len(f.Autoscalers.Items), "GPUAutoscalers", cmp.Or(f.Autoscalers.Err, err)
}

// delegated are the GPUAutoscalers whose replicas a HorizontalPodAutoscaler sets. The controller's view says since when
// they are decided.
func delegated(f *Facts) (n int, what string, err error) {
	for i := range f.Autoscalers.Items {
		if f.Autoscalers.Items[i].Spec.Actuation == v1alpha1.ActuationHPA {
			n++
		}
	}
	if n > 0 {
		_, err = f.view()
	}
	return n, "with actuation: HPA", err
}

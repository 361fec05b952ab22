// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/base/fair"
	"github.com/gpupilot/gpupilot/internal/scale/policy"
	"github.com/gpupilot/gpupilot/internal/window/view"
)

// API reads and asks the API server.
type API interface {
	Get(ctx context.Context, query url.Values, into any, path ...string) error
	Do(ctx context.Context, method string, body, into any, path ...string) error
}

// Where is an installation.
type Where struct {
	API        API
	Controller func(ctx context.Context, into *view.View) error // reads the controller's view
	Namespace  string                                           // of the controller and its agents
	Now        func() time.Time
}

// Facts are what was read of a cluster. A list that could not be read has an error; a kind
// that the cluster does not have is an empty list.
type Facts struct {
	Now       time.Time
	Namespace string

	Version     listed[serverVersion]
	Nodes       listed[node]
	Autoscalers listed[v1alpha1.GPUAutoscaler]
	Exporters   listed[v1alpha1.GPUExporter]
	HPAs        listed[scaler]
	Scaled      listed[scaler] // KEDA's ScaledObjects
	VPAs        listed[scaler]
	PDBs        listed[disruptionBudget]
	Deployments listed[workload] // of the namespaces of GPUAutoscalers
	StatefulSet listed[workload]
	DaemonSets  listed[workload] // dcgm-exporters anywhere
	Pods        listed[pod]      // of the controller, its agents and dcgm-exporters
	APIServices listed[apiService]
	Policies    listed[admissionPolicy]
	Bindings    listed[metav1.PartialObjectMetadata]
	Roles       listed[clusterRole]
	RoleBinding listed[clusterRoleBinding]
	Leases      listed[lease]
	Rights      listed[right]
	Needs       listed[right] // of Account, which is the controller's; empty: the controller is no pod
	Account     string
	View        listed[view.View] // of the controller

	schedules    map[int]policy.ScheduleProblems // by index of Autoscalers; nil: not looked at yet
	schedulesErr error
}

// listed is a list with the reason why it could not be read.
type listed[T any] struct {
	Items []T
	Err   error
}

type object struct {
	Metadata metadata `json:"metadata"`
}

// metadata is what the checks read of it: the fields of all managers are half of an object.
type metadata struct {
	Namespace         string            `json:"namespace"`
	Name              string            `json:"name"`
	UID               types.UID         `json:"uid"`
	CreationTimestamp metav1.Time       `json:"creationTimestamp"`
	Labels            map[string]string `json:"labels"`
	Annotations       map[string]string `json:"annotations"`
}

// name is NAMESPACE/NAME.
func (o *object) name() string {
	if o.Metadata.Namespace == "" {
		return o.Metadata.Name
	}
	return o.Metadata.Namespace + "/" + o.Metadata.Name
}

type serverVersion struct {
	GitVersion string `json:"gitVersion"`
}

type node struct {
	object
	Status struct {
		Capacity    map[string]string `json:"capacity"`
		Allocatable map[string]string `json:"allocatable"`
		Conditions  []struct {
			Type    string `json:"type"`
			Status  string `json:"status"`
			Message string `json:"message"`
		} `json:"conditions"`
	} `json:"status"`
}

// targetRef names what an autoscaler scales.
type targetRef struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Name       string `json:"name"`
}

// scaler is a HorizontalPodAutoscaler, a ScaledObject or a VerticalPodAutoscaler.
type scaler struct {
	object
	Spec struct {
		ScaleTargetRef targetRef `json:"scaleTargetRef"`
		TargetRef      targetRef `json:"targetRef"` // of a VerticalPodAutoscaler
		UpdatePolicy   *struct {
			UpdateMode string `json:"updateMode"`
		} `json:"updatePolicy"`
	} `json:"spec"`
	Status struct {
		DesiredReplicas int32              `json:"desiredReplicas"` // of a HorizontalPodAutoscaler
		Conditions      []metav1.Condition `json:"conditions"`
	} `json:"status"`
}

// isPaused reports whether KEDA has paused a ScaledObject for gpupilot adopt.
func (s *scaler) isPaused() bool {
	c := condition(s.Status.Conditions, "Paused")
	return s.Metadata.Annotations["gpupilot.dev/adopted-by"] != "" && c != nil && c.Status == metav1.ConditionTrue
}

type disruptionBudget struct {
	object
	Spec struct {
		Selector       *metav1.LabelSelector `json:"selector"`
		MinAvailable   *intstr.IntOrString   `json:"minAvailable"`
		MaxUnavailable *intstr.IntOrString   `json:"maxUnavailable"`
	} `json:"spec"`
}

type workload struct {
	object
	Spec struct {
		Template corev1.PodTemplateSpec `json:"template"`
	} `json:"spec"`
	Status struct {
		ReadyReplicas int32 `json:"readyReplicas"`
		Desired       int32 `json:"desiredNumberScheduled"`
	} `json:"status"`
}

type apiService struct {
	object
	Spec struct {
		Service *struct {
			Namespace string `json:"namespace"`
			Name      string `json:"name"`
		} `json:"service"`
		CABundle []byte `json:"caBundle"`
		Insecure bool   `json:"insecureSkipTLSVerify"`
	} `json:"spec"`
	Status struct {
		Conditions []metav1.Condition `json:"conditions"`
	} `json:"status"`
}

type admissionPolicy struct {
	object
	Spec struct {
		FailurePolicy string `json:"failurePolicy"`
	} `json:"spec"`
}

type policyRule struct {
	Verbs     []string `json:"verbs"`
	APIGroups []string `json:"apiGroups"`
	Resources []string `json:"resources"`

	ResourceNames []string `json:"resourceNames"`
}

type clusterRole struct {
	object
	Rules []policyRule `json:"rules"`
}

type clusterRoleBinding struct {
	object
	RoleRef struct {
		Kind string `json:"kind"`
		Name string `json:"name"`
	} `json:"roleRef"`
	Subjects []struct {
		Kind      string `json:"kind"`
		Namespace string `json:"namespace"`
		Name      string `json:"name"`
	} `json:"subjects"`
}

type lease struct {
	object
	Spec struct {
		HolderIdentity       string            `json:"holderIdentity"`
		LeaseDurationSeconds int               `json:"leaseDurationSeconds"`
		RenewTime            *metav1.MicroTime `json:"renewTime"`
	} `json:"spec"`
}

// right is a right to objects of a kind: of the user to create what an installation has, or of the controller's account.
type right struct {
	verb, group, resource, namespace string // without a verb: create; without a namespace: in the whole cluster
	name, role                       string // the only object; the role that gives it
	allowed                          bool
	reason                           string
}

// pageSize is the number of objects in an answer: all nodes of a large cluster are 100 MB.
const pageSize = "500"

// list reads a list. A kind that the cluster does not serve is an empty list.
func list[T any](ctx context.Context, api API, into *listed[T], query url.Values, path ...string) {
	query = maps.Clone(query)
	if query == nil {
		query = url.Values{}
	}
	query.Set("limit", pageSize)
	for {
		var l struct {
			Metadata struct {
				Continue string `json:"continue"`
			} `json:"metadata"`
			Items []T `json:"items"`
		}
		err := api.Get(ctx, query, &l, path...)
		if err != nil && !apierrors.IsNotFound(err) {
			into.Err = errors.Join(into.Err, fmt.Errorf("cannot read %s: %w", strings.Join(path, "/"), err))
		}
		if into.Items = append(into.Items, l.Items...); err != nil || l.Metadata.Continue == "" {
			return
		}
		query.Set("continue", l.Metadata.Continue)
	}
}

// one reads one object into a list.
func one[T any](ctx context.Context, api API, into *listed[T], path ...string) {
	var x T
	err := api.Get(ctx, nil, &x, path...)
	switch {
	case err == nil:
		into.Items = append(into.Items, x)
	case !apierrors.IsNotFound(err):
		into.Err = errors.Join(into.Err, fmt.Errorf("cannot read %s: %w", strings.Join(path, "/"), err))
	}
}

// Gather reads what the checks need. pre leaves out what only an installation has.
func (w *Where) Gather(ctx context.Context, pre bool) *Facts {
	f := &Facts{Now: w.Now(), Namespace: w.Namespace}
	var wait sync.WaitGroup
	slots := fair.Together(6) // requests at a time
	read := func(do func()) {
		wait.Go(func() {
			if done, err := slots.Acquire(ctx, fair.Request{}); err == nil {
				defer done()
			} // else the request fails at once
			do()
		})
	}
	apps := []string{"apis", "apps", "v1"}
	read(func() { one(ctx, w.API, &f.Version, "version") })
	read(func() { list(ctx, w.API, &f.Nodes, nil, "api", "v1", "nodes") })
	read(func() { list(ctx, w.API, &f.DaemonSets, nil, append(apps, "daemonsets")...) })
	read(func() {
		for _, name := range apiServices {
			one(ctx, w.API, &f.APIServices, "apis", "apiregistration.k8s.io", "v1", "apiservices", name)
		}
	})
	if pre {
		read(func() { w.rights(ctx, f) })
		wait.Wait()
		return f
	}
	autoscaling, rbac := []string{"apis", "autoscaling", "v2"}, []string{"apis", "rbac.authorization.k8s.io", "v1"}
	admission := []string{"apis", "admissionregistration.k8s.io", "v1"}
	read(func() { list(ctx, w.API, &f.HPAs, nil, append(autoscaling, "horizontalpodautoscalers")...) })
	read(func() { list(ctx, w.API, &f.Scaled, nil, "apis", "keda.sh", "v1alpha1", "scaledobjects") })
	read(func() { list(ctx, w.API, &f.VPAs, nil, "apis", "autoscaling.k8s.io", "v1", "verticalpodautoscalers") })
	read(func() { list(ctx, w.API, &f.PDBs, nil, "apis", "policy", "v1", "poddisruptionbudgets") })
	read(func() { list(ctx, w.API, &f.Policies, nil, append(admission, "validatingadmissionpolicies")...) })
	read(func() { list(ctx, w.API, &f.Bindings, nil, append(admission, "validatingadmissionpolicybindings")...) })
	read(func() { list(ctx, w.API, &f.Roles, nil, append(rbac, "clusterroles")...) })
	read(func() { list(ctx, w.API, &f.RoleBinding, nil, append(rbac, "clusterrolebindings")...) })
	read(func() {
		one(ctx, w.API, &f.Leases, "apis", "coordination.k8s.io", "v1", "namespaces", w.Namespace, "leases", controllerName)
	})
	read(func() {
		list(ctx, w.API, &f.Exporters, nil, "apis", v1alpha1.GroupVersion.Group, v1alpha1.GroupVersion.Version, "gpuexporters")
	})
	read(func() { w.autoscalers(ctx, f, read) })
	read(func() { w.pods(ctx, f, read) })
	read(func() {
		var v view.View
		if err := w.Controller(ctx, &v); err != nil {
			f.View.Err = fmt.Errorf("cannot read the controller's view: %w", err)
			return
		}
		f.View.Items = []view.View{v}
	})
	wait.Wait()
	w.needs(ctx, f)
	return f
}

// autoscalers reads GPUAutoscalers and the workloads in their namespaces.
func (w *Where) autoscalers(ctx context.Context, f *Facts, read func(func())) {
	var all listed[json.RawMessage]
	list(ctx, w.API, &all, nil, "apis", v1alpha1.GroupVersion.Group, v1alpha1.GroupVersion.Version, "gpuautoscalers")
	f.Autoscalers.Err = all.Err
	namespaces := map[string]bool{}
	for _, raw := range all.Items {
		u := &unstructured.Unstructured{}
		if err := json.Unmarshal(raw, &u.Object); err != nil {
			continue
		}
		a, _, _ := policy.Decode(u) // a malformed one has what could be read
		f.Autoscalers.Items = append(f.Autoscalers.Items, *a)
		namespaces[a.Namespace] = true
	}
	var mu sync.Mutex
	add := func(into *listed[workload], ns, resource string) {
		read(func() {
			var l listed[workload]
			list(ctx, w.API, &l, nil, "apis", "apps", "v1", "namespaces", ns, resource)
			mu.Lock()
			defer mu.Unlock()
			into.Items, into.Err = append(into.Items, l.Items...), errors.Join(into.Err, l.Err)
		})
	}
	for ns := range namespaces {
		add(&f.Deployments, ns, "deployments")
		add(&f.StatefulSet, ns, "statefulsets")
	}
}

// The kinds of the chart's objects, as resources.
var (
	createdInNamespace = []right{
		{resource: "serviceaccounts"},
		{resource: "services"},
		{group: "apps", resource: "deployments"},
		{group: "policy", resource: "poddisruptionbudgets"},
		{group: "rbac.authorization.k8s.io", resource: "roles"},
		{group: "rbac.authorization.k8s.io", resource: "rolebindings"},
	}
	createdInCluster = []right{
		{resource: "namespaces"},
		{group: "apiextensions.k8s.io", resource: "customresourcedefinitions"},
		{group: "rbac.authorization.k8s.io", resource: "clusterroles"},
		{group: "rbac.authorization.k8s.io", resource: "clusterrolebindings"},
		{group: "apiregistration.k8s.io", resource: "apiservices"},
		{group: "admissionregistration.k8s.io", resource: "validatingadmissionpolicies"},
		{group: "admissionregistration.k8s.io", resource: "validatingadmissionpolicybindings"},
		{group: v1alpha1.GroupVersion.Group, resource: "gpuexporters"},
	}
)

// rights asks whether the user may create what the chart has.
func (w *Where) rights(ctx context.Context, f *Facts) {
	all := slices.Clone(createdInNamespace)
	for i := range all {
		all[i].namespace = w.Namespace
	}
	for _, r := range append(all, createdInCluster...) {
		if f.Rights.Err = w.ask(ctx, &r, ""); f.Rights.Err != nil {
			return
		}
		f.Rights.Items = append(f.Rights.Items, r)
	}
}

// ask asks whether an account has a right; without one, whether the user has it.
func (w *Where) ask(ctx context.Context, r *right, account string) error {
	resource, part, _ := strings.Cut(r.resource, "/")
	spec := map[string]any{"resourceAttributes": map[string]any{
		"verb": cmp.Or(r.verb, "create"), "group": r.group, "resource": resource, "subresource": part, "namespace": r.namespace, "name": r.name,
	}}
	kind, whose := "SelfSubjectAccessReview", "your rights"
	if account != "" {
		kind, whose, spec["user"] = "SubjectAccessReview", "the rights of "+account, account
	}
	review := map[string]any{"apiVersion": "authorization.k8s.io/v1", "kind": kind, "spec": spec}
	var answer struct {
		Status struct {
			Allowed bool   `json:"allowed"`
			Reason  string `json:"reason"`
		} `json:"status"`
	}
	if err := w.API.Do(ctx, http.MethodPost, review, &answer, "apis", "authorization.k8s.io", "v1", strings.ToLower(kind)+"s"); err != nil {
		return fmt.Errorf("cannot ask for %s: %w", whose, err)
	}
	r.allowed, r.reason = answer.Status.Allowed, answer.Status.Reason
	return nil
}

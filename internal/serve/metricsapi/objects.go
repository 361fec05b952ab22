// SPDX-License-Identifier: Apache-2.0

package metricsapi

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/metrics/pkg/apis/custom_metrics"
)

// Objects finds objects other than pods in memory. Its errors are API status errors,
// which the client sees. It may start to watch a resource at the first request for it.
type Objects interface {
	// Kind returns the kind of a resource and whether its objects are namespaced. It is
	// cheap, and watches nothing.
	Kind(r schema.GroupResource) (kind schema.GroupVersionKind, namespaced bool, err error)
	// Has reports whether there is an object of that name.
	Has(ctx context.Context, r schema.GroupResource, namespace, name string) (bool, error)
	// Names returns the names of the objects that the selector matches, sorted. namespace
	// is empty for cluster-scoped objects.
	Names(ctx context.Context, r schema.GroupResource, namespace string, selector labels.Selector) ([]string, error)
}

var (
	podsResource       = schema.GroupResource{Resource: "pods"}
	nodesResource      = schema.GroupResource{Resource: "nodes"}
	namespacesResource = schema.GroupResource{Resource: "namespaces"}
)

// builtin are the resources other than pods that have the GPU metrics of their pods.
var builtin = [...]schema.GroupResource{
	namespacesResource, nodesResource,
	{Group: "apps", Resource: "deployments"},
	{Group: "apps", Resource: "replicasets"},
	{Group: "apps", Resource: "statefulsets"},
	{Group: "batch", Resource: "jobs"},
	{Group: "leaderworkerset.x-k8s.io", Resource: "leaderworkersets"},
}

// builtinKinds returns the built-in resources beside pods that the cluster serves.
func (p *Provider) builtinKinds() (list []objectKind) {
	if p.deps.Statistics == nil || p.deps.Objects == nil {
		return nil
	}
	for _, r := range builtin {
		if kind, namespaced, err := p.deps.Objects.Kind(r); err == nil {
			list = append(list, objectKind{r, kind, namespaced})
		}
	}
	return list
}

func isBuiltin(r schema.GroupResource) bool {
	for _, b := range builtin {
		if b == r {
			return true
		}
	}
	return false
}

// objectKind is a resource with its kind.
type objectKind struct {
	resource   schema.GroupResource
	kind       schema.GroupVersionKind
	namespaced bool
}

var podKind = objectKind{podsResource, schema.GroupVersionKind{Version: "v1", Kind: "Pod"}, true}

// reference returns the described object of a value.
func (k objectKind) reference(namespace, name string) custom_metrics.ObjectReference {
	return custom_metrics.ObjectReference{
		Kind: k.kind.Kind, APIVersion: k.kind.GroupVersion().String(), Namespace: namespace, Name: name,
	}
}

// kindOf finds the kind of a resource. It fails for resources without metrics, and for
// a namespace that is missing or superfluous.
func (p *Provider) kindOf(r schema.GroupResource, namespace, metric string) (objectKind, error) {
	k := podKind
	if r != podsResource {
		if p.deps.Objects == nil || !isBuiltin(r) && !p.servedBySource(r) {
			return k, notFound("metric %s: %s have no metrics here; %s have", metric, excerptOf(r.String()), p.resourceList())
		}
		kind, namespaced, err := p.deps.Objects.Kind(r)
		if err != nil {
			return k, err
		}
		k = objectKind{r, kind, namespaced}
	}
	switch {
	case k.namespaced && namespace == "":
		return k, apierrors.NewBadRequest(fmt.Sprintf("metric %s: %s are namespaced, and no namespace was given", metric, r))
	case !k.namespaced && namespace != "":
		return k, apierrors.NewBadRequest(fmt.Sprintf("metric %s: %s are not namespaced, but the namespace %q was given", metric, r, namespace))
	}
	return k, nil
}

// resourceList names the resources that have metrics.
func (p *Provider) resourceList() string {
	list := podsResource.String()
	if p.deps.Objects == nil {
		return list
	}
	for _, r := range builtin {
		list += ", " + r.String()
	}
	return list
}

// objectNames returns the names of the query's objects: of one object, or of those of a
// selector.
func (p *Provider) objectNames(ctx context.Context, k objectKind, namespace string, selector labels.Selector) ([]string, error) {
	if k.resource == podsResource {
		return p.deps.Pods.Serving(namespace, selector), nil
	}
	return p.deps.Objects.Names(ctx, k.resource, namespace, selector)
}

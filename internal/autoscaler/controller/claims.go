// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
)

// claim identifies a scale target, without the version of its API. The kind is in
// lower case, because the REST mappers accept both Deployment and deployment.
// newClaim makes one.
type claim struct{ group, kind, namespace, name string }

func newClaim(group, kind, namespace, name string) claim {
	return claim{group, strings.ToLower(kind), namespace, name}
}

// claimOf returns the claim of a scaleTargetRef in a namespace.
func claimOf(namespace, apiVersion, kind, name string) claim {
	gv, _ := schema.ParseGroupVersion(withDefaultVersion(apiVersion, kind))
	return newClaim(gv.Group, kind, namespace, name)
}

// withDefaultVersion returns the apiVersion, or apps/v1 if it is empty and the kind
// is Deployment or StatefulSet.
func withDefaultVersion(apiVersion, kind string) string {
	if apiVersion == "" && cachedKind(kind) != "" {
		return "apps/v1"
	}
	return apiVersion
}

// cachedKind returns the canonical name of a kind that is read from the cache, given
// in any case; empty for other kinds.
func cachedKind(kind string) string {
	for _, k := range []string{"Deployment", "StatefulSet"} {
		if strings.EqualFold(k, kind) {
			return k
		}
	}
	return ""
}

// owner is an object of another autoscaler that sets a target's replicas.
type owner struct{ kind, namespace, name string }

func (o owner) String() string { return fmt.Sprintf("%s %s", o.kind, o.name) }

// claims indexes the objects that set replicas by their target.
type claims struct {
	mu         sync.RWMutex
	others     map[owner]claim // HorizontalPodAutoscalers, ScaledObjects
	claimants  map[claim]map[owner]struct{}
	ownClaims  map[claim]map[string]*v1alpha1.GPUAutoscaler // by name
	ownTargets map[owner]claim                              // of our GPUAutoscalers
}

func newClaims() *claims {
	return &claims{
		others: map[owner]claim{}, claimants: map[claim]map[owner]struct{}{},
		ownClaims: map[claim]map[string]*v1alpha1.GPUAutoscaler{}, ownTargets: map[owner]claim{},
	}
}

// setOther sets the claim of an object of another autoscaler, or deletes it if the
// object is gone, and returns its previous claim.
func (c *claims) setOther(o owner, cl claim, gone bool) (before claim) {
	c.mu.Lock()
	defer c.mu.Unlock()
	before = c.others[o]
	delete(c.claimants[before], o)
	if len(c.claimants[before]) == 0 {
		delete(c.claimants, before)
	}
	delete(c.others, o)
	if gone {
		return before
	}
	c.others[o] = cl
	if c.claimants[cl] == nil {
		c.claimants[cl] = map[owner]struct{}{}
	}
	c.claimants[cl][o] = struct{}{}
	return before
}

// setAutoscaler sets the claim of a, and returns its previous and its new claim. A
// GPUAutoscaler that is gone, invalid or being deleted claims nothing.
func (c *claims) setAutoscaler(a *v1alpha1.GPUAutoscaler, claimsNothing bool) (before, after claim) {
	c.mu.Lock()
	defer c.mu.Unlock()
	me := owner{"GPUAutoscaler", a.Namespace, a.Name}
	before = c.ownTargets[me]
	delete(c.ownClaims[before], a.Name)
	if len(c.ownClaims[before]) == 0 {
		delete(c.ownClaims, before)
	}
	delete(c.ownTargets, me)
	if claimsNothing {
		return before, claim{}
	}
	ref := a.Spec.ScaleTargetRef
	cl := claimOf(a.Namespace, ref.APIVersion, ref.Kind, ref.Name)
	c.ownTargets[me] = cl
	if c.ownClaims[cl] == nil {
		c.ownClaims[cl] = map[string]*v1alpha1.GPUAutoscaler{}
	}
	c.ownClaims[cl][a.Name] = a
	return before, cl
}

// autoscalers returns the GPUAutoscalers whose scaleTargetRef is this target.
func (c *claims) autoscalers(cl claim) []*v1alpha1.GPUAutoscaler {
	c.mu.RLock()
	defer c.mu.RUnlock()
	out := make([]*v1alpha1.GPUAutoscaler, 0, len(c.ownClaims[cl]))
	for _, a := range c.ownClaims[cl] {
		out = append(out, a)
	}
	return out
}

// findRival returns another object that sets the replicas of a's target. Of two valid
// GPUAutoscalers the older one owns the target. A GPUAutoscaler that only advises
// neither has a rival nor is one.
func (c *claims) findRival(a *v1alpha1.GPUAutoscaler, cl claim) (owner, bool) {
	if a.Spec.Actuation == v1alpha1.ActuationAdvise {
		return owner{}, false
	}
	c.mu.RLock()
	defer c.mu.RUnlock()
	if len(c.claimants[cl]) > 0 {
		first := make([]owner, 0, len(c.claimants[cl]))
		for o := range c.claimants[cl] {
			first = append(first, o)
		}
		return slices.MinFunc(first, func(a, b owner) int {
			return cmp.Or(cmp.Compare(a.kind, b.kind), cmp.Compare(a.name, b.name))
		}), true
	}
	for _, b := range c.ownClaims[cl] {
		if b.Name != a.Name && b.Spec.Actuation != v1alpha1.ActuationAdvise && isOlder(b, a) {
			return owner{"GPUAutoscaler", b.Namespace, b.Name}, true
		}
	}
	return owner{}, false
}

func isOlder(a, b *v1alpha1.GPUAutoscaler) bool {
	return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name)) < 0
}

// scaledObject returns an empty ScaledObject, KEDA's kind.
func scaledObject() *unstructured.Unstructured {
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(schema.GroupVersionKind{Group: "keda.sh", Version: "v1alpha1", Kind: "ScaledObject"})
	return u
}

// watchKEDA watches ScaledObjects once their CRD is installed.
func (c *Controller) watchKEDA(ctx context.Context) {
	c.running.Go(func() {
		if c.deps.AwaitInstalled(ctx, scaledObject()) != nil {
			return
		}
		_ = c.deps.Watch(ctx, scaledObject(), eventHandler(c.scaledObjectChanged)) // its only error is ctx's
	})
}

func (c *Controller) scaledObjectChanged(u *unstructured.Unstructured, gone bool) {
	if f := c.deps.ScaledObjectChanged; f != nil {
		f(u, gone)
	}
	ref, _, _ := unstructured.NestedStringMap(u.Object, "spec", "scaleTargetRef")
	kind := ref["kind"]
	if kind == "" {
		kind = "Deployment" // KEDA's default
	}
	cl := claimOf(u.GetNamespace(), ref["apiVersion"], kind, ref["name"])
	before := c.claims.setOther(owner{"ScaledObject", u.GetNamespace(), u.GetName()}, cl, gone)
	c.wakeClaimants(before)
	c.wakeClaimants(cl)
}

// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
)

// claim is a scale target. The version of its API is none of its identity, nor
// is the case of its kind, which is lower: the API's REST mappers take both
// Deployment and deployment. newClaim makes it.
type claim struct{ group, kind, namespace, name string }

func newClaim(group, kind, namespace, name string) claim {
	return claim{group, strings.ToLower(kind), namespace, name}
}

// claimOf is what a reference in a namespace claims.
func claimOf(namespace, apiVersion, kind, name string) claim {
	gv, _ := schema.ParseGroupVersion(withDefaultVersion(apiVersion, kind))
	return newClaim(gv.Group, kind, namespace, name)
}

// withDefaultVersion lets the API version of the two kinds that everybody
// means be left out.
func withDefaultVersion(apiVersion, kind string) string {
	if apiVersion == "" && cached(kind) != "" {
		return "apps/v1"
	}
	return apiVersion
}

// cached is the name of the kind of apps that is read from the cache, in
// whichever case it is given; empty for other kinds.
func cached(kind string) string {
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

// claims knows which objects set the replicas of which target.
type claims struct {
	mu     sync.RWMutex
	others map[owner]claim // HorizontalPodAutoscalers, ScaledObjects
	of     map[claim]map[owner]struct{}
	mine   map[claim]map[string]*v1alpha1.GPUAutoscaler // by name
	refs   map[owner]claim                              // of mine
}

func newClaims() *claims {
	return &claims{
		others: map[owner]claim{}, of: map[claim]map[owner]struct{}{},
		mine: map[claim]map[string]*v1alpha1.GPUAutoscaler{}, refs: map[owner]claim{},
	}
}

// set notes what o claims, and returns what it claimed before.
func (c *claims) set(o owner, cl claim, gone bool) (before claim) {
	c.mu.Lock()
	defer c.mu.Unlock()
	before = c.others[o]
	delete(c.of[before], o)
	if len(c.of[before]) == 0 {
		delete(c.of, before)
	}
	delete(c.others, o)
	if gone {
		return before
	}
	c.others[o] = cl
	if c.of[cl] == nil {
		c.of[cl] = map[owner]struct{}{}
	}
	c.of[cl][o] = struct{}{}
	return before
}

// setAutoscaler notes what a claims, and returns what it claimed before and
// claims now. One that is gone, invalid or being deleted claims nothing.
func (c *claims) setAutoscaler(a *v1alpha1.GPUAutoscaler, claimsNothing bool) (before, after claim) {
	c.mu.Lock()
	defer c.mu.Unlock()
	me := owner{"GPUAutoscaler", a.Namespace, a.Name}
	before = c.refs[me]
	delete(c.mine[before], a.Name)
	if len(c.mine[before]) == 0 {
		delete(c.mine, before)
	}
	delete(c.refs, me)
	if claimsNothing {
		return before, claim{}
	}
	ref := a.Spec.ScaleTargetRef
	cl := claimOf(a.Namespace, ref.APIVersion, ref.Kind, ref.Name)
	c.refs[me] = cl
	if c.mine[cl] == nil {
		c.mine[cl] = map[string]*v1alpha1.GPUAutoscaler{}
	}
	c.mine[cl][a.Name] = a
	return before, cl
}

// autoscalers are the GPUAutoscalers that name this target.
func (c *claims) autoscalers(cl claim) []*v1alpha1.GPUAutoscaler {
	c.mu.RLock()
	defer c.mu.RUnlock()
	out := make([]*v1alpha1.GPUAutoscaler, 0, len(c.mine[cl]))
	for _, a := range c.mine[cl] {
		out = append(out, a)
	}
	return out
}

// rival is who else sets the replicas that a would set. Of two valid
// GPUAutoscalers the older has the target. One that only advises has no rivals,
// nor is it one.
func (c *claims) rival(a *v1alpha1.GPUAutoscaler, cl claim) (owner, bool) {
	if a.Spec.Actuation == v1alpha1.ActuationAdvise {
		return owner{}, false
	}
	c.mu.RLock()
	defer c.mu.RUnlock()
	if len(c.of[cl]) > 0 {
		first := make([]owner, 0, len(c.of[cl]))
		for o := range c.of[cl] {
			first = append(first, o)
		}
		return slices.MinFunc(first, func(a, b owner) int {
			return cmp.Or(cmp.Compare(a.kind, b.kind), cmp.Compare(a.name, b.name))
		}), true
	}
	for _, b := range c.mine[cl] {
		if b.Name != a.Name && b.Spec.Actuation != v1alpha1.ActuationAdvise && older(b, a) {
			return owner{"GPUAutoscaler", b.Namespace, b.Name}, true
		}
	}
	return owner{}, false
}

func older(a, b *v1alpha1.GPUAutoscaler) bool {
	return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name)) < 0
}

// scaledObject is KEDA's kind.
func scaledObject() *unstructured.Unstructured {
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(schema.GroupVersionKind{Group: "keda.sh", Version: "v1alpha1", Kind: "ScaledObject"})
	return u
}

// lookForKEDA is how often it is looked whether KEDA has been installed.
const lookForKEDA = 30 * time.Second

// watchKEDA watches ScaledObjects from when their kind is there on.
func (c *Controller) watchKEDA(ctx context.Context) {
	c.running.Go(func() {
		for !c.deps.Installed(scaledObject()) {
			select {
			case <-ctx.Done():
				return
			case <-time.After(lookForKEDA):
			}
		}
		_ = c.deps.Watch(ctx, scaledObject(), changes(c.scaledObjectChanged)) // its only error is ctx's
	})
}

func (c *Controller) scaledObjectChanged(obj client.Object, gone bool) {
	u, ok := obj.(*unstructured.Unstructured)
	if !ok {
		return
	}
	ref, _, _ := unstructured.NestedStringMap(u.Object, "spec", "scaleTargetRef")
	kind := ref["kind"]
	if kind == "" {
		kind = "Deployment" // KEDA's default
	}
	cl := claimOf(u.GetNamespace(), ref["apiVersion"], kind, ref["name"])
	before := c.claims.set(owner{"ScaledObject", u.GetNamespace(), u.GetName()}, cl, gone)
	c.wakeClaimants(before)
	c.wakeClaimants(cl)
}

// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	rbacv1client "k8s.io/client-go/kubernetes/typed/rbac/v1"
)

// ErrUninstalled means that the owner was deleted: GPUPilot is being uninstalled, and
// objects that are created now would not be deleted.
var ErrUninstalled = errors.New("uninstalled: the owner of the controller's objects was deleted")

// Owner is an object of the installation that owns the objects that the controller creates
// for itself, so that the garbage collector deletes them after it. Its methods are safe
// for concurrent use. A nil Owner returns no owner references.
type Owner struct {
	apiVersion, kind, name string

	get  func(context.Context) (metav1.Object, error)
	seen atomic.Bool // the object existed
}

// NewServiceOwner makes the owner for a Service of a namespace. Call References once at
// the start, so that a later deletion is noticed.
func NewServiceOwner(services corev1client.ServiceInterface, name string) *Owner {
	return &Owner{apiVersion: "v1", kind: "Service", name: name, get: func(ctx context.Context) (metav1.Object, error) {
		return services.Get(ctx, name, metav1.GetOptions{})
	}}
}

// NewClusterRoleOwner makes the owner for a ClusterRole. Objects of the cluster need one:
// an object of a namespace cannot own them.
func NewClusterRoleOwner(roles rbacv1client.ClusterRoleInterface, name string) *Owner {
	return &Owner{apiVersion: "rbac.authorization.k8s.io/v1", kind: "ClusterRole", name: name, get: func(ctx context.Context) (metav1.Object, error) {
		return roles.Get(ctx, name, metav1.GetOptions{})
	}}
}

// References returns the owner references of a new object. There are none if the owner
// never existed, as for a controller outside of the cluster, or if the controller may not
// read it. The error is ErrUninstalled if the owner was deleted or is being deleted, else
// the API server's.
func (o *Owner) References(ctx context.Context) ([]metav1.OwnerReference, error) {
	if o == nil {
		return nil, nil
	}
	owner, err := o.get(ctx)
	switch {
	case apierrors.IsNotFound(err) && o.seen.Load():
		return nil, fmt.Errorf("%w: %s %s", ErrUninstalled, o.kind, o.name)
	case (apierrors.IsNotFound(err) || apierrors.IsForbidden(err)) && !o.seen.Load():
		return nil, nil
	case err != nil: // also if the right to read it was taken away, as an uninstallation does
		return nil, fmt.Errorf("read %s %s: %w", o.kind, o.name, err)
	case owner.GetDeletionTimestamp() != nil:
		return nil, fmt.Errorf("%w: %s %s", ErrUninstalled, o.kind, o.name)
	}
	o.seen.Store(true)
	return []metav1.OwnerReference{{
		// Controller is not set, because the owner manages no objects. BlockOwnerDeletion
		// would need more rights.
		APIVersion: o.apiVersion, Kind: o.kind, Name: owner.GetName(), UID: owner.GetUID(),
	}}, nil
}

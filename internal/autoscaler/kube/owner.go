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
)

// ErrUninstalled means that our Service was deleted: GPUPilot is being uninstalled, and
// objects that are created now would not be deleted.
var ErrUninstalled = errors.New("the controller's service was deleted")

// ServiceOwner makes our Service the owner of the objects that the controller creates
// for itself, so that the garbage collector deletes them after the Service. Its methods
// are safe for concurrent use. A nil ServiceOwner returns no owner references.
type ServiceOwner struct {
	services corev1client.ServiceInterface
	name     string
	seen     atomic.Bool // the Service existed
}

// NewServiceOwner makes the owner for a Service of a namespace. Call References once at
// the start, so that a later deletion is noticed.
func NewServiceOwner(services corev1client.ServiceInterface, name string) *ServiceOwner {
	return &ServiceOwner{services: services, name: name}
}

// References returns the owner references of a new object in the Service's namespace. There
// are none if the Service never existed, as for a controller outside of the cluster, or if
// the controller may not read it. The error is ErrUninstalled if the Service was deleted,
// else the API server's.
func (o *ServiceOwner) References(ctx context.Context) ([]metav1.OwnerReference, error) {
	if o == nil {
		return nil, nil
	}
	service, err := o.services.Get(ctx, o.name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err) && o.seen.Load():
		return nil, fmt.Errorf("%w: %s", ErrUninstalled, o.name)
	case apierrors.IsNotFound(err), apierrors.IsForbidden(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("read service %s: %w", o.name, err)
	}
	o.seen.Store(true)
	return []metav1.OwnerReference{{
		// Controller is not set, because the Service manages no objects. BlockOwnerDeletion
		// would need more rights.
		APIVersion: "v1", Kind: "Service", Name: service.Name, UID: service.UID,
	}}, nil
}

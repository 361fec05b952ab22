// SPDX-License-Identifier: Apache-2.0

package leader

import (
	"context"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	coordinationv1client "k8s.io/client-go/kubernetes/typed/coordination/v1"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/gpupilot/gpupilot/internal/autoscaler/kube"
)

// serviceStore is a namespace with one Service, or an error.
type serviceStore struct {
	corev1client.ServiceInterface
	service *corev1.Service
	err     error
}

func (s *serviceStore) Get(_ context.Context, name string, _ metav1.GetOptions) (*corev1.Service, error) {
	if s.err == nil && s.service == nil {
		return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "services"}, name)
	}
	return s.service, s.err
}

var (
	ourService = &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "gpupilot", UID: "u"}}
	ourRefs    = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Service", Name: "gpupilot", UID: "u"}}
)

// A new lease has the owner, and is not created again once the Service was deleted.
func TestOwnedLease(t *testing.T) {
	services := &serviceStore{service: ourService}
	owner := kube.NewServiceOwner(services, "gpupilot")
	leases := ownedLeases{LeasesGetter: &leaseStore{}, owner: owner}.Leases("gpu")
	lease, err := leases.Create(t.Context(), &coordinationv1.Lease{}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(ourRefs, lease.OwnerReferences); diff != "" {
		t.Errorf("the lease's owners: -want +got\n%s", diff)
	}
	services.service = nil
	if _, err := leases.Create(t.Context(), &coordinationv1.Lease{}, metav1.CreateOptions{}); !errors.Is(err, kube.ErrUninstalled) {
		t.Errorf("lease after the service was deleted: %v", err)
	}
}

// leaseStore accepts every lease.
type leaseStore struct {
	coordinationv1client.LeaseInterface
}

func (s *leaseStore) Leases(string) coordinationv1client.LeaseInterface { return s }

func (s *leaseStore) Create(_ context.Context, lease *coordinationv1.Lease, _ metav1.CreateOptions) (*coordinationv1.Lease, error) {
	return lease, nil
}

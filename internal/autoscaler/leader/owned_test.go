// SPDX-License-Identifier: Apache-2.0

package leader

import (
	"context"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coordinationv1client "k8s.io/client-go/kubernetes/typed/coordination/v1"

	"github.com/gpupilot/gpupilot/internal/autoscaler/kube"
	"github.com/gpupilot/gpupilot/test/kubetest"
)

// A new lease has the owner, and is not created again once the Service was deleted.
func TestOwnedLease(t *testing.T) {
	services := &kubetest.Services{Service: kubetest.Service()}
	owner := kube.NewServiceOwner(services, "gpupilot")
	leases := ownedLeases{LeasesGetter: &leaseStore{}, owner: owner}.Leases("gpu")
	lease, err := leases.Create(t.Context(), &coordinationv1.Lease{}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(kubetest.References(), lease.OwnerReferences); diff != "" {
		t.Errorf("the lease's owners: -want +got\n%s", diff)
	}
	services.Service = nil
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

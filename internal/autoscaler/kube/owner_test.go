// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"errors"
	"log/slog"
	"testing"

	"github.com/google/go-cmp/cmp"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	coordinationv1client "k8s.io/client-go/kubernetes/typed/coordination/v1"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
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

func TestServiceOwner(t *testing.T) {
	services := &serviceStore{}
	owner := NewServiceOwner(services, "gpupilot")
	f := func(what string, want []metav1.OwnerReference, wantErr error) {
		t.Helper()
		got, err := owner.References(t.Context())
		if diff := cmp.Diff(want, got); diff != "" || !errors.Is(err, wantErr) {
			t.Errorf("%s: error %v, want %v; -want +got\n%s", what, err, wantErr, diff)
		}
	}
	f("the service never existed", nil, nil)
	services.err = apierrors.NewForbidden(schema.GroupResource{Resource: "services"}, "gpupilot", nil)
	f("forbidden", nil, nil)
	services.err, services.service = nil, ourService
	f("it exists", ourRefs, nil)
	services.err = context.DeadlineExceeded
	f("the API server does not answer", nil, context.DeadlineExceeded)
	services.err, services.service = nil, nil
	f("it was deleted", nil, ErrUninstalled)
	owner = nil
	f("no owner", nil, nil)
}

// What the controller creates has the owner, and is not created again once the Service was deleted.
func TestOwnedObjects(t *testing.T) {
	services := &serviceStore{service: ourService}
	owner := NewServiceOwner(services, "gpupilot")
	store := &secretStore{}
	certs := NewCerts(CertConfig{Secrets: store, Name: "cert", DNSNames: svc, Owner: owner, Log: slog.New(slog.DiscardHandler)})
	leases := ownedLeases{LeasesGetter: &leaseStore{}, owner: owner}.Leases("gpu")
	apis := &registry{have: map[string]*apiregistrationv1.APIService{}}
	ensure := func() error {
		return EnsureAPIServices(t.Context(), apis, APIServiceConfig{APIs: CustomMetrics(), Namespace: "gpu", Service: "gpupilot", Port: 443, CreateIfMissing: true, Owner: owner})
	}

	if err := certs.Sync(t.Context()); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(ourRefs, store.secret.OwnerReferences); diff != "" {
		t.Errorf("the secret's owners: -want +got\n%s", diff)
	}
	lease, err := leases.Create(t.Context(), &coordinationv1.Lease{}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(ourRefs, lease.OwnerReferences); diff != "" {
		t.Errorf("the lease's owners: -want +got\n%s", diff)
	}
	if err := ensure(); err != nil {
		t.Fatal(err)
	}

	services.service, store.secret, apis.have = nil, nil, map[string]*apiregistrationv1.APIService{}
	if err := certs.Sync(t.Context()); !errors.Is(err, ErrUninstalled) || store.secret != nil {
		t.Errorf("secret after the service was deleted: %v, %v", store.secret, err)
	}
	if _, err := leases.Create(t.Context(), &coordinationv1.Lease{}, metav1.CreateOptions{}); !errors.Is(err, ErrUninstalled) {
		t.Errorf("lease after the service was deleted: %v", err)
	}
	if err := ensure(); !errors.Is(err, ErrUninstalled) || len(apis.have) != 0 {
		t.Errorf("APIServices after the service was deleted: %v, %v", apis.have, err)
	}
	if cert, _ := certs.CurrentCertKeyContent(); cert == nil {
		t.Error("the certificate is not served any more")
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

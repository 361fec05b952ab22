// SPDX-License-Identifier: Apache-2.0

package certificates

import (
	"context"
	"errors"
	"log/slog"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

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

// The Secret and the APIServices have the owner, and are not created again once the Service was deleted.
func TestOwnedObjects(t *testing.T) {
	services := &serviceStore{service: ourService}
	owner := kube.NewServiceOwner(services, "gpupilot")
	store := &secretStore{}
	certs := New(Config{Secrets: store, Name: "cert", DNSNames: svc, Owner: owner, Log: slog.New(slog.DiscardHandler)})
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
	if err := ensure(); err != nil {
		t.Fatal(err)
	}

	services.service, store.secret, apis.have = nil, nil, map[string]*apiregistrationv1.APIService{}
	if err := certs.Sync(t.Context()); !errors.Is(err, kube.ErrUninstalled) || store.secret != nil {
		t.Errorf("secret after the service was deleted: %v, %v", store.secret, err)
	}
	if err := ensure(); !errors.Is(err, kube.ErrUninstalled) || len(apis.have) != 0 {
		t.Errorf("APIServices after the service was deleted: %v, %v", apis.have, err)
	}
	if cert, _ := certs.CurrentCertKeyContent(); cert == nil {
		t.Error("the certificate is not served any more")
	}
}

// SPDX-License-Identifier: Apache-2.0

package certificates

import (
	"errors"
	"log/slog"
	"testing"

	"github.com/google/go-cmp/cmp"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"github.com/gpupilot/gpupilot/internal/autoscaler/kube"
	"github.com/gpupilot/gpupilot/test/kubetest"
)

// The Secret and the APIServices have the owner, and are not created again once the Service was deleted.
func TestOwnedObjects(t *testing.T) {
	services := &kubetest.Services{Service: kubetest.Service()}
	owner := kube.NewServiceOwner(services, "gpupilot")
	store := &secretStore{}
	certs := New(Config{Secrets: store, Name: "cert", DNSNames: svc, Owner: owner, Log: slog.New(slog.DiscardHandler)})
	apis := &registry{have: map[string]*apiregistrationv1.APIService{}}
	ensure := func() error {
		return EnsureAPIServices(t.Context(), apis, APIServiceConfig{APIs: CustomMetrics(), Namespace: "gpu", Service: "gpupilot", Port: 443, CreateIfMissing: true, ServiceOwner: owner})
	}

	if err := certs.Sync(t.Context()); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(kubetest.References(), store.secret.OwnerReferences); diff != "" {
		t.Errorf("the secret's owners: -want +got\n%s", diff)
	}
	if err := ensure(); err != nil {
		t.Fatal(err)
	}

	services.Service, store.secret, apis.have = nil, nil, map[string]*apiregistrationv1.APIService{}
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

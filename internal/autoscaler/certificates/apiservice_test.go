// SPDX-License-Identifier: Apache-2.0

package certificates

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	apiregistration "k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset/typed/apiregistration/v1"
)

var apiservices = schema.GroupResource{Group: "apiregistration.k8s.io", Resource: "apiservices"}

// registry holds APIServices by name.
type registry struct {
	apiregistration.APIServiceInterface
	have      map[string]*apiregistrationv1.APIService
	conflicts int // how many patches fail first
	writes    int
}

func (r *registry) Get(_ context.Context, name string, _ metav1.GetOptions) (*apiregistrationv1.APIService, error) {
	if s := r.have[name]; s != nil {
		return s.DeepCopy(), nil
	}
	return nil, apierrors.NewNotFound(apiservices, name)
}

func (r *registry) Create(_ context.Context, s *apiregistrationv1.APIService, _ metav1.CreateOptions) (*apiregistrationv1.APIService, error) {
	r.writes++
	r.have[s.Name] = s.DeepCopy()
	return s, nil
}

func (r *registry) Patch(_ context.Context, name string, _ types.PatchType, data []byte, _ metav1.PatchOptions, _ ...string) (*apiregistrationv1.APIService, error) {
	if r.conflicts > 0 {
		r.conflicts--
		return nil, apierrors.NewConflict(apiservices, name, errors.New("changed"))
	}
	r.writes++
	return r.have[name], json.Unmarshal(data, r.have[name]) // enough of a merge patch for fields that are there
}

func registered(api APIVersion, service string) *apiregistrationv1.APIService {
	return newAPIService(&APIServiceConfig{Namespace: "gpu", Service: service, Port: 443}, api)
}

func TestEnsureAPIServices(t *testing.T) {
	apis := CustomMetrics()
	cfg := APIServiceConfig{APIs: apis, Namespace: "gpu", Service: "gpupilot", Port: 443, CABundle: []byte("bundle"), CreateIfMissing: true}
	names := []string{"v1beta2.custom.metrics.k8s.io", "v1beta1.custom.metrics.k8s.io"}
	insecure := registered(apis[1], "gpupilot")
	insecure.Spec.InsecureSkipTLSVerify = true
	insecure.Spec.GroupPriorityMinimum = 7 // somebody's choice
	r := &registry{have: map[string]*apiregistrationv1.APIService{names[1]: insecure}, conflicts: 2}

	if err := EnsureAPIServices(t.Context(), r, cfg); err != nil {
		t.Fatal(err)
	}
	port := int32(443)
	want := apiregistrationv1.APIServiceSpec{
		Group: "custom.metrics.k8s.io", Version: "v1beta2", CABundle: []byte("bundle"), GroupPriorityMinimum: 100, VersionPriority: 200,
		Service: &apiregistrationv1.ServiceReference{Namespace: "gpu", Name: "gpupilot", Port: &port},
	}
	if diff := cmp.Diff(want, r.have[names[0]].Spec); diff != "" {
		t.Errorf("made (-want +got):\n%s", diff)
	}
	want.Version, want.VersionPriority, want.GroupPriorityMinimum = "v1beta1", 100, 7
	if diff := cmp.Diff(want, r.have[names[1]].Spec); diff != "" {
		t.Errorf("patched (-want +got):\n%s", diff)
	}
	r.writes = 0
	if err := EnsureAPIServices(t.Context(), r, cfg); err != nil || r.writes != 0 {
		t.Errorf("again: %d writes, %v", r.writes, err)
	}
	cfg.CABundle = nil
	if err := EnsureAPIServices(t.Context(), r, cfg); err != nil || r.writes != 0 {
		t.Errorf("without a bundle: %d writes, %v", r.writes, err)
	}
}

func TestEnsureAPIServicesRefuses(t *testing.T) {
	apis := CustomMetrics()
	cfg := APIServiceConfig{APIs: apis, Namespace: "gpu", Service: "gpupilot", Port: 443, CABundle: []byte("bundle")}
	local := registered(apis[0], "")
	local.Spec.Service = nil
	f := func(have *apiregistrationv1.APIService, want string, is error) {
		t.Helper()
		r := &registry{have: map[string]*apiregistrationv1.APIService{}}
		if have != nil {
			r.have[have.Name] = have
		}
		err := EnsureAPIServices(t.Context(), r, cfg)
		if err == nil || !strings.Contains(err.Error(), want) || is != nil && !errors.Is(err, is) {
			t.Errorf("error %v, want %q", err, want)
		}
		if r.writes != 0 {
			t.Errorf("%q: written", want)
		}
	}
	f(registered(apis[0], "prometheus-adapter"), "APIService v1beta2.custom.metrics.k8s.io: served by another service: gpu/prometheus-adapter, not gpu/gpupilot", ErrOtherService)
	f(local, "served by another service: the API server itself", ErrOtherService)
	f(nil, `APIService v1beta1.custom.metrics.k8s.io: apiservices.apiregistration.k8s.io "v1beta1.custom.metrics.k8s.io" not found`, nil)
}

// An adapter that has only v1beta1 keeps all requests: with our v1beta2 beside it, clients
// would no longer ask the adapter.
func TestNoVersionBesideAnotherService(t *testing.T) {
	apis := CustomMetrics()
	cfg := APIServiceConfig{APIs: append(apis, ExternalMetrics()...), Namespace: "gpu", Service: "gpupilot", Port: 443, CABundle: []byte("bundle"), CreateIfMissing: true}
	theirs := registered(apis[1], "prometheus-adapter")
	r := &registry{have: map[string]*apiregistrationv1.APIService{theirs.Name: theirs}}
	err := EnsureAPIServices(t.Context(), r, cfg)
	if !errors.Is(err, ErrOtherService) || !strings.Contains(err.Error(), "APIService v1beta2.custom.metrics.k8s.io: served by another service: gpu/prometheus-adapter serves v1beta1 of the group") {
		t.Errorf("error %v", err)
	}
	if r.have["v1beta2.custom.metrics.k8s.io"] != nil || r.have["v1beta1.external.metrics.k8s.io"] == nil {
		t.Errorf("registered: %v", r.have)
	}
	delete(r.have, theirs.Name)
	if err := EnsureAPIServices(t.Context(), r, cfg); err != nil || len(r.have) != 3 {
		t.Errorf("after the adapter has gone: %d APIServices, %v", len(r.have), err)
	}
}

func TestKeepAPIServicesFollowsTheBundle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		store := &secretStore{}
		certs := New(Config{Secrets: store, Name: "cert", DNSNames: svc})
		r := &registry{have: map[string]*apiregistrationv1.APIService{}}
		done := make(chan struct{})
		go func() {
			defer close(done)
			KeepAPIServices(ctx, r, APIServiceConfig{APIs: CustomMetrics(), Namespace: "gpu", Service: "gpupilot", Port: 443, CreateIfMissing: true}, certs, slog.New(slog.DiscardHandler))
		}()
		synctest.Wait()
		if len(r.have) != 0 {
			t.Error("registered without a certificate")
		}
		for range 2 {
			mustSync(t, certs)
			synctest.Wait()
			for name, s := range r.have {
				if diff := cmp.Diff(certs.CABundle(), s.Spec.CABundle); diff != "" {
					t.Errorf("%s:\n%s", name, diff)
				}
			}
			if len(r.have) != 2 {
				t.Errorf("%d APIServices, want 2", len(r.have))
			}
			store.set(nil)
			time.Sleep(time.Second)
		}
		cancel()
		<-done
	})
}

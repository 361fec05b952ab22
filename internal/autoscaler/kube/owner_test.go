// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
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

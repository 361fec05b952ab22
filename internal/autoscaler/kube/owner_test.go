// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/gpupilot/gpupilot/test/kubetest"
)

func TestServiceOwner(t *testing.T) {
	services := &kubetest.Services{}
	owner := NewServiceOwner(services, "gpupilot")
	f := func(what string, want []metav1.OwnerReference, wantErr error) {
		t.Helper()
		got, err := owner.References(t.Context())
		if diff := cmp.Diff(want, got); diff != "" || !errors.Is(err, wantErr) {
			t.Errorf("%s: error %v, want %v; -want +got\n%s", what, err, wantErr, diff)
		}
	}
	f("the service never existed", nil, nil)
	services.Err = apierrors.NewForbidden(schema.GroupResource{Resource: "services"}, "gpupilot", nil)
	f("forbidden", nil, nil)
	services.Err, services.Service = nil, kubetest.Service()
	f("it exists", kubetest.References(), nil)
	services.Err = context.DeadlineExceeded
	f("the API server does not answer", nil, context.DeadlineExceeded)
	services.Err = apierrors.NewForbidden(schema.GroupResource{Resource: "services"}, "gpupilot", nil)
	f("the right to read it is gone", nil, services.Err)
	services.Err, services.Service = nil, kubetest.Service()
	services.Service.DeletionTimestamp = &metav1.Time{}
	f("it is being deleted", nil, ErrUninstalled)
	services.Err, services.Service = nil, nil
	f("it was deleted", nil, ErrUninstalled)
	owner = nil
	f("no owner", nil, nil)
}

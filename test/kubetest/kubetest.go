// SPDX-License-Identifier: Apache-2.0

// Package kubetest has the Service that owns the controller's objects, for tests.
package kubetest

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
)

// Services is a namespace with one Service, none, or an error.
type Services struct {
	corev1client.ServiceInterface
	Service *corev1.Service
	Err     error
}

// Get returns the Service or the error.
func (s *Services) Get(_ context.Context, name string, _ metav1.GetOptions) (*corev1.Service, error) {
	if s.Err == nil && s.Service == nil {
		return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "services"}, name)
	}
	return s.Service, s.Err
}

// Service returns the controller's Service.
func Service() *corev1.Service {
	return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "gpupilot", UID: "u"}}
}

// References are the owners of an object that belongs to Service.
func References() []metav1.OwnerReference {
	return []metav1.OwnerReference{{APIVersion: "v1", Kind: "Service", Name: "gpupilot", UID: "u"}}
}

// SPDX-License-Identifier: Apache-2.0

// Package v1alpha1 is version v1alpha1 of the API group gpupilot.dev.
//
// +kubebuilder:object:generate=true
// +groupName=gpupilot.dev
package v1alpha1

import (
	"k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion is the group and version of this package's kinds.
var GroupVersion = schema.GroupVersion{Group: "gpupilot.dev", Version: "v1alpha1"}

// AddToScheme registers this package's kinds with a scheme.
func AddToScheme(s *runtime.Scheme) error {
	s.AddKnownTypes(GroupVersion, &GPUAutoscaler{}, &GPUAutoscalerList{}, &GPUExporter{}, &GPUExporterList{}, &MetricQuery{}, &MetricQueryList{})
	v1.AddToGroupVersion(s, GroupVersion)
	return nil
}

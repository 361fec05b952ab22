// SPDX-License-Identifier: Apache-2.0

// Package v1alpha1 stands in for Knative's.
package v1alpha1

// HTTPOption says what becomes of plain HTTP.
type HTTPOption string

// The options.
const (
	HTTPOptionEnabled    HTTPOption = "Enabled"
	HTTPOptionRedirected HTTPOption = "Redirected"
)

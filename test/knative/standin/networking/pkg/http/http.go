// SPDX-License-Identifier: Apache-2.0

// Package http stands in for Knative's.
package http

import "net/http"

// IsPotentialMeshErrorResponse says no.
func IsPotentialMeshErrorResponse(*http.Response) bool { return false }

// SPDX-License-Identifier: Apache-2.0

// Package networking stands in for Knative's.
package networking

import (
	"context"

	"knative.dev/pkg/apis"
)

// GroupName is an API group.
const GroupName = "networking.internal.knative.dev"

// ProtocolType names a protocol.
type ProtocolType string

// Validate finds nothing wrong.
func (ProtocolType) Validate(context.Context) *apis.FieldError { return nil }

// GetHTTPProtocol finds none.
func GetHTTPProtocol(map[string]string) string { return "" }

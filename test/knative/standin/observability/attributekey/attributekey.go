// SPDX-License-Identifier: Apache-2.0

// Package attributekey stands in for Knative's.
package attributekey

import "go.opentelemetry.io/otel/attribute"

// String is the key of a string.
type String string

// With is the key with a value.
func (s String) With(v string) attribute.KeyValue { return attribute.String(string(s), v) }

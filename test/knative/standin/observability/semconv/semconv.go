// SPDX-License-Identifier: Apache-2.0

// Package semconv stands in for Knative's.
package semconv

import "go.opentelemetry.io/otel/attribute"

// K8SNamespaceName is a namespace's attribute.
func K8SNamespaceName(v string) attribute.KeyValue { return attribute.String("k8s.namespace.name", v) }

// SPDX-License-Identifier: Apache-2.0

package target

import (
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Key identifies a scale target, without the version of its API. The kind is in lower
// case, because the REST mappers accept both Deployment and deployment. NewKey makes one.
type Key struct{ group, kind, namespace, name string }

// NewKey returns the key of a workload.
func NewKey(group, kind, namespace, name string) Key {
	return Key{group, strings.ToLower(kind), namespace, name}
}

// KeyOf returns the key of a scaleTargetRef in a namespace.
func KeyOf(namespace, apiVersion, kind, name string) Key {
	gv, _ := schema.ParseGroupVersion(withDefaultVersion(apiVersion, kind))
	return NewKey(gv.Group, kind, namespace, name)
}

// withDefaultVersion returns the apiVersion, or apps/v1 if it is empty and the kind
// is Deployment or StatefulSet.
func withDefaultVersion(apiVersion, kind string) string {
	if apiVersion == "" && cachedKind(kind) != "" {
		return "apps/v1"
	}
	return apiVersion
}

// cachedKind returns the canonical name of a kind that is read from the cache, given
// in any case; empty for other kinds.
func cachedKind(kind string) string {
	for _, k := range []string{"Deployment", "StatefulSet"} {
		if strings.EqualFold(k, kind) {
			return k
		}
	}
	return ""
}

// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"os"
	"strings"
)

const namespaceFile = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"

// OwnNamespace returns the namespace of the pod's service account; empty: there is none.
func OwnNamespace() string {
	b, err := os.ReadFile(namespaceFile)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestSince(t *testing.T) {
	before := Objects{"Namespace a": "1", "Pod a/old": "2", "Pod a/replaced": "3"}
	now := Objects{"Namespace a": "1", "Pod a/replaced": "4", "apps/Deployment a/new": "5"}
	if diff := cmp.Diff([]string{"Pod a/replaced", "apps/Deployment a/new"}, now.Since(before)); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
}

func TestSettled(t *testing.T) {
	o := Objects{"Namespace a": "1", "ServiceAccount a/default": "2"}
	if err := o.Settled(); err == nil {
		t.Error("settled without the ConfigMap of the authorities")
	}
	o["ConfigMap a/kube-root-ca.crt"] = "3"
	if err := o.Settled(); err != nil {
		t.Error(err)
	}
}

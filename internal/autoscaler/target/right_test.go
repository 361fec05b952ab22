// SPDX-License-Identifier: Apache-2.0

package target

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// What RBAC forbids is told by the right and what gives it; what anything else forbids, in its own words.
func TestNameRight(t *testing.T) {
	f := func(says, want string) {
		t.Helper()
		err := apierrors.NewForbidden(schema.GroupResource{Group: "apps", Resource: "deployments"}, "chat", errors.New(says))
		got := nameRight(fmt.Errorf("again: %w", err))
		if !strings.Contains(got.Error(), want) || !errors.Is(got, err) || !apierrors.IsForbidden(got) {
			t.Errorf("%v: no %q", got, want)
		}
	}
	const user = `User "system:serviceaccount:gpupilot-system:gpupilot-controller"`
	f(user+` cannot update resource "deployments/scale" in API group "apps" in the namespace "team-a"`,
		"system:serviceaccount:gpupilot-system:gpupilot-controller may not update deployments/scale.apps in the namespace team-a: the binding of ClusterRole gpupilot-controller:scale is missing")
	f(user+` cannot list resource "pods" in API group "" at the cluster scope`, "may not list pods at the cluster scope: the binding of ClusterRole gpupilot-controller is missing")
	f("exceeded quota: gpus", "is forbidden: exceeded quota: gpus")
	f("ValidatingAdmissionPolicy 'x' denied request", "denied request")
	if other := errors.New(user + ` cannot update resource "a" in API group "b" at the cluster scope`); nameRight(other) != other { //nolint:errorlint // it is the same
		t.Error("an error of another kind is changed")
	}
	if nameRight(nil) != nil {
		t.Error("no error is one")
	}
}

// SPDX-License-Identifier: Apache-2.0

package target

import (
	"fmt"
	"regexp"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// missingRight is an error for the lack of a right.
type missingRight struct {
	error
	text string
}

func (e *missingRight) Error() string { return e.text }
func (e *missingRight) Unwrap() error { return e.error }

// refusal is what RBAC says: who may not do what, to which resource of which group, and where.
var refusal = regexp.MustCompile(`User "([^"]+)" cannot (\w+) resource "([^"]+)" in API group "([^"]*)" (in the namespace "[^"]+"|at the cluster scope)`)

// nameRight has the error of a request that RBAC forbids name the right, the binding that gives it, and what to do. Others
// stay as they are.
func nameRight(err error) error {
	m := refusal.FindStringSubmatch(fmt.Sprint(err))
	if m == nil || !apierrors.IsForbidden(err) {
		return err
	}
	role := "gpupilot-controller"
	if strings.HasSuffix(m[3], "/scale") {
		role += ":scale"
	}
	where := strings.ReplaceAll(m[5], `"`, "")
	return &missingRight{err, fmt.Sprintf("%s may not %s %s %s: the binding of ClusterRole %s is missing, or the role has changed; the replicas stay until "+
		"you apply deploy/rbac/controller.yaml of this release, or upgrade the chart", m[1], m[2], strings.TrimSuffix(m[3]+"."+m[4], "."), where, role)}
}

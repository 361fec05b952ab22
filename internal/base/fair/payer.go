// SPDX-License-Identifier: Apache-2.0

package fair

import "strings"

// Payer is whose share of something scarce is used. It can be compared. Only the functions below make one, so that a
// user, or an object of a tenant, cannot pose as another payer. The zero value is nobody in particular.
type Payer struct{ id string } // other than a namespace's it begins with a space

// Namespace is the payer of what the objects of a namespace start.
func Namespace(name string) Payer {
	if strings.HasPrefix(name, " ") { // an unproven claim: the API server knows no such namespace
		name = " namespace" + name
	}
	return Payer{name}
}

// Account is the payer of what a user asks for. For a service account it is the namespace: whoever may create one there
// may create many.
func Account(user string) Payer {
	if rest, ok := strings.CutPrefix(user, "system:serviceaccount:"); ok { // as Kubernetes names them
		namespace, _, _ := strings.Cut(rest, ":")
		return Namespace(namespace)
	}
	return Payer{" user " + user}
}

// Operator is the payer of a kind of work that the operator set up. Its name has a space, unlike a namespace's.
func Operator(work string) Payer { return Payer{" " + work} }

// IsNamespace reports whether a namespace pays.
func (p Payer) IsNamespace() bool { return p.id != "" && p.id[0] != ' ' }

// String is for metrics and errors: the namespace, or what else pays.
func (p Payer) String() string { return strings.TrimPrefix(p.id, " ") }

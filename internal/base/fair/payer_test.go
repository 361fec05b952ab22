// SPDX-License-Identifier: Apache-2.0

package fair

import (
	"strings"
	"testing"
)

// Whatever a namespace, a user or the claim of a token is called, it does not get another kind of payer.
func FuzzPayer(f *testing.F) {
	for _, name := range []string{"ml", "", " rules of files", " user ann", "system:serviceaccount:ml:a", "system:serviceaccount: user ann:a", "  namespace"} {
		f.Add(name, name)
	}
	f.Fuzz(func(t *testing.T, a, b string) {
		namespace, account, work := Namespace(a), Account(b), Operator("rules of files")
		if namespace == work || account == work {
			t.Errorf("%q or %q is the operator", a, b)
		}
		owner, isAccount := strings.CutPrefix(b, "system:serviceaccount:")
		owner, _, _ = strings.Cut(owner, ":")
		if (namespace == account) != (isAccount && a == owner) {
			t.Errorf("the namespace %q and the user %q: %q, %q", a, b, namespace, account)
		}
		if (Namespace(a) == Namespace(b)) != (a == b) {
			t.Errorf("the namespaces %q and %q", a, b)
		}
	})
}

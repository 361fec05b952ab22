// SPDX-License-Identifier: Apache-2.0

package kubeflags

import (
	"strings"
	"testing"
)

func TestSelectors(t *testing.T) {
	got, err := Selectors("a=b; c in (d,e) ;")
	if err != nil || len(got) != 2 || got[0].String() != "a=b" || got[1].String() != "c in (d,e)" {
		t.Errorf("%v, %v", got, err)
	}
	if got, err := Selectors(""); err != nil || len(got) != 0 {
		t.Errorf("of nothing: %v, %v", got, err)
	}
}

func TestChecks(t *testing.T) {
	f := func(check func() error, want string) {
		t.Helper()
		if err := check(); want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	text := func(s string) *string { return &s }
	list := func(s ...string) *[]string { return &s }
	f(IsName(text("ml")), "")
	f(IsName(text("")), "RFC 1123")
	f(IsName(text("a.b")), "must not contain dots")
	f(IsNameOrEmpty(text("")), "")
	f(AreNames(list("a", "B")), `namespace "B": `)
	f(AreNamespaces(list("*"), "*"), "")
	f(AreNamespaces(list("team-*"), "*"), `"team-*" is not the name of a namespace`)
	f(AreResources(list("example.com/gpu")), "")
	f(AreResources(list("gpu")), `"gpu" is not the name of an extended resource`)
	f(IsSelector(text("a in (b)")), "")
	f(IsSelector(text("a in b")), "unable to parse")
	f(AreSelectors(text("a=b;c==")), "")
	f(AreSelectors(text("a=b;c in")), `label selector "c in"`)
	f(IsQuantity(text("512Mi"), 1<<20, 1<<30, "from 1Mi to 1Gi"), "")
	f(IsQuantity(text("2Gi"), 1<<20, 1<<30, "from 1Mi to 1Gi"), "want a number of bytes from 1Mi to 1Gi")
	f(IsQuantity(text("much"), 1<<20, 1<<30, "from 1Mi to 1Gi"), "want a number of bytes from 1Mi to 1Gi")
	if got := Bytes("2G"); got != 2e9 {
		t.Errorf("2G is %d bytes", got)
	}
	if !Selector("a in b").Empty() && Selector("a in b").String() != "" {
		t.Error("a malformed selector selects something")
	}
}

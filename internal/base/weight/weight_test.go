// SPDX-License-Identifier: Apache-2.0

package weight

import (
	"errors"
	"fmt"
	"strings"
	"testing"
)

// What is above its weight says what it has, what is allowed and what to do, and is counted by its kind.
func TestRefusals(t *testing.T) {
	var c Counts
	f := func(err error, want string) {
		t.Helper()
		if got := fmt.Sprint(c.Note(err)); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
	f(Check(Query, "the query has %d bytes", 4096, 4096, "use a recording rule"), "<nil>")
	f(Check(Query, "the query has %d bytes", 4097, 4096, "use a recording rule"), "the query has 4097 bytes; at most 4096 are allowed: use a recording rule")
	f(CheckRegexps(20_001), "the regular expressions of the query expand to 20001 instructions; at most 20000 are allowed: use smaller repetitions and fewer groups")
	f(CheckSelector(64, 8192), "<nil>")
	f(fmt.Errorf("spec: %w", CheckSelector(65, 0)), "spec: the selector has 65 labels and values; at most 64 are allowed: select by one label that these objects have in common")
	f(CheckSelector(64, 8193), "the labels of the selector have 8193 bytes; at most 8192 are allowed: use shorter ones")
	f(errors.New("another"), "another")
	_ = (*Counts)(nil).Note(CheckRegexps(20_001))
	var got []string
	c.Each(func(kind string, n uint64) { got = append(got, fmt.Sprint(kind, " ", n)) })
	if want := "formula 0, query 1, regexp 1, schedule 0, selector 2"; strings.Join(got, ", ") != want {
		t.Errorf("counted are %q, want %s", got, want)
	}
}

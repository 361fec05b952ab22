// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"
)

func TestBadArguments(t *testing.T) {
	var out strings.Builder
	for _, args := range [][]string{{"explain", "a", "b"}, {"explain", "/chat"}, {"nope"}} {
		if err := run(t.Context(), args, &out); err == nil {
			t.Errorf("%v was accepted", args)
		}
	}
}

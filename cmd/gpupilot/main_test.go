// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"testing"

	"github.com/gpupilot/gpupilot/internal/base/buildinfo"
)

func TestVersion(t *testing.T) {
	for _, args := range [][]string{{"version"}, {"--version"}} {
		var out bytes.Buffer
		if err := run(t.Context(), args, &out); err != nil || out.String() != "gpupilot "+buildinfo.Read().String()+"\n" {
			t.Errorf("gpupilot %s: %v, %q", args, err, &out)
		}
	}
}

func TestDisplayName(t *testing.T) {
	for program, want := range map[string]string{
		"/usr/bin/gpupilot": "gpupilot", "/root/.krew/bin/kubectl-gpupilot": "kubectl gpupilot", "bin/kubectl-gpupilot.exe": "kubectl gpupilot",
	} {
		if got := displayName(program); got != want {
			t.Errorf("%s is shown as %s, want %s", program, got, want)
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package buildinfo

import (
	"runtime"
	"runtime/debug"
	"testing"
)

func TestRead(t *testing.T) {
	f := func(version, commit string, recorded *debug.BuildInfo, want string) {
		t.Helper()
		want += ", " + runtime.Version() + ", " + runtime.GOOS + "/" + runtime.GOARCH + ")"
		if got := read(version, commit, recorded).String(); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
	clone := &debug.BuildInfo{Main: debug.Module{Version: "(devel)"}, Settings: []debug.BuildSetting{{Key: "vcs.revision", Value: "abc"}}}
	installed := &debug.BuildInfo{Main: debug.Module{Version: "v0.1.0"}}
	f("v0.2.0-3-gabc", "def", clone, "v0.2.0-3-gabc (commit def")
	f("", "", clone, "unknown (commit abc")
	f("", "", installed, "v0.1.0 (commit unknown")
	f("v0.2.0", "", installed, "v0.2.0 (commit unknown")
	f("", "", nil, "unknown (commit unknown")
}

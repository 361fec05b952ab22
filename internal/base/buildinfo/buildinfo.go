// SPDX-License-Identifier: Apache-2.0

// Package buildinfo says which build of GPUPilot a program is.
package buildinfo

import (
	"cmp"
	"fmt"
	"runtime"
	"runtime/debug"
)

// version and commit are set by the linker, from git describe and git rev-parse. Without it they are Go's own records:
// the module's version after go install, and the commit after go build in a clone.
var version, commit string

// Info is a build.
type Info struct {
	Version  string // a tag such as "v0.1.0", git describe's text between tags, or "unknown"
	Commit   string // hash, or "unknown"
	Go       string // "go1.26.7"
	Platform string // "linux/amd64"
}

// Read returns the build of the program that runs.
func Read() Info {
	recorded, _ := debug.ReadBuildInfo()
	return read(version, commit, recorded)
}

// read prefers what the linker set to what Go recorded, which is nil if Go recorded nothing.
func read(version, commit string, recorded *debug.BuildInfo) Info {
	if recorded == nil {
		recorded = &debug.BuildInfo{}
	}
	for _, s := range recorded.Settings {
		if s.Key == "vcs.revision" {
			commit = cmp.Or(commit, s.Value)
		}
	}
	if recorded.Main.Version != "(devel)" {
		version = cmp.Or(version, recorded.Main.Version)
	}
	return Info{
		Version: cmp.Or(version, "unknown"), Commit: cmp.Or(commit, "unknown"), Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH,
	}
}

// String is the build in one line: "v0.1.0 (commit 3f2a…, go1.26.7, linux/amd64)".
func (i Info) String() string {
	return fmt.Sprintf("%s (commit %s, %s, %s)", i.Version, i.Commit, i.Go, i.Platform)
}

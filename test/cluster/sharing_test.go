// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"regexp"
	"strings"
	"testing"
)

var (
	requirement = regexp.MustCompile(`(?m)^\t([^\s/]+\.[^\s]+) (v\S+)(?: // indirect)?$`)
	makeTags    = regexp.MustCompile(`(?m)^TAGS\s*:=\s*(\S+)$`)
)

// noDebugInfo is the flag of the compiler that the programs, the tests and the control plane need in common.
const noDebugInfo = "-gcflags=all=-dwarf=false"

// The control plane and GPUPilot have half of their packages in common. Go compiles these once for both only if their
// versions and the flags are equal.
func TestControlPlaneSharesModules(t *testing.T) {
	ours, theirs := requirements(t, "../../go.mod"), requirements(t, "../kube/go.mod")
	shared := 0
	for module, version := range theirs {
		our, ok := ours[module]
		if !ok {
			continue
		}
		shared++
		if our != version {
			t.Errorf("%s: GPUPilot has %s, test/kube has %s: if ours is newer, cd test/kube && go get %s@%s, else go get %s@%s",
				module, our, version, module, our, module, version)
		}
	}
	if shared < 50 {
		t.Errorf("only %d modules in common: are both files read?", shared)
	}
}

func TestControlPlaneSharesFlags(t *testing.T) {
	makefile, flags := string(readFile(t, "../../Makefile")), string(readFile(t, "../kube/flags.sh"))
	tags := makeTags.FindStringSubmatch(makefile)
	if tags == nil {
		t.Fatal("the Makefile has no TAGS")
	}
	if !strings.Contains(flags, "-tags="+tags[1]+" ") {
		t.Errorf("test/kube/flags.sh lacks the Makefile's -tags=%s", tags[1])
	}
	for name, text := range map[string]string{"Makefile": makefile, "test/kube/flags.sh": flags} {
		if !strings.Contains(text, noDebugInfo) {
			t.Errorf("%s lacks %s", name, noDebugInfo)
		}
	}
}

// requirements returns the version of each module that a go.mod requires.
func requirements(t *testing.T, path string) map[string]string {
	t.Helper()
	versions := map[string]string{}
	for _, match := range requirement.FindAllStringSubmatch(string(readFile(t, path)), -1) {
		versions[match[1]] = match[2]
	}
	return versions
}

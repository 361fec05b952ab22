// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
)

// build writes the packages of the agent that make all built, and returns their paths: deb, rpm.
func build(t *testing.T) (string, string) {
	t.Helper()
	bin, err := filepath.Abs("../../../../bin")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(bin, agent)); err != nil {
		t.Skipf("%v: make all", err)
	}
	t.Setenv("SOURCE_DATE_EPOCH", "1700000000")
	out := t.TempDir()
	args := []string{"-source", "../../../..", "-programs", bin, "-out", out, "-version", "v1.2.3", "-arch", runtime.GOARCH}
	if err := run(t.Context(), args, &bytes.Buffer{}); err != nil {
		t.Fatal(err)
	}
	rpmArch := map[string]string{"amd64": "x86_64", "arm64": "aarch64"}[runtime.GOARCH]
	return filepath.Join(out, "gpupilot-agent_1.2.3-1_"+runtime.GOARCH+".deb"), filepath.Join(out, "gpupilot-agent-1.2.3-1."+rpmArch+".rpm")
}

func needs(t *testing.T, program string) {
	t.Helper()
	if _, err := exec.LookPath(program); err != nil {
		t.Skip(err)
	}
}

// output is what a command prints; a failure of the command fails the test.
func output(t *testing.T, program string, args ...string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), program, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", program, strings.Join(args, " "), err, out)
	}
	return string(out)
}

func TestReproducible(t *testing.T) {
	debA, rpmA := build(t)
	debB, rpmB := build(t)
	for _, pair := range [][2]string{{debA, debB}, {rpmA, rpmB}} {
		a, errA := os.ReadFile(pair[0])
		b, errB := os.ReadFile(pair[1])
		if err := errors.Join(errA, errB); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(a, b) {
			t.Errorf("two builds of %s differ", filepath.Base(pair[0]))
		}
	}
}

// installed are the package's files and their modes.
var installed = []string{
	"-rw-r--r-- /etc/default/gpupilot-agent",
	"-rwxr-xr-x /usr/bin/gpupilot-agent",
	"-rw-r--r-- /usr/lib/systemd/system/gpupilot-agent.service",
	"-rw-r--r-- /usr/share/doc/gpupilot-agent/copyright",
	"-rw-r--r-- /usr/share/doc/gpupilot-agent/sbom.spdx.json",
}

// The deb installs into an empty system, the agent starts, and after removal and purge nothing is left.
func TestDebInstalls(t *testing.T) {
	needs(t, "dpkg")
	if os.Geteuid() != 0 {
		t.Skip("dpkg installs as root only")
	}
	file, _ := build(t)
	if got := output(t, "dpkg-deb", "--field", file, "Depends"); !strings.HasPrefix(got, "libc6 (>= 2.") {
		t.Errorf("it depends on %q", got)
	}
	root := t.TempDir()
	if err := os.MkdirAll(filepath.Join(root, "var/lib/dpkg/updates"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(root, "var/lib/dpkg/status"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	dpkg := func(args ...string) {
		t.Helper()
		output(t, "dpkg", append([]string{"--root=" + root, "--force-depends", "--force-script-chrootless", "--log=/dev/null"}, args...)...)
	}
	dpkg("--install", file)
	if got := list(t, root); !slices.Equal(got, installed) {
		t.Errorf("installed\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(installed, "\n"))
	}
	if got := output(t, filepath.Join(root, "usr/bin", agent), "--version"); !strings.HasPrefix(got, agent+" ") {
		t.Errorf("--version prints %q", got)
	}
	dpkg("--remove", agent)
	if got := list(t, root); !slices.Equal(got, installed[:1]) {
		t.Errorf("after removal, the changed configuration stays, and nothing else; got %s", got)
	}
	dpkg("--purge", agent)
	if got := list(t, root); got != nil {
		t.Errorf("after the purge there is %s", got)
	}
}

// list is every file below root except for dpkg's own.
func list(t *testing.T, root string) []string {
	t.Helper()
	var found []string
	err := filepath.WalkDir(root, func(file string, d fs.DirEntry, err error) error {
		name := strings.TrimPrefix(file, root)
		switch {
		case err != nil:
			return err
		case name == "/var/lib/dpkg":
			return filepath.SkipDir
		case d.IsDir():
			return nil
		}
		info, err := d.Info()
		if err == nil {
			found = append(found, fmt.Sprintf("%s %s", info.Mode(), name))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func TestRPM(t *testing.T) {
	needs(t, "rpm")
	_, file := build(t)
	var got []string
	for _, line := range strings.Split(strings.TrimSpace(output(t, "rpm", "-qp", "--qf", "[%{FILEMODES:perms} %{FILENAMES}\n]", file)), "\n") {
		if !strings.HasPrefix(line, "d") {
			got = append(got, line)
		}
	}
	if !slices.Equal(got, installed) {
		t.Errorf("it installs\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(installed, "\n"))
	}
	if got := output(t, "rpm", "-qp", "--requires", file); !strings.Contains(got, "glibc >= 2.") {
		t.Errorf("it requires\n%s", got)
	}
	if got := output(t, "rpm", "-qp", "--configfiles", file); !strings.Contains(got, "/etc/default/gpupilot-agent") {
		t.Errorf("its configuration files are\n%s", got)
	}
}

// maxExposure is systemd's verdict on the unit's hardening times ten: 100 is none, and below 30 systemd says OK.
const maxExposure = "30"

func TestUnit(t *testing.T) {
	needs(t, "systemd-analyze")
	text := strings.Replace(string(unit), "/usr/bin/"+agent, "/bin/true", 1) // verify wants a program that is there
	file := filepath.Join(t.TempDir(), agent+".service")
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	if got := output(t, "systemd-analyze", "--man=no", "verify", file); strings.Contains(got, agent+".service:") {
		t.Errorf("systemd-analyze verify: %s", got)
	}
	output(t, "systemd-analyze", "security", "--offline=true", "--threshold="+maxExposure, file)
}

// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// build writes the archive of the program that make all built and returns its folder.
func build(t *testing.T) string {
	t.Helper()
	bin, err := filepath.Abs("../../../../bin")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(bin, program)); err != nil {
		t.Skipf("%v: make all", err)
	}
	t.Setenv("SOURCE_DATE_EPOCH", "1700000000")
	out := t.TempDir()
	args := []string{"-source", "../../../..", "-programs", bin, "-out", out, "-version", "v1.2.3", "-platforms", runtime.GOOS + "-" + runtime.GOARCH}
	if err := run(t.Context(), args, &bytes.Buffer{}); err != nil {
		t.Fatal(err)
	}
	return out
}

func read(t *testing.T, file string) []byte {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func TestReproducible(t *testing.T) {
	a, b := build(t), build(t)
	for _, name := range []string{"SHA256SUMS", "gpupilot.yaml"} {
		if !bytes.Equal(read(t, filepath.Join(a, name)), read(t, filepath.Join(b, name))) {
			t.Errorf("two builds have different %s", name)
		}
	}
}

// The manifest names the archive and its sum, and the archive has the files that the manifest names. The program works
// under the name that krew gives it.
func TestKrew(t *testing.T) {
	dir := build(t)
	var manifest struct {
		Kind string
		Spec struct {
			Version, ShortDescription string
			Platforms                 []struct {
				Selector         struct{ MatchLabels map[string]string }
				URI, SHA256, Bin string
				Files            []struct{ From, To string }
			}
		}
	}
	if err := yaml.Unmarshal(bytes.ReplaceAll(bytes.ReplaceAll(read(t, filepath.Join(dir, "gpupilot.yaml")),
		[]byte("shortDescription"), []byte("shortdescription")), []byte("matchLabels"), []byte("matchlabels")), &manifest); err != nil {
		t.Fatal(err)
	}
	if manifest.Kind != "Plugin" || manifest.Spec.Version != "v1.2.3" || len(manifest.Spec.Platforms) != 1 || len(manifest.Spec.ShortDescription) > 50 {
		t.Fatalf("manifest: %+v", manifest)
	}
	p := manifest.Spec.Platforms[0]
	name := p.URI[strings.LastIndex(p.URI, "/")+1:]
	if got, want := string(read(t, filepath.Join(dir, "SHA256SUMS"))), p.SHA256+"  "+name+"\n"; got != want {
		t.Errorf("SHA256SUMS is %q, want %q", got, want)
	}
	command := func(program string, args ...string) string {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), program, args...)
		cmd.Dir = dir
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s %s: %v\n%s", program, args, err, out)
		}
		return string(out)
	}
	if _, err := exec.LookPath("sha256sum"); err == nil {
		command("sha256sum", "--check", "SHA256SUMS")
	}
	command("tar", "-xzf", name)
	for _, f := range p.Files {
		if _, err := os.Stat(filepath.Join(dir, f.From)); err != nil {
			t.Error(err)
		}
	}
	plugin := filepath.Join(t.TempDir(), "kubectl-gpupilot")
	if err := os.Symlink(filepath.Join(dir, p.Bin), plugin); err != nil {
		t.Fatal(err)
	}
	if got := command(plugin, "version"); !strings.HasPrefix(got, "gpupilot ") {
		t.Errorf("version prints %q", got)
	}
	if got := command(plugin, "explain", "--help"); !strings.Contains(got, "kubectl gpupilot explain") {
		t.Errorf("the help does not show the plugin's name:\n%s", got)
	}
}

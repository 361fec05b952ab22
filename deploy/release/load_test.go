// SPDX-License-Identifier: Apache-2.0

// Package release tests load.sh.
package release

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// load.sh finds the cluster of this machine, or says what to do.
func TestLoad(t *testing.T) {
	archives := t.TempDir()
	archive := filepath.Join(archives, "gpupilot-agent.tar")
	if err := os.WriteFile(archive, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	const works, fails = "exit 0", "exit 1"
	// Each command prints what it is asked for, and then runs its script; kubectl prints its context.
	f := func(what string, commands map[string]string, folder, into, want string, wantErr bool) {
		t.Helper()
		bin := t.TempDir()
		for name, script := range commands {
			text := "#!/bin/sh\necho " + name + " \"$@\"\n" + script + "\n"
			if name == "kubectl" {
				text = "#!/bin/sh\necho " + script + "\n"
			}
			if err := os.WriteFile(filepath.Join(bin, name), []byte(text), 0o700); err != nil { //nolint:gosec // a command
				t.Fatal(err)
			}
		}
		for _, name := range []string{"bash", "cat", "basename"} {
			path, err := exec.LookPath(name)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.Symlink(path, filepath.Join(bin, name)); err != nil {
				t.Fatal(err)
			}
		}
		cmd := exec.CommandContext(t.Context(), filepath.Join(bin, "bash"), "load.sh", folder, into)
		cmd.Env = []string{"PATH=" + bin}
		out, err := cmd.CombinedOutput()
		if (err != nil) != wantErr || !strings.Contains(string(out), want) {
			t.Errorf("%s: error %v, output:\n%swant %q", what, err, out, want)
		}
	}
	f("containerd", map[string]string{"ctr": works}, archives, "", "ctr --namespace k8s.io images import "+archive+"\n", false)
	f("k3s has a containerd of its own", map[string]string{"k3s": works, "ctr": works}, archives, "", "k3s ctr --namespace k8s.io images import "+archive+"\n", false)
	f("ctr without rights, and kind", map[string]string{"ctr": fails, "kind": works}, archives, "", "kind load image-archive "+archive+"\n", false)
	f("minikube", map[string]string{"minikube": works}, archives, "", "minikube image load "+archive+"\n", false)
	f("a choice", map[string]string{"ctr": works, "minikube": works}, archives, "minikube", "minikube image load "+archive+"\n", false)
	f("kubectl's kind cluster", map[string]string{"kubectl": "kind-a", "kind": works, "ctr": works}, archives, "", "kind load image-archive "+archive+" --name a\n", false)
	f("kubectl's minikube", map[string]string{"kubectl": "minikube", "minikube": works, "ctr": works}, archives, "", "minikube image load "+archive+"\n", false)
	f("nothing", map[string]string{"ctr": fails}, archives, "", "--set global.imageRegistry=registry.example", true)
	f("a name that is none", map[string]string{"ctr": works}, archives, "docker", "to the name docker", true)
	f("no archive", map[string]string{"ctr": works}, t.TempDir(), "", "run make images first", true)
}

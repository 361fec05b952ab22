// SPDX-License-Identifier: Apache-2.0

//go:build e2e && linux

package chart

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpupilot/gpupilot/test/inventory"
)

// buildCommands builds the real helm and kubectl from their modules, and puts them first on the PATH.
func buildCommands(t *testing.T) {
	t.Helper()
	dir := t.TempDir()
	cmd := exec.CommandContext(t.Context(), "go", "build", "-ldflags=-s -w", "-o", dir, "helm.sh/helm/v4/cmd/helm", "./kubectl")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build helm and kubectl: %v\n%s", err, out)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
}

// pages runs the commands of README.md and of docs/uninstall.md word for word: the images are built, loaded, and run, and
// nothing is left.
func (s *site) pages() {
	s.t.Helper()
	s.run(commands(s.t, "README.md", "## Install it"))
	s.eventually("README: the GPUExporter shows its node", func() error {
		if out := s.run("kubectl get gpuexporters"); !regexp.MustCompile(`(?m)^default +1 +1 `).MatchString(out) {
			return errors.New(out)
		}
		return nil
	})
	var events corev1.EventList
	must(s.t, s.Client.List(s.ctx, &events))
	for i := range events.Items {
		if e := &events.Items[i]; e.Reason == "NoGPUNode" {
			s.t.Errorf("a Warning about the GPUExporter: %s: %s", e.Reason, e.Message)
		}
	}
	s.eventually("README: the controllers are ready", func() error { return s.podsReady(2, namespace, controllerPods) })
	s.eventually("README: the agent is ready", func() error { return s.podsReady(1, namespace, agentPods) })
	s.run(commands(s.t, "docs/uninstall.md", "# Uninstall"))
	s.eventually("docs/uninstall.md: nothing is left", func() error {
		return inventory.Left(s.ctx, s.REST, s.before, nodeLease)
	})
}

// commands is the first block of commands behind a heading.
func commands(t *testing.T, page, heading string) string {
	t.Helper()
	_, text, found := strings.Cut(string(readFile(t, root, page)), heading+"\n")
	var block []string
	for line := range strings.Lines(text) {
		command, ok := strings.CutPrefix(line, "    ")
		switch {
		case ok:
			block = append(block, command)
		case len(block) > 0:
			return strings.Join(block, "")
		}
	}
	t.Fatalf("%s: no commands behind %q (found: %v)", page, heading, found)
	return ""
}

// run runs commands as a user of the node would, in the checkout, and returns what they print.
func (s *site) run(script string) string {
	s.t.Helper()
	repository, err := filepath.Abs(root)
	must(s.t, err)
	cmd := exec.CommandContext(s.ctx, "bash", "-euxo", "pipefail", "-c", script)
	cmd.Dir = repository
	cmd.Env = append(os.Environ(), s.node.CtrEnv()...)
	cmd.Env = append(cmd.Env, "KUBECONFIG="+s.Cluster.Kubeconfig(), "ARCH="+runtime.GOARCH, "INTO=",
		"HELM_CACHE_HOME=/run/install/helm", "HELM_CONFIG_HOME=/run/install/helm", "HELM_DATA_HOME=/run/install/helm")
	out, err := cmd.CombinedOutput()
	if err != nil {
		s.t.Fatalf("%v\n%s", err, out)
	}
	s.log("%s", out)
	return string(out)
}

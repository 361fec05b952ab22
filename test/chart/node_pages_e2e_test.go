// SPDX-License-Identifier: Apache-2.0

//go:build e2e && linux

package chart

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gpupilot/gpupilot/test/e2e/realnode"
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

// A user's vLLM server. One GPU for each replica is not asked for: the node has fewer.
const vllm = `
apiVersion: v1
kind: Namespace
metadata: {name: llm}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: chat, namespace: llm}
spec:
  selector: {matchLabels: {app: chat}}
  template:
    metadata: {labels: {app: chat}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
      - name: vllm
        image: ` + realnode.PayloadImage + `
        imagePullPolicy: Never
        args: [vllm]
        ports: [{containerPort: 8000}]
        readinessProbe: {httpGet: {path: /metrics, port: 8000}, periodSeconds: 1}
`

// The requests in flight of the only replica, and the replicas that they need while nothing is learned.
const (
	vllmRequests = "20"
	vllmReplicas = 2
)

// pages runs the commands of README.md, docs/quickstart.md and docs/upgrade.md#uninstall word for word: the images are built,
// loaded, and run, a vLLM server is scaled, and nothing is left.
func (s *site) pages() {
	s.t.Helper()
	must(s.t, s.Apply(s.ctx, []byte(vllm)))
	s.eventually("the vLLM server runs", func() error { return s.podsReady(1, "llm", nil) })
	began := time.Now()
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
	s.quickstart(began)
	s.run(commands(s.t, "docs/upgrade.md", "## Uninstall"))
	s.eventually("docs/upgrade.md: nothing is left", func() error {
		return leftSince(s.ctx, s.REST, s.before, nodeLease)
	})
}

// quickstart follows docs/quickstart.md after an installation that began at a time.
func (s *site) quickstart(began time.Time) {
	s.t.Helper()
	const page = "docs/quickstart.md"
	// The node has no GPU: its agent simulates those that its device plugin offers.
	s.run("helm upgrade gpupilot deploy/chart --namespace gpupilot-system --reset-then-reuse-values --set gpuExporter.spec.backend=sim")
	s.eventually("the node has a GPU metric", func() error {
		clients, err := kubernetes.NewForConfig(s.REST)
		if err != nil {
			return err
		}
		return clients.RESTClient().Get().AbsPath("/apis/custom.metrics.k8s.io/v1beta2/nodes/" + nodeName + "/DCGM_FI_DEV_GPU_UTIL").Do(s.ctx).Error()
	})
	metric := time.Since(began)

	var pods corev1.PodList
	must(s.t, s.Client.List(s.ctx, &pods, client.InNamespace("llm")))
	req, err := http.NewRequestWithContext(s.ctx, http.MethodPut, "http://"+pods.Items[0].Status.PodIP+":8000/running?n="+vllmRequests, http.NoBody)
	must(s.t, err)
	resp, err := http.DefaultClient.Do(req)
	must(s.t, err)
	must(s.t, resp.Body.Close())

	s.run(commands(s.t, page, "**2. Advise.**"))
	s.eventually("quickstart: the advice", func() error {
		if out := s.run("kubectl -n llm get gpuautoscalers"); !regexp.MustCompile(`(?m)^chat +chat +1 +16 +1 +2 `).MatchString(out) {
			return errors.New(out)
		}
		return nil
	})
	install := strings.Split(strings.TrimSpace(commands(s.t, page, "**1. Install**")), "\n")
	if out := s.run(install[len(install)-1] + "\ngpupilot explain llm/chat"); !strings.Contains(out, "vllm requests: ") {
		s.t.Errorf("gpupilot explain says\n%s", out)
	}
	scale, watches := strings.CutSuffix(commands(s.t, page, "**4. Scale.**"), " --watch\n")
	if !watches {
		s.t.Errorf("%s: the last command of step 4 does not watch:\n%s", page, scale)
	}
	s.run(scale)
	s.eventually("quickstart: it scales", func() error { return s.chatHas(vllmReplicas) })
	s.log("from README's first command to the first GPU metric %.1f s, to the first scale %.1f s", metric.Seconds(), time.Since(began).Seconds())
	s.run(commands(s.t, page, "**5. Go back.**"))
	s.eventually("quickstart: the replicas are set by hand", func() error { return s.chatHas(4) })
	s.run("kubectl delete namespace llm")
}

// chatHas returns an error unless the vLLM server has n replicas.
func (s *site) chatHas(n int32) error {
	got, err := s.Replicas(s.ctx, "llm", "chat")
	if err == nil && got != n {
		err = fmt.Errorf("it has %d replicas", got)
	}
	return err
}

// commands is the first block of commands behind a heading, or behind a text.
func commands(t *testing.T, page, heading string) string {
	t.Helper()
	_, text, found := strings.Cut(string(readFile(t, root, page)), heading)
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

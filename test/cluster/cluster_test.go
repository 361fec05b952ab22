// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// binary is the control plane's binary; the test is skipped where it has not been built.
func binary(t *testing.T) string {
	t.Helper()
	path, err := FindBinary()
	if errors.Is(err, ErrNoBinary) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return path
}

func startCluster(t *testing.T, cfg Config) *Cluster {
	t.Helper()
	cfg.Binary = binary(t)
	cfg.Log = slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug}))
	c, err := Start(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Stop)
	return c
}

// The whole life of a control plane, in the order of the facts: one start serves them all.
func TestCluster(t *testing.T) {
	c := startCluster(t, Config{HPASyncPeriod: 200 * time.Millisecond, HPADownscaleStabilization: 5 * time.Second})

	t.Run("calls itself by its version", func(t *testing.T) {
		var version struct{ GitVersion string }
		call(t, c, http.MethodGet, "/version", nil, &version)
		if version.GitVersion != "v1.37.1" {
			t.Errorf("version %q, want v1.37.1", version.GitVersion)
		}
	})
	t.Run("controllers make a deployment's pods", func(t *testing.T) { deploymentMakesPods(t, c) })
	t.Run("scheduler binds a pod to a node that has room", func(t *testing.T) { podIsScheduled(t, c) })
	t.Run("nodes may only be themselves", func(t *testing.T) { nodeIsRestricted(t, c) })
	t.Run("aggregated api serves on loopback", func(t *testing.T) { aggregatedAPIServesOnLoopback(t, c) })
	t.Run("api server restarts with its state", func(t *testing.T) {
		if err := c.RestartAPIServer(t.Context()); err != nil {
			t.Fatal(err)
		}
		call(t, c, http.MethodGet, "/api/v1/namespaces/demo", nil, nil)
		if err := c.Err(); err != nil {
			t.Errorf("a wanted restart counts as a failure: %v", err)
		}
	})
	t.Run("a component that dies is told of", func(t *testing.T) {
		if err := syscall.Kill(c.PIDs()[Scheduler], syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		select {
		case <-c.Failed():
		case <-time.After(5 * time.Minute):
			t.Fatal("nobody noticed that the scheduler ended")
		}
		if err := c.Err(); err == nil || !strings.HasPrefix(err.Error(), Scheduler) {
			t.Errorf("error %v does not name the scheduler", err)
		}
	})
	t.Run("stop leaves nothing", func(t *testing.T) {
		pids := c.PIDs()
		if want := []string{Etcd, APIServer, ControllerManager}; len(pids) != len(want) {
			t.Errorf("running: %v, want %v", pids, want)
		}
		began := time.Now()
		c.Stop()
		t.Logf("stopped in %s", time.Since(began).Round(time.Millisecond))
		for name, pid := range pids {
			if alive(pid) {
				t.Errorf("%s (pid %d) is still there", name, pid)
			}
		}
		if _, err := os.Stat(c.Dir()); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("directory %s is still there (%v)", c.Dir(), err)
		}
	})
}

func deploymentMakesPods(t *testing.T, c *Cluster) {
	call(t, c, http.MethodPost, "/api/v1/namespaces", `{"metadata": {"name": "demo"}}`, nil)
	call(t, c, http.MethodPost, "/apis/apps/v1/namespaces/demo/deployments", `{
		"metadata": {"name": "web"},
		"spec": {"replicas": 3, "selector": {"matchLabels": {"app": "web"}}, "template": {
			"metadata": {"labels": {"app": "web"}},
			"spec": {"containers": [{"name": "web", "image": "none", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]}}}}`, nil)
	var pods struct{ Items []struct{} }
	eventually(t, func() error {
		call(t, c, http.MethodGet, "/api/v1/namespaces/demo/pods?labelSelector=app%3Dweb", nil, &pods)
		if len(pods.Items) != 3 {
			return fmt.Errorf("%d pods, want 3", len(pods.Items))
		}
		return nil
	})
}

func podIsScheduled(t *testing.T, c *Cluster) {
	call(t, c, http.MethodPost, "/api/v1/nodes", `{"metadata": {"name": "n1"}}`, nil)
	call(t, c, http.MethodPatch, "/api/v1/nodes/n1/status", `{"status": {
		"capacity":    {"cpu": "8", "memory": "16Gi", "pods": "110", "nvidia.com/gpu": "2"},
		"allocatable": {"cpu": "8", "memory": "16Gi", "pods": "110", "nvidia.com/gpu": "2"},
		"conditions": [{"type": "Ready", "status": "True"}]}}`, nil)
	var pods struct {
		Items []struct{ Spec struct{ NodeName string } }
	}
	eventually(t, func() error {
		call(t, c, http.MethodGet, "/api/v1/namespaces/demo/pods?fieldSelector=spec.nodeName%3Dn1", nil, &pods)
		if len(pods.Items) != 2 {
			return fmt.Errorf("%d pods on a node with 2 GPUs, want 2", len(pods.Items))
		}
		return nil
	})
}

func nodeIsRestricted(t *testing.T, c *Cluster) {
	client, err := c.pki.httpClient("system:node:n1", "system:nodes")
	if err != nil {
		t.Fatal(err)
	}
	f := func(node string, want int) {
		t.Helper()
		body := strings.NewReader(`{"metadata": {"labels": {"seen": "yes"}}}`)
		request, err := http.NewRequestWithContext(t.Context(), http.MethodPatch, c.URL()+"/api/v1/nodes/"+node, body)
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("Content-Type", "application/merge-patch+json")
		response, err := client.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		if response.StatusCode != want {
			t.Errorf("node n1 patches node %s: %s, want %d", node, response.Status, want)
		}
	}
	call(t, c, http.MethodPost, "/api/v1/nodes", `{"metadata": {"name": "n2"}}`, nil)
	f("n1", http.StatusOK)
	f("n2", http.StatusForbidden)
}

func TestStartSaysWhichComponentFailedAndWhy(t *testing.T) {
	_, err := Start(t.Context(), Config{Binary: binary(t), ExtraArgs: map[string][]string{APIServer: {"--no-such-flag"}}})
	if err == nil {
		t.Fatal("started with a flag that does not exist")
	}
	for _, want := range []string{APIServer + ": ", "unknown flag: --no-such-flag"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error does not say %q: %v", want, err)
		}
	}
}

func TestStartEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	dir := t.TempDir()
	_, err := Start(ctx, Config{Binary: binary(t), Dir: dir})
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error %v, want %v", err, context.DeadlineExceeded)
	}
	if _, err := os.Stat(dir); err != nil {
		t.Errorf("the caller's own directory is gone: %v", err)
	}
}

func TestTakenPortIsToldFromOtherFailures(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	_, port, err := net.SplitHostPort(listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	_, err = startOnce(t.Context(), Config{
		Binary: binary(t), BindAddress: "127.0.0.1", Log: slog.New(slog.DiscardHandler),
		ExtraArgs: map[string][]string{APIServer: {"--secure-port=" + port}},
	})
	if !errors.Is(err, errPortTaken) {
		t.Errorf("error %v, want %v", err, errPortTaken)
	}
}

func TestEnvironment(t *testing.T) {
	got := environment([]string{"PATH=/bin", "ETCD_NAME=other", "HTTPS_PROXY=http://proxy:3128", "HOME=/root", "PATHS=no"})
	if want := []string{"PATH=/bin", "HOME=/root"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestStartWithoutBinary(t *testing.T) {
	_, err := Start(t.Context(), Config{Binary: filepath.Join(t.TempDir(), "kube")})
	if !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), Etcd) {
		t.Errorf("error %v", err)
	}
}

func TestFindBinary(t *testing.T) {
	t.Setenv(BinaryEnv, "")
	checkout := t.TempDir()
	inside := filepath.Join(checkout, "test", "e2e")
	if err := os.MkdirAll(inside, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Chdir(inside)
	if path, err := FindBinary(); !errors.Is(err, ErrNoBinary) {
		t.Errorf("nothing built: %q, %v", path, err)
	}
	built := filepath.Join(checkout, "bin", "kube")
	if err := errors.Join(os.Mkdir(filepath.Dir(built), 0o755), os.WriteFile(built, nil, 0o755)); err != nil {
		t.Fatal(err)
	}
	if path, err := FindBinary(); path != built || err != nil {
		t.Errorf("built: %q, %v", path, err)
	}
	t.Setenv(BinaryEnv, "/elsewhere/kube")
	if path, err := FindBinary(); path != "/elsewhere/kube" || err != nil {
		t.Errorf("named by the environment: %q, %v", path, err)
	}
}

// orphanEnv makes this test's own program start a cluster, say its pids and wait to be killed.
const orphanEnv = "GPUPILOT_CLUSTER_TEST_ORPHAN"

func TestKillLeavesNoProcess(t *testing.T) {
	if dir := os.Getenv(orphanEnv); dir != "" {
		c, err := Start(t.Context(), Config{Binary: binary(t), Dir: dir, BindAddress: "127.0.0.2"})
		if err != nil {
			t.Fatal(err)
		}
		for _, pid := range c.PIDs() {
			fmt.Println("pid", pid)
		}
		fmt.Println("started")
		select {}
	}
	path := binary(t)
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), program, "-test.run=^TestKillLeavesNoProcess$", "-test.timeout=10m")
	cmd.Env = append(os.Environ(), orphanEnv+"="+t.TempDir(), BinaryEnv+"="+path)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	pids := readPIDs(t, out)
	if len(pids) != 4 {
		t.Errorf("%d processes, want 4", len(pids))
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err == nil {
		t.Error("a killed program ended well")
	}
	eventually(t, func() error {
		if left := slices.DeleteFunc(slices.Clone(pids), func(pid int) bool { return !alive(pid) }); len(left) > 0 {
			return fmt.Errorf("still there: %v", left)
		}
		return nil
	})
}

func readPIDs(t *testing.T, out io.Reader) []int {
	t.Helper()
	var pids []int
	var text bytes.Buffer
	chunk := make([]byte, 1024)
	for !strings.Contains(text.String(), "started\n") {
		n, err := out.Read(chunk)
		text.Write(chunk[:n])
		if err != nil {
			t.Fatalf("the program ended early: %s", text.String())
		}
	}
	for line := range strings.Lines(text.String()) {
		if number, ok := strings.CutPrefix(strings.TrimSpace(line), "pid "); ok {
			pid, err := strconv.Atoi(number)
			if err != nil {
				t.Fatal(err)
			}
			pids = append(pids, pid)
		}
	}
	return pids
}

// alive reports whether a process runs. A zombie, which waits for its parent, does not.
func alive(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	_, state, _ := strings.Cut(string(stat), ") ")
	return !strings.HasPrefix(state, "Z") && !strings.HasPrefix(state, "X")
}

// call makes a request as the administrator and reads the answer into into; anything but success ends the test.
func call(t *testing.T, c *Cluster, method, path string, body, into any) {
	t.Helper()
	var text string
	if body != nil {
		text = body.(string)
	}
	request, err := http.NewRequestWithContext(t.Context(), method, c.URL()+path, strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Content-Type", "application/json")
	if method == http.MethodPatch {
		request.Header.Set("Content-Type", "application/strategic-merge-patch+json")
	}
	response, err := c.HTTPClient().Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	if response.StatusCode/100 != 2 {
		t.Fatalf("%s %s: %s: %s", method, path, response.Status, answer)
	}
	if into == nil {
		return
	}
	if err := json.Unmarshal(answer, into); err != nil {
		t.Fatalf("%s %s: %v", method, path, err)
	}
}

// eventually polls a real process; it gives up after five minutes.
func eventually(t *testing.T, check func() error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for {
		err := check()
		if err == nil {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatal(err)
		case <-tick.C:
		}
	}
}

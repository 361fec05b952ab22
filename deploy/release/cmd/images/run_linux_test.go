// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"
)

// chrooted is a command that runs in the image's files, as the image's user.
func chrooted(ctx context.Context, root string, user uint32, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Path, cmd.Err = args[0], nil // the path is one in root
	cmd.Dir, cmd.Env = "/", []string{"PATH=/usr/bin"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: root, Credential: &syscall.Credential{Uid: user, Gid: user}}
	return cmd
}

func needsRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("chroot needs root")
	}
}

// The agent runs on nothing but the image's files, and serves GPUs.
func TestAgentRuns(t *testing.T) {
	agent := images(t).images["gpupilot-agent"]
	args := []string{"/usr/bin/gpupilot-agent", "--backend", "sim", "--address", "127.0.0.1:0"}
	t.Run("native", func(t *testing.T) {
		needsRoot(t)
		o := agent[runtime.GOARCH]
		scrape(t, chrooted(t.Context(), o.unpack(t), 0, args...))
	})
	t.Run("arm64", func(t *testing.T) {
		emulator, err := exec.LookPath("qemu-aarch64")
		o, ok := agent["arm64"]
		if err != nil || !ok {
			t.Skip("it needs qemu-user, and the agent that make arm64 builds")
		}
		root := o.unpack(t)
		args := append([]string{"-L", root, filepath.Join(root, args[0])}, args[1:]...)
		scrape(t, exec.CommandContext(t.Context(), emulator, args...))
	})
}

var served = regexp.MustCompile(`msg=serving address=(\S+)`)

// scrape starts the agent and reads its page.
func scrape(t *testing.T, agent *exec.Cmd) {
	t.Helper()
	output, err := agent.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	agent.Stderr = os.Stderr
	if err := agent.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = agent.Process.Signal(syscall.SIGTERM)
		if err := agent.Wait(); err != nil {
			t.Errorf("the agent's end: %v", err)
		}
	}()
	lines := bufio.NewScanner(output)
	var address string
	for address == "" && lines.Scan() {
		if m := served.FindStringSubmatch(lines.Text()); m != nil {
			address = m[1]
		}
	}
	if address == "" {
		t.Fatalf("the agent did not start: %v", lines.Err())
	}
	for lines.Scan() && !strings.Contains(lines.Text(), "index=7") { // the last simulated GPU is found
	}
	go func() { _, _ = io.Copy(io.Discard, output) }()
	for deadline := time.Now().Add(time.Minute); !strings.Contains(get(t, "http://"+address+"/metrics"), `DCGM_FI_DEV_GPU_UTIL{gpu="7"`); {
		if time.Now().After(deadline) {
			t.Fatal("no series of the last GPU within a minute")
		}
	}
}

func get(t *testing.T, url string) string {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}

// The static programs run as the image's user.
func TestStaticProgramsRun(t *testing.T) {
	needsRoot(t)
	f := images(t)
	for _, program := range []string{"gpupilot-controller", "gpupilot"} {
		o := f.images[program][runtime.GOARCH]
		out, err := chrooted(t.Context(), o.unpack(t), 65532, "/usr/bin/"+program, "--version").Output()
		if err != nil || !strings.HasPrefix(string(out), program) {
			t.Errorf("%s --version: %v, %q", program, err, out)
		}
	}
}

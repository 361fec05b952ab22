// SPDX-License-Identifier: Apache-2.0

//go:build e2e && linux

// Package agent tests the agent's whole program where that needs a process of
// its own.
package agent

import (
	"context"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gpupilot/gpupilot/test/agentrig"
)

const (
	bin      = "../../../bin"
	patience = 5 * time.Minute
)

func start(t *testing.T, cfg agentrig.Config) *agentrig.Agent {
	t.Helper()
	if cfg.Binary == "" {
		cfg.Binary = filepath.Join(bin, "gpupilot-agent")
	}
	a, err := agentrig.Start(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := a.Stop(); err != nil {
			t.Errorf("%v; the agent said:\n%s", err, a.Log())
		}
	})
	return a
}

// shows waits for a page that has all of these, and none that has a ! before it.
func shows(t *testing.T, a *agentrig.Agent, want ...string) {
	t.Helper()
	err := a.Await(t.Context(), patience, func(page string) bool {
		for _, w := range want {
			if without, not := strings.CutPrefix(w, "!"); strings.Contains(page, without) == not {
				return false
			}
		}
		return true
	})
	if err != nil {
		t.Fatalf("%q: %v", want, err)
	}
}

// -m takes the collectors from a ConfigMap and follows it.
func TestCollectorsOfAConfigMap(t *testing.T) {
	api, err := agentrig.StartAPIServer(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(api.Close)
	set := func(metrics string) {
		api.SetConfigMap("monitoring", "gpu-metrics", map[string]string{"metrics": metrics})
	}
	set("DCGM_FI_DEV_GPU_UTIL, gauge, Utilisation.\n")
	a := start(t, agentrig.Config{
		Args: append(api.Args(), "--backend", "sim", "--collect-interval", "100", "-m", "monitoring:gpu-metrics"), Env: api.Env(),
	})
	shows(t, a, "\nDCGM_FI_DEV_GPU_UTIL{", "!DCGM_FI_DEV_FB_USED")
	set("DCGM_FI_DEV_GPU_UTIL, gauge, Utilisation.\nDCGM_FI_DEV_FB_USED, gauge, Memory.\nnonsense\n")
	shows(t, a, "\nDCGM_FI_DEV_GPU_UTIL{", "\nDCGM_FI_DEV_FB_USED{", "gpupilot_collectors_invalid_lines 1\n")
	set("")
	shows(t, a, "\nDCGM_FI_DEV_FB_USED{", `gpupilot_config_reloads_total{result="failure"} 1`)
	set("DCGM_FI_DEV_FB_USED, gauge, Memory.\n")
	shows(t, a, "!DCGM_FI_DEV_GPU_UTIL{", "\nDCGM_FI_DEV_FB_USED{")
}

// With --web-systemd-socket the agent serves on the socket that it inherits.
func TestSystemdSocket(t *testing.T) {
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	socket, err := l.(*net.TCPListener).File()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = socket.Close() }()
	a := start(t, agentrig.Config{Args: []string{"--backend", "sim", "--web-systemd-socket"}, Files: []*os.File{socket}})
	if want := "http://" + l.Addr().String(); a.URL != want {
		t.Errorf("it serves at %s, want %s", a.URL, want)
	}
	shows(t, a, "\nDCGM_FI_DEV_GPU_UTIL{")
}

// A socket that systemd handed to another process is not taken.
func TestSystemdSocketOfAnother(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(bin, "gpupilot-agent"), "--backend", "sim", "--web-systemd-socket")
	cmd.Env = append(os.Environ(), "LISTEN_PID=1", "LISTEN_FDS=1")
	if out, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(out), "--web-systemd-socket") || !strings.Contains(string(out), "LISTEN_PID") {
		t.Errorf("%v: %s", err, out)
	}
}

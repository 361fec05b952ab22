// SPDX-License-Identifier: Apache-2.0

package stack

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/gpupilot/gpupilot/test/cluster"
)

// service makes the aggregated API reachable: the API server dials localhost.
const service = `
apiVersion: v1
kind: Service
metadata: {name: gpupilot-controller, namespace: ` + Namespace + `}
spec: {type: ExternalName, externalName: localhost}
`

// StartController starts the controller and returns when it is ready.
func (s *Stack) StartController(ctx context.Context) error {
	if s.ControllerURL == "" {
		const loopback = "127.0.0.1"
		page, err := cluster.FreePort(loopback)
		if err != nil {
			return err
		}
		if s.securePort, err = cluster.FreePort(loopback); err != nil {
			return err
		}
		s.ControllerURL = "http://" + net.JoinHostPort(loopback, strconv.Itoa(page))
		if err := s.Apply(ctx, []byte(service)); err != nil {
			return err
		}
	}
	kubeconfig, err := s.Cluster.KubeconfigFor(controllerUser, "system:serviceaccounts", "system:serviceaccounts:"+Namespace)
	if err != nil {
		return err
	}
	args := append([]string{
		"--kubeconfig", kubeconfig, "--namespace", Namespace,
		"--address", strings.TrimPrefix(s.ControllerURL, "http://"),
		"--secure-port", strconv.Itoa(s.securePort), "--service-port", strconv.Itoa(s.securePort),
	}, s.cfg.ControllerArgs...)
	controller, err := startProcess(filepath.Join(s.cfg.Root, "bin", "gpupilot-controller"), args, s.ControllerLog())
	if err != nil {
		return fmt.Errorf("start the controller: %w", err)
	}
	s.controller = controller
	err = Eventually(ctx, startTimeout, func() error {
		select {
		case <-s.controller.done:
			return nil // noticed below
		default:
		}
		return probe(ctx, s.ControllerURL+"/readyz")
	})
	select {
	case <-s.controller.done:
		err = errors.New("it ended")
	default:
	}
	if err != nil {
		return fmt.Errorf("start the controller: %w\n%s", err, tail(s.ControllerLog()))
	}
	return nil
}

// StopController asks the controller to end and waits for it.
func (s *Stack) StopController() { s.endController(syscall.SIGTERM) }

// KillController ends the controller as a crash would.
func (s *Stack) KillController() { s.endController(syscall.SIGKILL) }

func (s *Stack) endController(sig syscall.Signal) {
	if s.controller == nil {
		return
	}
	s.controller.end(sig)
	s.controller = nil
}

// ControllerLog is the file that the controller's output goes to.
func (s *Stack) ControllerLog() string { return filepath.Join(s.dir, "controller.log") }

func probe(ctx context.Context, url string) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("GET %s: %s", url, resp.Status)
	}
	return nil
}

func tail(path string) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	return string(b[max(0, len(b)-2000):])
}

// process is a child that dies with us.
type process struct {
	os   *os.Process
	done chan struct{}
}

func startProcess(path string, args []string, log string) (*process, error) {
	out, err := os.OpenFile(log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(path, args...)
	cmd.Stdout, cmd.Stderr = out, out
	// A group of its own: a Ctrl-C is for us to pass on. And should we be
	// killed, the kernel kills it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	p := &process{done: make(chan struct{})}
	started := make(chan error)
	go func() {
		runtime.LockOSThread() // the death signal goes with the thread that started it
		defer func() { _ = out.Close() }()
		err := cmd.Start()
		p.os = cmd.Process
		started <- err
		if err == nil {
			_ = cmd.Wait() // how it ended is in its log
			close(p.done)
		}
	}()
	return p, <-started
}

// end sends sig, then SIGKILL after 30 s, and waits.
func (p *process) end(sig syscall.Signal) {
	_ = p.os.Signal(sig) // it may have ended
	t := time.NewTimer(30 * time.Second)
	defer t.Stop()
	select {
	case <-p.done:
	case <-t.C:
		_ = p.os.Kill()
		<-p.done
	}
}

// SPDX-License-Identifier: Apache-2.0

package stack

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
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

// StartController starts the controller and returns when it is ready. args come after
// Config.ControllerArgs, until the next start.
func (s *Stack) StartController(ctx context.Context, args ...string) error {
	chosen := s.ControllerURL != ""
	if _, err := s.ServicePort(); err != nil {
		return err
	}
	if s.cfg.Install == nil {
		if err := errors.Join(s.Apply(ctx, []byte(service)), s.grant(ctx, args)); err != nil {
			return err
		}
	}
	if _, err := s.runController(ctx, s.ControllerURL, s.securePort, s.ControllerLog(), s.controller.Store, args...); err != nil {
		s.controller.Store(nil)
		if !chosen && strings.Contains(err.Error(), portTaken) {
			s.ControllerURL = "" // another process took a port since
			return s.StartController(ctx, args...)
		}
		return fmt.Errorf("start the controller: %w", err)
	}
	return nil
}

// RestartController ends the controller and starts it with other arguments instead of Config.ControllerArgs, now and later.
func (s *Stack) RestartController(ctx context.Context, args ...string) error {
	s.StopController()
	s.cfg.ControllerArgs = args
	return s.StartController(ctx)
}

// ServicePort returns the port of the APIServices: the controller's secure port on this machine. It chooses the
// controller's addresses, if they are not chosen yet.
func (s *Stack) ServicePort() (int, error) {
	if s.ControllerURL == "" {
		var err error
		if s.ControllerURL, s.securePort, err = controllerAddresses(); err != nil {
			return 0, err
		}
		s.servicePort = s.securePort
	}
	return s.servicePort, nil
}

// Standby is a second replica of the controller, without a Service.
type Standby struct {
	URL     string // of its page, JSON and metrics
	Log     string // the file of its output
	process *process
}

// StartStandby starts a second replica and returns when it is ready. The caller stops it.
func (s *Stack) StartStandby(ctx context.Context) (*Standby, error) {
	url, securePort, err := controllerAddresses()
	if err != nil {
		return nil, err
	}
	b := &Standby{URL: url, Log: filepath.Join(s.dir, "standby.log")}
	if b.process, err = s.runController(ctx, url, securePort, b.Log, func(*process) {}); err != nil {
		return nil, fmt.Errorf("start the standby: %w", err)
	}
	return b, nil
}

// Stop terminates the standby and waits for its end.
func (b *Standby) Stop() { b.process.end(syscall.SIGTERM) }

// Kill kills the standby, as a crash would, and waits for its end.
func (b *Standby) Kill() { b.process.end(syscall.SIGKILL) }

// portTaken is in the error of a program whose port another one listens on.
const portTaken = "address already in use"

func controllerAddresses() (url string, securePort int, err error) {
	page, err := cluster.FreePort("127.0.0.1")
	if err != nil {
		return "", 0, err
	}
	securePort, err = cluster.FreePort("127.0.0.1")
	return "http://127.0.0.1:" + strconv.Itoa(page), securePort, err
}

// runController starts one replica, as the account of deploy/rbac, and returns when it is ready. It calls started when it
// runs.
func (s *Stack) runController(ctx context.Context, url string, securePort int, log string, started func(*process), more ...string) (*process, error) {
	kubeconfig, err := s.accountKubeconfig(ControllerAccount)
	if err == nil && s.cfg.ControllerKubeconfig != nil {
		kubeconfig, err = s.cfg.ControllerKubeconfig(url != s.ControllerURL, kubeconfig)
	}
	if err != nil {
		return nil, err
	}
	args := slices.Concat([]string{
		"--kubeconfig", kubeconfig, "--namespace", Namespace,
		"--address", strings.TrimPrefix(url, "http://"),
		"--page-auth", "none", // it listens on loopback
		"--secure-port", strconv.Itoa(securePort), "--service", "gpupilot-controller:" + strconv.Itoa(s.servicePort),
		"--pod-cidrs", "127.0.0.0/8", // simnode's pods
	}, s.cfg.ControllerArgs, more)
	if s.cfg.AgentTokens {
		args = append(args, "--agent-token-file", s.agentToken())
	}
	p, err := startProcess(filepath.Join(s.cfg.Root, "bin", "gpupilot-controller"), args, log)
	if err != nil {
		return nil, err
	}
	started(p)
	err = Await(ctx, startTimeout, func() error {
		select {
		case <-p.done:
			return nil // handled below
		default:
		}
		return probe(ctx, url+"/readyz")
	})
	select {
	case <-p.done:
		err = errors.New("it ended")
	default:
	}
	if err != nil {
		p.end(syscall.SIGKILL)
		return nil, fmt.Errorf("%w\n%s", err, tail(log))
	}
	return p, nil
}

// ControllerPID is the number of the controller's process, also while it starts; 0: it does not run.
func (s *Stack) ControllerPID() int {
	if p := s.controller.Load(); p != nil {
		return p.os.Pid
	}
	return 0
}

// CrashController kills the controller, and does not wait for its end: KillController does, before it is started again.
func (s *Stack) CrashController() {
	if p := s.controller.Load(); p != nil {
		_ = p.os.Kill() // it may have ended
	}
}

// StopController terminates the controller and waits for its end.
func (s *Stack) StopController() { s.endController(syscall.SIGTERM) }

// KillController kills the controller, as a crash would.
func (s *Stack) KillController() { s.endController(syscall.SIGKILL) }

func (s *Stack) endController(sig syscall.Signal) {
	if p := s.controller.Swap(nil); p != nil {
		p.end(sig)
	}
}

// ControllerLog returns the file of the controller's output.
func (s *Stack) ControllerLog() string { return filepath.Join(s.dir, "controller.log") }

func probe(ctx context.Context, url string) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
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

// process is a child that ends with this program.
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
	// The child has a process group of its own, so that a Ctrl-C does not reach it. The
	// kernel kills it when this program is killed.
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

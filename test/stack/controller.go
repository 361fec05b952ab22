// SPDX-License-Identifier: Apache-2.0

package stack

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/gpupilot/gpupilot/test/child"
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
	process *child.Process
}

// StartStandby starts a second replica and returns when it is ready. The caller stops it.
func (s *Stack) StartStandby(ctx context.Context) (*Standby, error) {
	for {
		url, securePort, err := controllerAddresses()
		if err != nil {
			return nil, err
		}
		b := &Standby{URL: url, Log: filepath.Join(s.dir, "standby.log")}
		b.process, err = s.runController(ctx, url, securePort, b.Log, func(*child.Process) {})
		switch {
		case err == nil:
			return b, nil
		case !strings.Contains(err.Error(), portTaken):
			return nil, fmt.Errorf("start the standby: %w", err)
		}
	}
}

// endTimeout is how long a controller has to end after a signal.
const endTimeout = time.Minute

// Stop terminates the standby and waits for its end.
func (b *Standby) Stop() { b.process.End(syscall.SIGTERM, endTimeout) }

// Kill kills the standby, as a crash would, and waits for its end.
func (b *Standby) Kill() { b.process.End(syscall.SIGKILL, endTimeout) }

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

// runController starts one replica with all roles, and returns when it is ready. It calls started when it runs.
func (s *Stack) runController(ctx context.Context, url string, securePort int, log string, started func(*child.Process), more ...string) (*child.Process, error) {
	kubeconfig, err := s.accountKubeconfig(ControllerAccount)
	if err == nil && s.cfg.ControllerKubeconfig != nil {
		kubeconfig, err = s.cfg.ControllerKubeconfig(url != s.ControllerURL, kubeconfig)
	}
	if err != nil {
		return nil, err
	}
	args := slices.Concat([]string{
		"--page-auth", "none", // it listens on loopback
		"--secure-port", strconv.Itoa(securePort), "--service", "gpupilot-controller:" + strconv.Itoa(s.servicePort),
	}, s.cfg.ControllerArgs, more)
	if s.cfg.AgentTokens {
		args = append(args, "--agent-token-file", s.agentToken())
	}
	return s.launch(ctx, kubeconfig, url, log, started, args...)
}

// launch starts a controller at the address of a URL, and returns when it is ready.
func (s *Stack) launch(ctx context.Context, kubeconfig, url, log string, started func(*child.Process), args ...string) (*child.Process, error) {
	p, err := child.StartLogged(exec.Command(filepath.Join(s.cfg.Root, "bin", "gpupilot-controller"), append([]string{
		"--kubeconfig", kubeconfig, "--namespace", Namespace, "--address", strings.TrimPrefix(url, "http://"),
		"--pod-cidrs", "127.0.0.0/8", // simnode's pods
	}, args...)...), log)
	if err != nil {
		return nil, err
	}
	started(p)
	err = Await(ctx, startTimeout, func() error {
		if !p.Running() {
			return nil // handled below
		}
		_, err := get(ctx, url+"/readyz")
		return err
	})
	if !p.Running() {
		err = errors.New("it ended")
	}
	if err != nil {
		p.End(syscall.SIGKILL, endTimeout)
		return nil, fmt.Errorf("%w\n%s", err, child.Tail(log, 2000))
	}
	return p, nil
}

// StartReplica starts a further controller that scrapes and serves the page, but writes
// nothing. It listens on host; args come after its own arguments. StartReplica returns
// when it is ready; stop ends it.
func (s *Stack) StartReplica(ctx context.Context, host string, args ...string) (url string, stop func(), err error) {
	kubeconfig, err := s.accountKubeconfig(ControllerAccount)
	if err != nil {
		return "", nil, err
	}
	for {
		port, err := cluster.FreePort(host)
		if err != nil {
			return "", nil, err
		}
		url = "http://" + net.JoinHostPort(host, strconv.Itoa(port))
		log := filepath.Join(s.dir, fmt.Sprintf("replica-%d.log", port))
		p, err := s.launch(ctx, kubeconfig, url, log, func(*child.Process) {}, append([]string{"--roles", "scrape", "--log-level", "debug"}, args...)...)
		switch {
		case err == nil:
			return url, func() { p.End(syscall.SIGTERM, endTimeout) }, nil
		case !strings.Contains(err.Error(), portTaken):
			return "", nil, fmt.Errorf("start a replica: %w", err)
		}
	}
}

// PortOf returns the port of a URL that StartReplica returned.
func PortOf(url string) int {
	_, port, _ := net.SplitHostPort(url[len("http://"):])
	n, _ := strconv.Atoi(port)
	return n
}

// ControllerPID is the number of the controller's process, also while it starts; 0: it does not run.
func (s *Stack) ControllerPID() int {
	if p := s.controller.Load(); p != nil {
		return p.Pid
	}
	return 0
}

// CrashController kills the controller, and does not wait for its end: KillController does, before it is started again.
func (s *Stack) CrashController() {
	if p := s.controller.Load(); p != nil {
		_ = p.Kill() // it may have ended
	}
}

// StopController terminates the controller and waits for its end.
func (s *Stack) StopController() { s.endController(syscall.SIGTERM) }

// KillController kills the controller, as a crash would.
func (s *Stack) KillController() { s.endController(syscall.SIGKILL) }

func (s *Stack) endController(sig syscall.Signal) {
	if p := s.controller.Swap(nil); p != nil {
		p.End(sig, endTimeout)
	}
}

// ControllerLog returns the file of the controller's output.
func (s *Stack) ControllerLog() string { return filepath.Join(s.dir, "controller.log") }

// SPDX-License-Identifier: Apache-2.0

//go:build linux

// Package agentrig runs the real gpupilot-agent on one machine, with a fake GPU library
// that reads the state of its GPUs from a file, and with a fake kubelet and API server.
// The benchmarks and the tests of the whole program use it.
package agentrig

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/gpupilot/gpupilot/test/child"
	"github.com/gpupilot/gpupilot/test/logtest"
)

// startTimeout bounds the time until an agent serves, and until it has ended. Only a failure takes that long, however busy
// the machine is.
const startTimeout = 3 * time.Minute

// Config holds the settings of an agent.
type Config struct {
	Runner []string // what runs the binary and its arguments, such as an emulator; nothing: the machine itself
	Binary string
	Args   []string // an --address of its own is added unless Files are handed over
	Env    []string // beside our own environment
	// Files become the agent's file descriptors from 3 on, as systemd hands
	// sockets over; LISTEN_PID and LISTEN_FDS say so.
	Files []*os.File
	// Foreign is for another program, such as dcgm-exporter: the kernel says where it listens, because its releases log that
	// in different forms. Such a program may end instead.
	Foreign bool
}

// Agent is a running gpupilot-agent.
type Agent struct {
	URL string // http://host:port

	*child.Process
	foreign bool
	log     logtest.Buffer
}

// Start starts an agent and returns when it serves.
func Start(ctx context.Context, cfg Config) (*Agent, error) {
	a := &Agent{foreign: cfg.Foreign}
	if err := a.start(cfg); err != nil {
		return nil, err
	}
	if err := a.AwaitAddress(ctx); err != nil {
		_ = a.Stop()
		return nil, err
	}
	return a, nil
}

// AwaitAddress waits until the agent serves, and sets its URL. A foreign program may have ended instead.
func (a *Agent) AwaitAddress(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		address, err := a.address()
		if address != "" {
			a.URL = "http://" + address
			return nil
		}
		select {
		case <-tick.C:
		case <-a.Done:
			if a.foreign {
				return nil
			}
			return fmt.Errorf("the agent ended (%w); it said:\n%s", a.Err, a.Log())
		case <-ctx.Done():
			return fmt.Errorf("%s does not serve: %w; it said:\n%s", "the program", errors.Join(ctx.Err(), err), a.Log())
		}
	}
}

// address is where the agent listens; empty: it does not yet.
func (a *Agent) address() (string, error) {
	if a.foreign {
		return listenerOf(a.Pid)
	}
	if m := serving.FindStringSubmatch(a.Log()); m != nil {
		return m[1], nil
	}
	return "", nil
}

var serving = regexp.MustCompile(`msg=serving address=(\S+)`)

func (a *Agent) start(cfg Config) error {
	argv := append(slices.Clone(cfg.Runner), cfg.Binary)
	env := append(os.Environ(), cfg.Env...)
	if len(cfg.Files) == 0 {
		argv = append(argv, "--address", "127.0.0.1:0")
	} else {
		// LISTEN_PID is the agent's own number, which only it can know: the shell
		// becomes the agent.
		argv = append([]string{"/bin/sh", "-c", `LISTEN_PID=$$ exec "$0" "$@"`}, argv...)
		env = append(env, fmt.Sprintf("LISTEN_FDS=%d", len(cfg.Files)))
	}
	argv = append(argv, cfg.Args...)
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Env, cmd.ExtraFiles, cmd.Stdout, cmd.Stderr = env, cfg.Files, &a.log, &a.log
	var err error
	if a.Process, err = child.Start(cmd); err != nil {
		return fmt.Errorf("start the agent: %w", err)
	}
	return nil
}

// Stop terminates the agent and waits for its end. It fails if the agent did not
// end well, or had to be killed.
func (a *Agent) Stop() error {
	if a.End(syscall.SIGTERM, startTimeout) {
		return fmt.Errorf("the agent did not end within %v of SIGTERM", startTimeout)
	}
	return a.Err
}

// Log returns the agent's log.
func (a *Agent) Log() string { return a.log.String() }

// Get requests a path of the agent, with headers in pairs.
func (a *Agent) Get(ctx context.Context, path string, headers ...string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, a.URL+path, nil)
	if err != nil {
		return "", err
	}
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer func() { _ = res.Body.Close() }()
	body, err := io.ReadAll(res.Body)
	if err == nil && res.StatusCode != http.StatusOK {
		err = fmt.Errorf("GET %s: %s: %s", path, res.Status, strings.TrimSpace(string(body)))
	}
	return string(body), err
}

// Await returns when /metrics satisfies shows.
func (a *Agent) Await(ctx context.Context, timeout time.Duration, shows func(page string) bool) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		page, err := a.Get(ctx, "/metrics")
		if err == nil && shows(page) {
			return nil
		}
		select {
		case <-tick.C:
		case <-a.Done:
			return fmt.Errorf("the agent ended (%w); it said:\n%s", a.Err, a.Log())
		case <-ctx.Done():
			return fmt.Errorf("/metrics does not show it after %v (last error: %w); the agent said:\n%s", timeout, err, a.Log())
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/gpupilot/gpupilot/internal/base/logtest"
)

const (
	// startLimit is how long a program may take until it listens or gives up.
	startLimit = time.Minute
	// stopLimit is how long it may take to end when told to.
	stopLimit = 8 * time.Second
)

// program is one of the two that are compared, running or ended.
type program struct {
	cmd    *exec.Cmd
	addr   string // where it listens
	secure bool   // serves TLS
	log    logtest.Buffer
	ended  chan struct{} // closed when it has
	client *http.Client
}

// tail returns the end of what the program wrote.
func (p *program) tail() string {
	const most = 2000
	s := strings.TrimSpace(p.log.String())
	return s[max(0, len(s)-most):]
}

// start runs a command with -a, and returns when it listens or has ended. The
// program chooses its port, so that no other program can take it before.
func start(ctx context.Context, command, args, env []string, secure bool) (*program, error) {
	p := &program{secure: secure, ended: make(chan struct{})}
	p.client = &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{
		DisableCompression: true,
		TLSClientConfig:    &tls.Config{InsecureSkipVerify: true}, // the certificate is made for this run
	}}
	p.cmd = exec.CommandContext(ctx, command[0], slices.Concat(command[1:], []string{"-a", "127.0.0.1:0"}, args)...)
	p.cmd.Env = append(os.Environ(), env...)
	p.cmd.Stdout, p.cmd.Stderr = &p.log, &p.log
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	p.cmd.WaitDelay = time.Second
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", command, err)
	}
	go func() {
		defer close(p.ended)
		_ = p.cmd.Wait() // its state is looked at
	}()
	return p, p.listening(ctx)
}

// listening waits until the program listens, and finds where.
func (p *program) listening(ctx context.Context) error {
	for until := time.Now().Add(startLimit); time.Now().Before(until); {
		addr, err := listenerOf(p.cmd.Process.Pid)
		if err != nil && p.running() {
			return err
		}
		if addr != "" {
			p.addr = addr
			return nil
		}
		if !p.sleep(ctx, 50*time.Millisecond) {
			return ctx.Err()
		}
	}
	return fmt.Errorf("%s does not listen after %s; it said:\n%s", p.cmd.Path, startLimit, p.tail())
}

// sleep waits, and says whether the program still runs and ctx is not done.
func (p *program) sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-p.ended:
		return false
	case <-t.C:
		return true
	}
}

func (p *program) running() bool {
	select {
	case <-p.ended:
		return false
	default:
		return true
	}
}

// state says in words whether it runs.
func (p *program) state() string {
	if p.running() {
		return "runs"
	}
	return "exits with " + fmt.Sprint(p.cmd.ProcessState.ExitCode())
}

// stop tells it to end, and says how it did.
func (p *program) stop(sig os.Signal) string {
	p.client.CloseIdleConnections()
	if !p.running() {
		return p.state()
	}
	_ = p.cmd.Process.Signal(sig) // it may just have ended
	select {
	case <-p.ended:
		return p.state()
	case <-time.After(stopLimit):
		_ = p.cmd.Process.Kill()
		<-p.ended
		return "does not end"
	}
}

// request is what is asked of both programs.
type request struct {
	method, path string // GET and /metrics where empty
	header       map[string]string
	user, pass   string
	plain        bool // HTTP, even where the program serves TLS
	body         bool // compare the answer's body
}

func (r request) String() string {
	s := "GET"
	if r.method != "" {
		s = r.method
	}
	s += " " + r.path
	for k, v := range r.header {
		s += fmt.Sprintf(" (%s: %s)", k, v)
	}
	switch {
	case r.user != "":
		s += " as " + r.user
	case r.plain:
		s += " without TLS"
	}
	return s
}

// answer is what came back.
type answer struct {
	status int
	header http.Header
	body   string
}

func (p *program) ask(ctx context.Context, r request) (answer, error) {
	scheme, method := "http", http.MethodGet
	if p.secure && !r.plain {
		scheme = "https"
	}
	if r.method != "" {
		method = r.method
	}
	req, err := http.NewRequestWithContext(ctx, method, scheme+"://"+p.addr+r.path, nil)
	if err != nil {
		return answer{}, err
	}
	for k, v := range r.header {
		req.Header.Set(k, v)
	}
	if r.user != "" {
		req.SetBasicAuth(r.user, r.pass)
	}
	resp, err := p.client.Do(req)
	if err != nil {
		return answer{}, err
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	return answer{resp.StatusCode, resp.Header, string(body)}, err
}

// settled asks for the page until it has the same series twice: both programs
// collect in the background, and begin at a tick. A page that stays empty counts
// after some intervals, too.
func (p *program) settled(ctx context.Context, r request, interval time.Duration) (answer, error) {
	const most, empty = 40, 10 // intervals
	var before string
	for i := range most {
		a, err := p.ask(ctx, r)
		if err != nil && !p.running() {
			return answer{}, nil // the caller sees that it has ended
		}
		if err != nil {
			return answer{}, err
		}
		now := skeleton(a.body)
		if now == before && (now != "" || i >= empty) {
			return a, nil
		}
		before = now
		if !p.sleep(ctx, interval) && ctx.Err() != nil {
			return answer{}, ctx.Err()
		}
	}
	return answer{}, fmt.Errorf("the page of %s does not come to rest", p.cmd.Path)
}

// skeleton is a page without what changes from one to the next: the series of
// fields, without their values.
func skeleton(body string) string {
	p := parsePage(body)
	var b strings.Builder
	for i := range p.series {
		if !strings.HasPrefix(p.series[i].name, ownPrefix) {
			b.WriteString(p.series[i].String())
			b.WriteByte('\n')
		}
	}
	return b.String()
}

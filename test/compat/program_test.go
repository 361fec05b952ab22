// SPDX-License-Identifier: Apache-2.0

package compat

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/gpupilot/gpupilot/test/agentrig"
)

// stopLimit is how long a program may take to end when told to.
const stopLimit = time.Minute

// program is one of the two that are compared, running or ended.
type program struct {
	*agentrig.Agent
	secure bool // serves TLS
	client *http.Client
}

// tail returns the end of what the program wrote.
func (p *program) tail() string {
	const most = 2000
	s := strings.TrimSpace(p.Log())
	return s[max(0, len(s)-most):]
}

// start runs a program, and returns when it listens or has ended. The program chooses its port, so that no other program
// can take it before.
func start(ctx context.Context, runner []string, binary string, args, env []string, secure bool) (*program, error) {
	a, err := agentrig.Start(ctx, agentrig.Config{Runner: runner, Binary: binary, Args: args, Env: env, Foreign: true})
	if err != nil {
		return nil, err
	}
	return &program{Agent: a, secure: secure, client: &http.Client{Timeout: stopLimit, Transport: &http.Transport{
		DisableCompression: true,
		TLSClientConfig:    &tls.Config{InsecureSkipVerify: true}, // the certificate is made for this run
	}}}, nil
}

// sleep waits, and says whether the program still runs and ctx is not done.
func (p *program) sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-p.Done:
		return false
	case <-t.C:
		return true
	}
}

// state says in words whether it runs.
func (p *program) state() string {
	if p.Running() {
		return "runs"
	}
	return "exits with " + fmt.Sprint(p.State.ExitCode())
}

// stop tells it to end, and says how it did.
func (p *program) stop(sig os.Signal) string {
	p.client.CloseIdleConnections()
	if p.Running() && p.End(sig, stopLimit) {
		return "does not end"
	}
	return p.state()
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
	url, method := p.URL, http.MethodGet
	if p.secure && !r.plain {
		url = strings.Replace(url, "http", "https", 1)
	}
	if r.method != "" {
		method = r.method
	}
	req, err := http.NewRequestWithContext(ctx, method, url+r.path, nil)
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
		if err != nil && !p.Running() {
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
	return answer{}, fmt.Errorf("the page of process %d does not come to rest; it said:\n%s", p.Pid, p.tail())
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

// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"github.com/gpupilot/gpupilot/test/child"
)

// errPortTaken means that another process took the chosen port before the component listened on it.
var errPortTaken = errors.New("port already in use")

var errStopped = errors.New("the cluster is stopped")

// quotedBytes is how much of a log an error quotes.
const quotedBytes = 3000

// pollEvery is the interval at which await polls.
const pollEvery = 50 * time.Millisecond

// process is the process of one component.
type process struct {
	*child.Process
	name     string
	logPath  string
	stopping atomic.Bool
	done     chan struct{} // closed when the process has ended and err is known
	err      error         // why it ended; read it after done
}

// startProcess starts binary with args (args[0] is the component) in dir, and appends its output to NAME.log there.
// onExit is called if the process ends unexpectedly.
func startProcess(name, binary string, args []string, dir string, onExit func(error)) (*process, error) {
	p := &process{name: name, logPath: filepath.Join(dir, name+".log"), done: make(chan struct{})}
	cmd := exec.Command(binary, args...)
	cmd.Dir, cmd.Env = dir, environment(os.Environ())
	var err error
	if p.Process, err = child.StartLogged(cmd, p.logPath); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	go func() {
		<-p.Done
		p.err = p.ended(p.Err)
		close(p.done)
		if !p.stopping.Load() {
			onExit(p.err)
		}
	}()
	return p, nil
}

// ended returns the error of a component that has ended.
func (p *process) ended(wait error) error {
	state := "exit status 0"
	if wait != nil {
		state = wait.Error()
	}
	lines := child.Tail(p.logPath, quotedBytes)
	cause := errors.New("it ended")
	if strings.Contains(lines, "address already in use") {
		cause = errPortTaken
	}
	return fmt.Errorf("%s: %w (%s); its log ends:\n%s", p.name, cause, state, lines)
}

func (p *process) exited() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// stop kills the process and waits for its end.
func (p *process) stop() {
	p.stopping.Store(true)
	// An error means that it has already ended.
	_ = p.Kill()
	<-p.done
}

// await polls ready until it returns nil, the process ends or ctx does.
func (c *Cluster) await(ctx context.Context, p *process, ready func(context.Context) error) error {
	began := time.Now()
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for {
		err := ready(ctx)
		if err == nil {
			c.log.Debug("ready", "component", p.name, "took", time.Since(began).Round(time.Millisecond))
			return nil
		}
		select {
		case <-p.done:
			return p.err
		case <-c.failed:
			return c.failure
		case <-ctx.Done():
			return fmt.Errorf("%s: not ready after %s: %w (%w); its log ends:\n%s", p.name,
				time.Since(began).Round(time.Second), err, context.Cause(ctx), child.Tail(p.logPath, quotedBytes))
		case <-tick.C:
		}
	}
}

// httpOK returns a check that a GET of the URL has status 200.
func httpOK(client *http.Client, url string) func(context.Context) error {
	return func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
		defer cancel()
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return err
		}
		response, err := client.Do(request)
		if err != nil {
			return err
		}
		defer response.Body.Close()
		body, err := io.ReadAll(io.LimitReader(response.Body, 4<<10))
		if err != nil {
			return err
		}
		if response.StatusCode != http.StatusOK {
			return fmt.Errorf("GET %s: %s: %s", url, response.Status, bytes.TrimSpace(body))
		}
		return nil
	}
}

// exists returns a check that a file exists.
func exists(path string) func(context.Context) error {
	return func(context.Context) error {
		_, err := os.Stat(path)
		return err
	}
}

// environment returns the environment of the components. It has only a few variables: etcd parses ETCD_* variables as
// flags, and a configured proxy would be used for addresses of this machine.
func environment(ours []string) []string {
	var env []string
	for _, variable := range ours {
		switch name, _, _ := strings.Cut(variable, "="); name {
		case "PATH", "HOME", "TMPDIR":
			env = append(env, variable)
		}
	}
	return env
}

// SPDX-License-Identifier: Apache-2.0

package check

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/gpupilot/gpupilot/internal/base/excerpt"
	"github.com/gpupilot/gpupilot/internal/gpu"
)

// Agent is NVML or DCGM as a source, read by an agent that this source starts on a loopback address. The libraries need
// cgo, which this program is built without.
type Agent struct {
	name string
	args []string
	// Program is the agent; empty: beside this program, or on the PATH.
	Program string

	mu      sync.Mutex
	page    *Page // nil: not started yet
	failed  error // why it could not be started
	cmd     *exec.Cmd
	ended   chan struct{} // closed when it has ended
	folder  string        // of its list of metrics
	log     agentLog
	hasData bool
}

// NewAgent returns the source nvml, dcgm, or dcgm://HOST:PORT or dcgm:///SOCKET. nvml is a path of the library; empty: the
// default. It starts nothing.
func NewAgent(name, nvml string) (*Agent, bool) {
	a := &Agent{name: name}
	switch address, isRemote := strings.CutPrefix(name, "dcgm://"); {
	case name == "nvml":
		a.args = []string{"--backend", "nvml"}
	case name == "dcgm":
		a.args = []string{"--backend", "dcgm"}
	case isRemote && address != "":
		a.args = []string{"--backend", "dcgm", "--remote-hostengine-info", address}
	default:
		return nil, false
	}
	if nvml != "" {
		a.args = append(a.args, "--nvml-library", nvml)
	}
	return a, true
}

// Name returns the name as on the command line.
func (a *Agent) Name() string { return a.name }

// Read starts the agent at the first call, and returns the values on its page. A value that the library never had is no
// fault of it: GPM needs Hopper or newer.
func (a *Agent) Read(ctx context.Context, want func(gpu.FieldID) bool) (Values, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.page == nil && a.failed == nil {
		a.failed = a.start(ctx, want)
	}
	if a.failed != nil {
		return nil, a.failed
	}
	values, err := a.page.Read(ctx, want)
	a.hasData = a.hasData || len(values) > 0
	switch {
	case a.hasData:
	case errors.Is(err, errNoValues):
		return nil, fmt.Errorf("the library has no value of the field on this GPU%s", a.log.problem())
	case err != nil:
		return nil, fmt.Errorf("the agent has no values%s (%w)", a.log.problem(), err)
	}
	return values, err
}

// startTime bounds the time until the agent serves.
const startTime = 10 * time.Second

func (a *Agent) start(ctx context.Context, want func(gpu.FieldID) bool) error {
	program, err := a.program()
	if err != nil {
		return err
	}
	if a.folder, err = os.MkdirTemp("", "gpupilot-check"); err != nil {
		return err
	}
	list := filepath.Join(a.folder, "collectors.csv")
	if err := os.WriteFile(list, []byte(collectors(want)), 0o600); err != nil {
		return err
	}
	a.cmd = exec.Command(program, append([]string{ //nolint:gosec,noctx // our own program; Close ends it
		"--address", "127.0.0.1:0", "--collectors", list, "--collect-interval", fmt.Sprint(every.Milliseconds()), "--log-format", "json",
		"--kubernetes=false", "--no-hostname",
	}, a.args...)...)
	for _, variable := range os.Environ() { // what chooses other metrics, labels or addresses
		if !strings.HasPrefix(variable, "DCGM_") && !strings.HasPrefix(variable, "LISTEN_") {
			a.cmd.Env = append(a.cmd.Env, variable)
		}
	}
	a.cmd.SysProcAttr = childAttributes()
	out, err := a.cmd.StdoutPipe()
	if err != nil {
		return err
	}
	a.cmd.Stderr = a.cmd.Stdout
	if err := a.cmd.Start(); err != nil {
		return err
	}
	a.ended = make(chan struct{})
	serving := make(chan string, 1)
	go func() {
		defer close(a.ended)
		a.log.read(out, serving)
		_ = a.cmd.Wait() // the log says why it has ended
	}()
	ctx, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()
	select {
	case address := <-serving:
		a.page, err = NewPage("http://" + address)
		return err
	case <-a.ended:
		return fmt.Errorf("%s has ended%s", filepath.Base(program), a.log.problem())
	case <-ctx.Done():
		return fmt.Errorf("%s does not serve%s", filepath.Base(program), a.log.problem())
	}
}

// program finds the agent.
func (a *Agent) program() (string, error) {
	const name = "gpupilot-agent"
	if a.Program != "" {
		return a.Program, nil
	}
	if own, err := os.Executable(); err == nil {
		if path := filepath.Join(filepath.Dir(own), name); isFile(path) {
			return path, nil
		}
	}
	path, err := exec.LookPath(name)
	if err != nil {
		return "", fmt.Errorf("%s reads %s, and is neither beside this program nor on the PATH", name, a.name)
	}
	return path, nil
}

func isFile(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular()
}

// collectors is the agent's list of the wanted metrics.
func collectors(want func(gpu.FieldID) bool) string {
	var out strings.Builder
	for _, f := range gpu.Fields() {
		if want(f.ID) {
			fmt.Fprintf(&out, "%s, gauge, %s\n", f.Name, f.Name)
		}
	}
	return out.String()
}

// Close ends the agent.
func (a *Agent) Close() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.ended != nil {
		_ = a.cmd.Process.Kill() // it may have ended
		<-a.ended
	}
	if a.folder == "" {
		return nil
	}
	return os.RemoveAll(a.folder)
}

// agentLog keeps the last problem of an agent's log.
type agentLog struct {
	mu   sync.Mutex
	text string
}

// read reads the log to its end, and sends the address that the agent serves on.
func (l *agentLog) read(in io.Reader, serving chan<- string) {
	lines := bufio.NewScanner(in)
	for lines.Scan() {
		var line struct{ Level, Msg, Err, Address string }
		if json.Unmarshal(lines.Bytes(), &line) != nil {
			l.set(lines.Text()) // the error at its end is plain text
			continue
		}
		if line.Msg == "serving" && line.Address != "" {
			select {
			case serving <- line.Address:
			default:
			}
		}
		if line.Level == "WARN" || line.Level == "ERROR" {
			l.set(line.Msg + ": " + cmp.Or(line.Err, "no details"))
		}
	}
	_, _ = io.Copy(io.Discard, in) // after a line that is too long
}

func (l *agentLog) set(text string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.text = excerpt.Of(text, 200)
}

// problem returns the last problem behind a colon; empty: there was none.
func (l *agentLog) problem() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.text == "" {
		return ""
	}
	return ": " + l.text
}

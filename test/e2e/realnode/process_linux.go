// SPDX-License-Identifier: Apache-2.0

package realnode

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// logTail is the number of log bytes that an error quotes.
const logTail = 3000

// process is a program on the node. It ends with the namespaces at the latest.
type process struct {
	name string
	log  string // file that has all it printed
	cmd  *exec.Cmd
	done chan struct{} // closed when it has ended
}

// start starts a program, its output appended to name.log in logs.
func start(logs, name, program string, args, env []string) (*process, error) {
	p := &process{name: name, log: filepath.Join(logs, name+".log"), done: make(chan struct{})}
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	p.cmd = exec.Command(program, args...)
	p.cmd.Stdout, p.cmd.Stderr = log, log
	p.cmd.Env = append(os.Environ(), env...)
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	go func() {
		_ = p.cmd.Wait() // how it ended stands in its ProcessState
		close(p.done)
	}()
	return p, nil
}

// stop terminates the program, kills it after patience, and returns when it has ended.
func (p *process) stop(patience time.Duration) {
	_ = p.cmd.Process.Signal(syscall.SIGTERM) // an error means that it has ended
	select {
	case <-p.done:
	case <-time.After(patience):
		_ = p.cmd.Process.Kill()
		<-p.done
	}
}

// ended returns nil while the program runs, and then an error with the end of its log.
func (p *process) ended() error {
	select {
	case <-p.done:
		return fmt.Errorf("%s has ended (%s); its log ends:\n%s", p.name, p.cmd.ProcessState, tail(p.log))
	default:
		return nil
	}
}

// tail returns the end of a file.
func tail(path string) string {
	content, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	text := strings.TrimSpace(string(content))
	if len(text) > logTail {
		text = text[len(text)-logTail:]
		text = text[strings.IndexByte(text, '\n')+1:]
	}
	return text
}

// SPDX-License-Identifier: Apache-2.0

// Package child runs the processes of the rigs. None outlives the program that started it.
package child

import (
	"bytes"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"time"
)

// Process is a child. The kernel kills it when this program is killed (Linux), and a Ctrl-C at the terminal does not reach
// it: this program ends its children in order.
type Process struct {
	*os.Process
	Done  chan struct{}    // closed when the process has ended and was waited for
	Err   error            // how it ended; read it after Done
	State *os.ProcessState // likewise; nil: it is not known
}

// Start starts a command.
func Start(cmd *exec.Cmd) (*Process, error) {
	cmd.SysProcAttr = attributes()
	p := &Process{Done: make(chan struct{})}
	started := make(chan error)
	go func() {
		// The kernel kills the child when the thread that started it ends. The goroutine therefore keeps its thread until the
		// child ends.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		p.Process = cmd.Process
		started <- err
		if err != nil {
			return
		}
		p.Err = cmd.Wait()
		p.State = cmd.ProcessState
		close(p.Done)
	}()
	return p, <-started
}

// StartLogged starts a command with its output appended to a file.
func StartLogged(cmd *exec.Cmd, path string) (*Process, error) {
	log, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return nil, err
	}
	defer func() { _ = log.Close() }() // the child has it
	cmd.Stdout, cmd.Stderr = log, log
	return Start(cmd)
}

// Running reports whether the process has not ended.
func (p *Process) Running() bool {
	select {
	case <-p.Done:
		return false
	default:
		return true
	}
}

// End sends a signal, waits for the end of the process, and kills it after a time. It reports whether that was needed.
func (p *Process) End(sig os.Signal, after time.Duration) (killed bool) {
	_ = p.Signal(sig) // it may have ended
	t := time.NewTimer(after)
	defer t.Stop()
	select {
	case <-p.Done:
		return false
	case <-t.C:
		_ = p.Signal(syscall.SIGKILL)
		<-p.Done
		return true
	}
}

// Tail returns the last lines of a file, of so many bytes at the most, or the error of reading it: what an error quotes of a
// log.
func Tail(path string, most int) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	b = bytes.TrimSpace(b)
	if len(b) > most {
		b = b[len(b)-most:]
		b = b[bytes.IndexByte(b, '\n')+1:]
	}
	return string(b)
}

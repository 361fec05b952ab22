// SPDX-License-Identifier: Apache-2.0

package simnode

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"time"
)

// process is a pod's process.
type process struct {
	done chan struct{} // closed when it has ended and was waited for
	err  error         // how it ended; read it after done
	// state is likewise; nil: it is not known.
	state *os.ProcessState
	os    *os.Process
}

// startProcess starts argv with its output appended to logPath.
func startProcess(argv, env []string, logPath string) (*process, error) {
	log, err := os.OpenFile(logPath, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Stdout, cmd.Stderr, cmd.Env, cmd.SysProcAttr = log, log, env, childAttributes()
	p := &process{done: make(chan struct{})}
	started := make(chan error)
	go func() {
		// The kernel kills the child when the thread that started it ends. The
		// goroutine therefore keeps its thread until the child ends.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer func() { _ = log.Close() }() // only the child writes to it
		if err := cmd.Start(); err != nil {
			started <- err
			return
		}
		p.os = cmd.Process
		started <- nil
		p.err = cmd.Wait()
		p.state = cmd.ProcessState
		if p.err == nil {
			p.err = errors.New("exited with code 0")
		}
		close(p.done)
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", argv[0], err)
	}
	return p, nil
}

// exitCode is that of the process, which has ended.
func (p *process) exitCode() int32 {
	if p.state == nil {
		return 1
	}
	return int32(p.state.ExitCode())
}

// kill kills the process.
func (p *process) kill() error { return p.os.Kill() }

// end terminates the process, kills it after grace, and waits for its end.
func (p *process) end(grace time.Duration) {
	_ = p.os.Signal(syscall.SIGTERM) // it may have ended
	t := time.NewTimer(grace)
	defer t.Stop()
	select {
	case <-p.done:
		return
	case <-t.C:
	}
	_ = p.kill()
	<-p.done
}

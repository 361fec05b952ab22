// SPDX-License-Identifier: Apache-2.0

//go:build unix

package cluster

import (
	"fmt"
	"os"
	"syscall"
)

// PauseAPIServer stops the API server's process without ending it: connections stay open and nothing is answered.
func (c *Cluster) PauseAPIServer() error { return c.signalAPIServer(syscall.SIGSTOP) }

// ResumeAPIServer resumes a paused API server. It has no effect on one that is not paused.
func (c *Cluster) ResumeAPIServer() error { return c.signalAPIServer(syscall.SIGCONT) }

func (c *Cluster) signalAPIServer(sig syscall.Signal) error {
	pid, runs := c.PIDs()[APIServer]
	if !runs {
		return fmt.Errorf("send %s to %s: %w", sig, APIServer, os.ErrProcessDone)
	}
	return syscall.Kill(pid, sig)
}

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

// ResumeAPIServer lets a paused API server go on. One that is not paused does not notice.
func (c *Cluster) ResumeAPIServer() error { return c.signalAPIServer(syscall.SIGCONT) }

func (c *Cluster) signalAPIServer(sig syscall.Signal) error {
	pid, runs := c.PIDs()[APIServer]
	if !runs {
		return fmt.Errorf("send %s to %s: %w", sig, APIServer, os.ErrProcessDone)
	}
	return syscall.Kill(pid, sig)
}

// SPDX-License-Identifier: Apache-2.0

//go:build unix

package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// PauseAPIServer stops the API server's process without ending it: connections stay open and nothing is answered.
func (c *Cluster) PauseAPIServer() error { return c.signal(APIServer, syscall.SIGSTOP) }

// ResumeAPIServer resumes a paused API server. It has no effect on one that is not paused.
func (c *Cluster) ResumeAPIServer() error { return c.signal(APIServer, syscall.SIGCONT) }

func (c *Cluster) signal(component string, sig syscall.Signal) error {
	pid, runs := c.PIDs()[component]
	if !runs {
		return fmt.Errorf("send %s to %s: %w", sig, component, os.ErrProcessDone)
	}
	return syscall.Kill(pid, sig)
}

// Backup copies etcd's data to a new directory, while etcd is paused.
func (c *Cluster) Backup(dir string) (err error) {
	if err := c.signal(Etcd, syscall.SIGSTOP); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.signal(Etcd, syscall.SIGCONT)) }()
	return os.CopyFS(dir, os.DirFS(filepath.Join(c.dir, etcdData)))
}

// Restore starts the control plane again with the data of a Backup: resource versions go back, too.
func (c *Cluster) Restore(ctx context.Context, dir string) error {
	c.mu.Lock()
	for _, p := range c.procs {
		p.stop()
	}
	c.mu.Unlock()
	data := filepath.Join(c.dir, etcdData)
	for _, old := range []string{data, filepath.Join(c.dir, etcdSocket)} {
		if err := os.RemoveAll(old); err != nil {
			return err
		}
	}
	if err := os.CopyFS(data, os.DirFS(dir)); err != nil {
		return err
	}
	return c.startAll(ctx)
}

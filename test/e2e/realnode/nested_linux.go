// SPDX-License-Identifier: Apache-2.0

package realnode

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// NestedTest is a test whose second part runs on a node's side; see the package comment.
type NestedTest struct {
	Name    string        // of the test function of the test stage
	Root    string        // the checkout
	Dir     string        // an empty folder for what is built
	Timeout time.Duration // of the test stage
	Out     io.Writer     // what the test stage prints
	Args    []string      // further arguments of the test stage
}

// Run gets the parts and runs the test stage in new namespaces. An error that wraps
// [ErrUnavailable] means that this machine cannot run a node.
func (n NestedTest) Run(ctx context.Context) (err error) {
	if os.Geteuid() != 0 {
		return fmt.Errorf("%w: it needs root, for namespaces, mounts and cgroups", ErrUnavailable)
	}
	unlock, err := lockMachine(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	undo, err := MakeMountPoints()
	defer func() { err = errors.Join(err, undo()) }()
	if err == nil {
		err = errors.Join(RemoveStaleCgroups(), Probe(ctx))
	}
	if err != nil {
		return err
	}
	parts, err := PrepareParts(ctx, n.Root, n.Dir)
	if err != nil {
		return err
	}
	cgroup, err := NewCgroup()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, cgroup.Remove(10*time.Second)) }()
	parts.Cgroup = cgroup.Path()
	environ, err := parts.Environ()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, n.Timeout)
	defer cancel()
	runtime.LockOSThread() // the nested process dies with this thread
	defer runtime.UnlockOSThread()
	// The test stage ends a little earlier, so that it can say where it was.
	args := []string{"-test.run=^" + n.Name + "$", "-test.v", "-test.timeout=" + (n.Timeout - 10*time.Second).String()}
	cmd := Nested(ctx, StageInit, append(args, n.Args...)...)
	cmd.Env = append(cmd.Env, environ)
	cmd.Stdout, cmd.Stderr = n.Out, n.Out
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("on the node: %w", errors.Join(err, context.Cause(ctx)))
	}
	return nil
}

// lockFile is locked while a node runs. The mount points are the machine's: a run that removes them at its end would
// unmount those of another one.
const lockFile = "gpupilot-realnode.lock"

// lockMachine waits until no other node runs on this machine.
func lockMachine(ctx context.Context) (unlock func(), err error) {
	f, err := os.OpenFile(filepath.Join(os.TempDir(), lockFile), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	for unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil {
		if !wait(ctx, 200*time.Millisecond) {
			_ = f.Close()
			return nil, fmt.Errorf("wait for another node on this machine: %w", context.Cause(ctx))
		}
	}
	return func() { _ = f.Close() }, nil
}

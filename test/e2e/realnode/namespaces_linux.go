// SPDX-License-Identifier: Apache-2.0

package realnode

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// stageVariable is the environment variable with the stage of a test binary; see the package comment.
const stageVariable = "GPUPILOT_REALNODE_STAGE"

// A Stage is the task of one of the nested test binaries.
type Stage string

// The stages after the first, which has no name.
const (
	StageProbe Stage = "probe" // prepare new namespaces and exit
	StageInit  Stage = "init"  // prepare new namespaces, run the test in them and reap orphans
	StageTest  Stage = "test"  // the test, on the node's side
)

// NodeAddress is the node's address, on the loopback interface of its network namespace.
const NodeAddress = "10.255.255.1"

// kubeletDir is the kubelet's folder; the path of the device plugins' sockets is fixed.
const kubeletDir = "/var/lib/kubelet"

// runDir is the node's own folder, in the memory file system on /run; its path is short, as those of sockets must be.
const runDir = "/run/realnode"

// privateDirs are empty on the node: memory file systems over the machine's own.
var privateDirs = [...]string{"/run", "/var/log", kubeletDir}

// kubeletSysctls are the kernel settings that a kubelet makes (setupKernelTunables in its container manager). It finds
// them made, in files bound over the kernel's, so that it leaves the machine's as they are.
var kubeletSysctls = map[string]string{
	"vm/overcommit_memory":      "1",
	"vm/panic_on_oom":           "0",
	"kernel/panic":              "10",
	"kernel/panic_on_oops":      "1",
	"kernel/keys/root_maxkeys":  "1000000",
	"kernel/keys/root_maxbytes": "25000000",
}

// CurrentStage returns the stage of this process.
func CurrentStage() Stage { return Stage(os.Getenv(stageVariable)) }

// Nested is a command that runs this program again as the given stage, with args, in network, mount and process
// namespaces of its own, where it is process 1: killing it, as the end of ctx does, ends everything in them. It is killed
// when the calling thread ends, so the caller locks its goroutine to it (runtime.LockOSThread).
func Nested(ctx context.Context, stage Stage, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "/proc/self/exe", args...)
	cmd.Env = append(os.Environ(), stageVariable+"="+string(stage))
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWNS | syscall.CLONE_NEWPID,
		Pdeathsig:  syscall.SIGKILL,
	}
	return cmd
}

// Probe checks whether this machine supports the namespaces of a node. [MakeMountPoints] must have been called. The error wraps [ErrUnavailable].
func Probe(ctx context.Context) error {
	out, err := Nested(ctx, StageProbe).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%w: new namespaces: %w: %s", ErrUnavailable, err, lastLine(string(out)))
	}
	return nil
}

// RunInit is process 1 of the namespaces: it prepares them and, if it is not only a probe, runs the test stage with the
// same arguments and reaps every orphan until that ends. It returns the exit status.
func RunInit(stage Stage) int {
	if err := prepare(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	if stage == StageProbe {
		return 0
	}
	status, err := runReaping()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	if status.Signaled() {
		fmt.Fprintln(os.Stderr, "the test was ended by", status.Signal())
		return 128 + int(status.Signal())
	}
	return status.ExitStatus()
}

// runReaping runs this program again as the test stage, waits for it, and reaps all other processes that end before.
func runReaping() (syscall.WaitStatus, error) {
	if err := os.Setenv(stageVariable, string(StageTest)); err != nil {
		return 0, err
	}
	self, err := os.Executable()
	if err != nil {
		return 0, err
	}
	child, err := syscall.ForkExec(self, os.Args, &syscall.ProcAttr{Env: os.Environ(), Files: []uintptr{0, 1, 2}})
	if err != nil {
		return 0, fmt.Errorf("start the test: %w", err)
	}
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, 0, nil)
		switch {
		case errors.Is(err, syscall.EINTR):
		case err != nil:
			return 0, fmt.Errorf("wait for the test: %w", err)
		case pid == child:
			return status, nil
		}
	}
}

// prepare mounts and configures what the node needs in new namespaces.
func prepare() error {
	if err := syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	if err := syscall.Mount("proc", "/proc", "proc", 0, ""); err != nil {
		return fmt.Errorf("mount /proc: %w", err)
	}
	for _, dir := range privateDirs {
		if err := syscall.Mount("realnode", dir, "tmpfs", 0, "mode=755"); err != nil {
			return fmt.Errorf("failed to mount tmpfs on %s: %w", dir, err)
		}
	}
	if err := os.Mkdir(runDir, 0o755); err != nil {
		return err
	}
	if err := coverSysctls(filepath.Join(runDir, "sysctl")); err != nil {
		return err
	}
	return configureLoopback()
}

// coverSysctls binds files under dir, with the values that the kubelet wants, over the kernel settings that differ.
func coverSysctls(dir string) error {
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	for name, want := range kubeletSysctls {
		path := filepath.Join("/proc/sys", name)
		have, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if strings.TrimSpace(string(have)) == want {
			continue
		}
		cover := filepath.Join(dir, filepath.Base(name))
		if err := os.WriteFile(cover, []byte(want+"\n"), 0o644); err != nil {
			return err
		}
		if err := syscall.Mount(cover, path, "", syscall.MS_BIND, ""); err != nil {
			return fmt.Errorf("bind-mount over %s: %w", path, err)
		}
	}
	return nil
}

// configureLoopback brings the loopback interface up, which gives it 127.0.0.1, and adds [NodeAddress].
func configureLoopback() error {
	socket, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open a socket: %w", err)
	}
	defer func() { _ = unix.Close(socket) }()
	up, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	up.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	if err := unix.IoctlIfreq(socket, unix.SIOCSIFFLAGS, up); err != nil {
		return fmt.Errorf("bring the loopback interface up: %w", err)
	}
	for _, set := range []struct {
		request uint
		address [4]byte
	}{{unix.SIOCSIFADDR, [4]byte{10, 255, 255, 1}}, {unix.SIOCSIFNETMASK, [4]byte{255, 255, 255, 255}}} {
		alias, err := unix.NewIfreq("lo:node")
		if err != nil {
			return err
		}
		if err := alias.SetInet4Addr(set.address[:]); err != nil {
			return err
		}
		if err := unix.IoctlIfreq(socket, set.request, alias); err != nil {
			return fmt.Errorf("add the node's address to the loopback interface: %w", err)
		}
	}
	return nil
}

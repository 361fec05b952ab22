// SPDX-License-Identifier: Apache-2.0

//go:build e2e && linux

package realnode

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"
	"time"
)

// timeout bounds the node's life: ten seconds on two idle cores, more when they are busy. The test on the node has a
// little less, so that it can say where it was.
const (
	timeout       = 8 * time.Minute
	timeoutOnNode = timeout - 10*time.Second
)

func TestMain(m *testing.M) {
	switch stage := CurrentStage(); stage {
	case StageProbe, StageInit:
		os.Exit(RunInit(stage))
	default:
		os.Exit(m.Run())
	}
}

// TestRealNode is the first stage: it gets the parts and runs [TestOnNode] in the node's namespaces.
func TestRealNode(t *testing.T) {
	if CurrentStage() != "" {
		t.Skip("this is the node's side")
	}
	ctx, stop := signal.NotifyContext(t.Context(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if os.Geteuid() != 0 {
		skipIfUnavailable(t, fmt.Errorf("%w: it needs root, for namespaces, mounts and cgroups", ErrUnavailable))
	}
	undo, err := MakeMountPoints()
	t.Cleanup(func() { must(t, undo()) })
	must(t, err)
	must(t, RemoveStaleCgroups())
	skipIfUnavailable(t, Probe(ctx))
	root, err := filepath.Abs("../..")
	must(t, err)
	parts, err := PrepareParts(ctx, root, t.TempDir())
	skipIfUnavailable(t, err)
	cgroup, err := NewCgroup()
	skipIfUnavailable(t, err)
	t.Cleanup(func() { must(t, cgroup.Remove(10*time.Second)) })
	parts.Cgroup = cgroup.Path()
	runNested(ctx, t, parts)
}

// runNested runs the test stage and reports its result as ours.
func runNested(ctx context.Context, t *testing.T, parts Parts) {
	t.Helper()
	environ, err := parts.Environ()
	must(t, err)
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	runtime.LockOSThread() // the nested process dies with this thread
	defer runtime.UnlockOSThread()
	cmd := Nested(ctx, StageInit, "-test.run=^TestOnNode$", "-test.v", "-test.timeout="+timeoutOnNode.String())
	cmd.Env = append(cmd.Env, environ)
	out, err := cmd.CombinedOutput()
	t.Logf("on the node:\n%s", out)
	if err != nil {
		t.Fatalf("on the node: %v (%v)", err, context.Cause(ctx))
	}
}

// skipIfUnavailable skips where the machine cannot run a node, or fails where it must.
func skipIfUnavailable(t *testing.T, err error) {
	t.Helper()
	if errors.Is(err, ErrUnavailable) && os.Getenv("GPUPILOT_REQUIRE_REALNODE") == "" {
		t.Skip(err)
	}
	must(t, err)
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

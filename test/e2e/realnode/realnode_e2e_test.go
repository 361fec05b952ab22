// SPDX-License-Identifier: Apache-2.0

//go:build e2e && linux

package realnode

import (
	"bytes"
	"errors"
	"flag"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// timeout bounds the node's life: ten seconds on two idle cores, more when they are busy.
const timeout = 25 * time.Minute

var bars = flag.Bool("bars", false, "judge how long a scale-down takes, on a machine that does nothing else")

func TestMain(m *testing.M) {
	switch stage := CurrentStage(); stage {
	case StageProbe, StageInit:
		os.Exit(RunInit(stage))
	default:
		os.Exit(m.Run())
	}
}

// TestRealNode is the first stage: it gets the parts and runs [TestOnNode] in the node's namespaces.
func TestRealNode(t *testing.T) { runNested(t, "TestOnNode") }

// runNested runs a test of the test stage and reports its result as ours.
func runNested(t *testing.T, name string) {
	t.Helper()
	runNestedFor(t, name, timeout)
}

// runNestedFor runs a test of the test stage, which may take longer, with further arguments.
func runNestedFor(t *testing.T, name string, timeout time.Duration, args ...string) {
	t.Helper()
	if CurrentStage() != "" {
		t.Skip("this is the node's side")
	}
	ctx, stop := signal.NotifyContext(t.Context(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	root, err := filepath.Abs("../../..")
	must(t, err)
	var out bytes.Buffer
	err = NestedTest{Name: name, Root: root, Dir: t.TempDir(), Timeout: timeout, Out: &out, Args: args}.Run(ctx)
	if out.Len() > 0 {
		t.Logf("on the node:\n%s", &out)
	}
	skipIfUnavailable(t, err)
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

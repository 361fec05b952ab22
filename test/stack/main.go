// SPDX-License-Identifier: Apache-2.0

package stack

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/gpupilot/gpupilot/test/child"
	"github.com/gpupilot/gpupilot/test/cluster"
)

// Main runs the tests of a package on one stack, and ends the process. use stores the stack before the tests run. The
// tests are skipped where a program is not built.
func Main(m *testing.M, cfg Config, use func(*Stack) error) {
	if err := missing(); err != nil {
		fmt.Println("skipped: make test builds what is missing:", err)
		os.Exit(0)
	}
	code, err := run(m, cfg, use)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// missing says which program of a stack is not built.
func missing() error {
	root, err := findRoot()
	if err != nil {
		return err
	}
	_, kube := cluster.FindBinary()
	_, agent := os.Stat(filepath.Join(root, "bin", "gpupilot-agent"))
	_, controller := os.Stat(filepath.Join(root, "bin", "gpupilot-controller"))
	return errors.Join(kube, agent, controller)
}

func run(m *testing.M, cfg Config, use func(*Stack) error) (code int, err error) {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.NewTextHandler(os.Stderr, nil))
	}
	s, err := Start(context.Background(), cfg)
	if err != nil {
		return 1, err
	}
	defer s.Close()
	if err := errors.Join(s.ensureNamespace(context.Background(), WorkloadNamespace), use(s)); err != nil {
		return 1, err
	}
	if code = m.Run(); code != 0 {
		fmt.Println(s.controllerLogs())
	}
	return code, nil
}

// New starts a stack for one test, which ends it. The test is skipped without a control plane.
func New(t testing.TB, cfg Config) *Stack {
	t.Helper()
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.NewTextHandler(os.Stderr, nil))
	}
	s, err := Start(t.Context(), cfg)
	if errors.Is(err, cluster.ErrNoBinary) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(s.controllerLogs())
		}
		s.Close()
	})
	return s
}

// logTail is how many bytes of a log are shown after a failure.
const logTail = 8000

// controllerLogs returns the ends of the logs of all controllers, also of those that run as pods.
func (s *Stack) controllerLogs() (out string) {
	for _, glob := range []string{"*.log", "n/*/gpupilot-controller-*.log"} {
		files, _ := filepath.Glob(filepath.Join(s.dir, glob)) // the pattern is valid
		for _, file := range files {
			out += fmt.Sprintf("--- %s ---\n%s\n", filepath.Base(file), child.Tail(file, logTail))
		}
	}
	return out
}

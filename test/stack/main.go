// SPDX-License-Identifier: Apache-2.0

package stack

import (
	"fmt"
	"math"
	"os"
	"sync/atomic"
	"time"

	"github.com/gpupilot/gpupilot/test/cluster"
)

// Tests are the tests of a package: a *testing.M.
type Tests interface{ Run() (code int) }

// Main runs the tests of a package that share a stack, and ends the process. with starts
// the stack, and runs the tests by [Stack.Run]. Without a control plane, the tests are
// skipped.
func Main[T Tests](tests T, with func(T) (code int, err error)) {
	if _, err := cluster.FindBinary(); err != nil {
		fmt.Println("skipped: no control plane; make test builds it:", err)
		os.Exit(0)
	}
	code, err := with(tests)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// logTail is how many bytes of the controller's log are shown after a failure.
const logTail = 20_000

// Run runs tests. If they fail, it prints the end of the controller's log.
func (s *Stack) Run(tests Tests) (code int) {
	if code = tests.Run(); code != 0 {
		if log, err := os.ReadFile(s.ControllerLog()); err == nil {
			fmt.Printf("--- controller.log ---\n%s\n", log[max(0, len(log)-logTail):])
		}
	}
	return code
}

// Load is the load of a simulated workload, which a test changes. It starts at zero.
type Load struct{ bits atomic.Uint64 }

// Set sets the load.
func (l *Load) Set(x float64) { l.bits.Store(math.Float64bits(x)) }

// At returns the load, whatever the time is: see simnode.Workload.
func (l *Load) At(time.Time) float64 { return math.Float64frombits(l.bits.Load()) }

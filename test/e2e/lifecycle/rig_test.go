// SPDX-License-Identifier: Apache-2.0

//go:build e2e

// Package lifecycle tests what happens to a scaled workload beside its load, on a real control plane: it is handed over,
// held by a person, idle, paired, drained, rolled out, and its GPUAutoscaler is deleted.
package lifecycle

import (
	"testing"
	"time"

	"github.com/gpupilot/gpupilot/test/stack"
)

const namespace = stack.WorkloadNamespace

// rig is the one stack that the tests of this package share.
var rig *stack.Stack

func TestMain(m *testing.M) {
	stack.Main(m, stack.Config{Nodes: 4, HPASyncPeriod: time.Second, Backlog: true, ControllerArgs: []string{"--node-health"}}, func(s *stack.Stack) error {
		rig = s
		return nil
	})
}

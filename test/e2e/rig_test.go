// SPDX-License-Identifier: Apache-2.0

//go:build e2e

// Package e2e tests the chain end to end: simulated GPUs, real agents, a real
// control plane, the real controller.
package e2e

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

// SPDX-License-Identifier: Apache-2.0

//go:build e2e

// Package e2e tests the chain end to end: simulated GPUs, real agents, a real
// control plane, the real controller.
package e2e

import (
	"testing"

	"github.com/gpupilot/gpupilot/test/scalerig"
)

const namespace = scalerig.Namespace

// names are the workloads of the tests. Each test has its own.
var names = []string{
	"updown", "hpa", "agentdies", "restart", "advise", "podsmetric", "preset", "zero",
	"handover", "terminated", "killed", "noderemoved", "hung", "certificate", "promdown", "churn", "clock", "past", "forged", "objects", "objectvalue", "objectaverage",
}

// rig is the one stack that the tests of this package share.
var rig *scalerig.Rig

func TestMain(m *testing.M) { scalerig.Main(m, names, func(r *scalerig.Rig) { rig = r }) }

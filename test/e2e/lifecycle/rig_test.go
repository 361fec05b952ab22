// SPDX-License-Identifier: Apache-2.0

//go:build e2e

// Package lifecycle tests what happens to a scaled workload beside its load, on a real control plane: it is handed over,
// held by a person, idle, paired, drained, rolled out, and its GPUAutoscaler is deleted.
package lifecycle

import (
	"testing"

	"github.com/gpupilot/gpupilot/test/scalerig"
)

const namespace = scalerig.Namespace

// names are the workloads of the tests.
var names = []string{"hold", "drain", "rollout", "rolloutbeside", "chat", "adopted", "scaledobject", "schedule"}

// rig is the one stack that the tests of this package share.
var rig *scalerig.Rig

func TestMain(m *testing.M) { scalerig.Main(m, names, func(r *scalerig.Rig) { rig = r }) }

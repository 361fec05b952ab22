// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package dcgm

import (
	"fmt"
	"testing"

	"github.com/gpupilot/gpupilot/test/gputest"
)

func library(t testing.TB) string {
	t.Helper()
	return gputest.Library(t, "libdcgm-fake.so")
}

func newFake(t testing.TB) *gputest.Scenario { return gputest.NewScenario(t, "GPUPILOT_FAKE_DCGM") }

// keys are the scenario's values by field. DCGM has NVLink's traffic in KiB.
var keys = gputest.Keys(1e6 / 1024)

// migUUID is what the driver of the fake's GPUs would call an instance.
func migUUID(parent string, gi, ci int) string {
	return fmt.Sprintf("MIG-%s-6670-5000-8000-%s%02x%02x", parent[4:12], parent[len(parent)-8:], gi, ci)
}

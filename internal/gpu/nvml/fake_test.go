// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package nvml

import (
	"fmt"
	"math"
	"os"
	"strings"
	"testing"

	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/test/gputest"
)

// A process can use one NVML library only, so the tests run in a process each:
// this variable says which library a process is for: old, or a path. Empty: the
// new one.
const variantEnv = "GPUPILOT_TEST_NVML"

// library is the path of the fake that this process is for.
func library(t testing.TB) string {
	t.Helper()
	switch v := os.Getenv(variantEnv); v {
	case "":
		return gputest.Library(t, "libnvidia-ml-fake.so")
	case "old":
		return gputest.Library(t, "libnvidia-ml-fake-old.so")
	default:
		return v
	}
}

// fake is the scenario of the library that this process is for.
type fake struct {
	*gputest.Scenario
	old bool
}

func newFake(t testing.TB) *fake {
	f := &fake{gputest.NewScenario(t, "GPUPILOT_FAKE_NVML"), os.Getenv(variantEnv) == "old"}
	if f.old {
		f.Put("reserved", "gpu * fb_reserved 0")
	}
	return f
}

// oldLacks are the fields that the library of 2018 does not give.
var oldLacks = gpu.SetOf(gpu.MemoryTemp, gpu.PowerUsageInstant, gpu.FBReserved, gpu.FBFree, gpu.UncorrRemappedRows, gpu.CorrRemappedRows,
	gpu.RowRemapFailure, gpu.RowRemapPending, gpu.NVLinkCRCFlitErrors, gpu.NVLinkCRCDataErrors, gpu.NVLinkReplayErrors,
	gpu.NVLinkRecoveryErrors, gpu.NVLinkBandwidth, gpu.NVLinkBandwidthL0, gpu.GREngineActive, gpu.SMActive, gpu.SMOccupancy, gpu.TensorActive,
	gpu.DRAMActive, gpu.FP64Active, gpu.FP32Active, gpu.FP16Active, gpu.IntActive, gpu.TensorIMMAActive, gpu.TensorHMMAActive,
	gpu.TensorDFMAActive, gpu.NVLinkTxBytes, gpu.NVLinkRxBytes)

func (f *fake) control() gputest.Control {
	keys := gputest.Keys(1000)
	if f.old {
		for id := range keys {
			if oldLacks.HasID(id) {
				delete(keys, id)
			}
		}
		keys[gpu.PCIeTxBytes], keys[gpu.PCIeRxBytes] = gputest.Key{Name: "pcie_tx_kb", Scale: 1. / 1000}, gputest.Key{Name: "pcie_rx_kb", Scale: 1. / 1000}
	}
	c := f.Control(keys)
	set := c.Set
	c.Set = func(i int, id gpu.FieldID, x float64) bool {
		switch {
		case id == gpu.FBFree:
			return !f.old
		case math.IsNaN(x) && !strings.HasPrefix(keys[id].Name, "gpm_"): // NVML has no blank value
			return false
		}
		return set(i, id, x)
	}
	c.SetProcesses = f.setProcesses
	if f.old {
		c.EnableMIG, c.NoProcessTimes = nil, true
	}
	return c
}

// setProcesses makes these the processes of a GPU.
func (f *fake) setProcesses(i int, ps []gpu.Process) {
	var lines []string
	for _, p := range ps {
		mib := -1.
		if p.Memory.OK {
			mib = p.Memory.Value / (1 << 20)
		}
		lines = append(lines, fmt.Sprintf("gpu %d process %d %v %v %s", i, p.PID, mib, 100*p.Utilization.Value, p.Type))
	}
	f.Put(fmt.Sprint("processes", i), strings.Join(lines, "\n"))
}

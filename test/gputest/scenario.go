// SPDX-License-Identifier: Apache-2.0

package gputest

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

// Scenario is the file with the state of a fake library's GPUs (test/fakes/nvml/README.md). It is written anew at each
// change.
type Scenario struct {
	t    testing.TB
	path string
	mu   sync.Mutex
	keys []string          // of lines, in the order in which they were first set
	line map[string]string // by key
}

// NewScenario makes a scenario of three GPUs, which the environment variable env names until the test ends.
func NewScenario(t testing.TB, env string) *Scenario {
	s := &Scenario{t: t, path: filepath.Join(t.TempDir(), "gpus"), line: map[string]string{}}
	s.Put("gpus", "gpus 3")
	t.Setenv(env, s.path)
	return s
}

// Put sets the line of a key; an empty line takes it away.
func (s *Scenario) Put(key, line string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.line[key]; !ok {
		s.keys = append(s.keys, key)
	}
	s.line[key] = line
	var all strings.Builder
	for _, k := range s.keys {
		fmt.Fprintln(&all, s.line[k])
	}
	tmp := s.path + ".new"
	if err := os.WriteFile(tmp, []byte(all.String()), 0o600); err != nil {
		s.t.Fatal(err)
	}
	if err := os.Rename(tmp, s.path); err != nil {
		s.t.Fatal(err)
	}
}

// Set sets a value of GPU i.
func (s *Scenario) Set(i int, key string, x float64) {
	s.Put(fmt.Sprint(i, key), fmt.Sprintf("gpu %d %s %v", i, key, x))
}

// Key is the value of a scenario that shows as a field, times Scale.
type Key struct {
	Name  string
	Scale float64
}

// Keys returns the values of a scenario by field. perMB is how many of the library's units of an NVLink counter a megabyte
// has.
func Keys(perMB float64) map[gpu.FieldID]Key {
	const perMiB = 1. / (1 << 20)
	return map[gpu.FieldID]Key{
		gpu.SMClock: {"sm_clock", 1}, gpu.MemClock: {"mem_clock", 1}, gpu.VideoClock: {"video_clock", 1},
		gpu.ClocksEventReasons: {"clock_reasons", 1}, gpu.MaxSMClock: {"max_sm_clock", 1}, gpu.MaxMemClock: {"max_mem_clock", 1},
		gpu.MemoryTemp: {"mem_temp", 1}, gpu.GPUTemp: {"temp", 1}, gpu.SlowdownTemp: {"slowdown_temp", 1}, gpu.ShutdownTemp: {"shutdown_temp", 1},
		gpu.PowerUsage: {"power", 1}, gpu.PowerUsageInstant: {"power_instant", 1}, gpu.TotalEnergy: {"energy", 1},
		gpu.PowerMgmtLimit: {"power_limit", 1}, gpu.EnforcedPowerLimit: {"enforced_limit", 1}, gpu.PState: {"pstate", 1}, gpu.FanSpeed: {"fan", 1},
		gpu.PCIeReplayCounter: {"pcie_replay", 1}, gpu.GPUUtil: {"util", 1}, gpu.MemCopyUtil: {"mem_util", 1}, gpu.EncUtil: {"enc_util", 1}, gpu.DecUtil: {"dec_util", 1},
		gpu.PCIeMaxLinkGen: {"pcie_max_gen", 1}, gpu.PCIeMaxLinkWidth: {"pcie_max_width", 1}, gpu.PCIeLinkGen: {"pcie_gen", 1}, gpu.PCIeLinkWidth: {"pcie_width", 1},
		gpu.PowerViolation: {"viol_power", 1}, gpu.ThermalViolation: {"viol_thermal", 1}, gpu.SyncBoostViolation: {"viol_sync_boost", 1},
		gpu.BoardLimitViolation: {"viol_board_limit", 1}, gpu.LowUtilViolation: {"viol_low_util", 1}, gpu.ReliabilityViolation: {"viol_reliability", 1},
		gpu.FBTotal: {"fb_total", 1}, gpu.FBReserved: {"fb_reserved", 1}, gpu.FBUsed: {"fb_used", 1},
		gpu.ECCSBEVolatile: {"ecc_sbe_vol", 1}, gpu.ECCDBEVolatile: {"ecc_dbe_vol", 1}, gpu.ECCSBEAggregate: {"ecc_sbe_agg", 1}, gpu.ECCDBEAggregate: {"ecc_dbe_agg", 1},
		gpu.RetiredSBE: {"retired_sbe", 1}, gpu.RetiredDBE: {"retired_dbe", 1}, gpu.RetiredPending: {"retired_pending", 1},
		gpu.UncorrRemappedRows: {"remapped_unc", 1}, gpu.CorrRemappedRows: {"remapped_cor", 1}, gpu.RowRemapFailure: {"remap_failure", 1}, gpu.RowRemapPending: {"remap_pending", 1},
		gpu.NVLinkCRCFlitErrors: {"nvlink_crc_flit", 1}, gpu.NVLinkCRCDataErrors: {"nvlink_crc_data", 1},
		gpu.NVLinkReplayErrors: {"nvlink_replay", 1}, gpu.NVLinkRecoveryErrors: {"nvlink_recovery", 1},
		gpu.NVLinkBandwidth: {"nvlink_tx", perMB}, gpu.NVLinkBandwidthL0: {"nvlink0_tx", perMB}, gpu.VGPULicenseStatus: {"vgpu_license", 1},
		gpu.GREngineActive: {"gpm_gr", 1}, gpu.SMActive: {"gpm_sm", 1}, gpu.SMOccupancy: {"gpm_occ", 1}, gpu.TensorActive: {"gpm_tensor", 1}, gpu.DRAMActive: {"gpm_dram", 1},
		gpu.FP64Active: {"gpm_fp64", 1}, gpu.FP32Active: {"gpm_fp32", 1}, gpu.FP16Active: {"gpm_fp16", 1}, gpu.IntActive: {"gpm_int", 1},
		gpu.TensorIMMAActive: {"gpm_imma", 1}, gpu.TensorHMMAActive: {"gpm_hmma", 1}, gpu.TensorDFMAActive: {"gpm_dfma", 1},
		gpu.PCIeTxBytes: {"gpm_pcie_tx", perMiB}, gpu.PCIeRxBytes: {"gpm_pcie_rx", perMiB},
		gpu.NVLinkTxBytes: {"gpm_nvlink_tx", perMiB}, gpu.NVLinkRxBytes: {"gpm_nvlink_rx", perMiB},
	}
}

// Control drives the GPUs of a scenario. FBFree is what the other values of memory leave.
func (s *Scenario) Control(keys map[gpu.FieldID]Key) Control {
	events := 0
	return Control{
		Set: func(i int, id gpu.FieldID, x float64) bool {
			if id == gpu.FBFree {
				return !math.IsNaN(x)
			}
			k, ok := keys[id]
			if ok {
				s.Set(i, k.Name, x*k.Scale)
			}
			return ok
		},
		Unsupport: func(i int, id gpu.FieldID) bool {
			k, ok := keys[id]
			if ok {
				s.Put(fmt.Sprint(i, k.Name), fmt.Sprintf("gpu %d unsupported %s", i, k.Name))
			}
			return ok
		},
		Lose:         func(i int) { s.Put(fmt.Sprint("lost", i), fmt.Sprintf("gpu %d lost", i)) },
		Restore:      func(i int) { s.Put(fmt.Sprint("lost", i), "") },
		UnloadDriver: func() { s.Put("driver", "driver not-loaded") },
		LoadDriver:   func() { s.Put("driver", "driver loaded") },
		Hang: func(i int) func() {
			s.Put("hang", fmt.Sprintf("gpu %d hang 60000", i))
			return func() { s.Put("hang", "") }
		},
		RaiseXID: func(i int, code uint64) {
			events++
			s.Put(fmt.Sprint("xid", events), fmt.Sprintf("gpu %d xid %d", i, code))
		},
		EnableMIG: func(i int, profile string, n int) { s.Put("mig", fmt.Sprintf("gpu %d mig %s %d", i, profile, n)) },
	}
}

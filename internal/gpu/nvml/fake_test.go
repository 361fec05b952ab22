// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package nvml

import (
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/gpu/gputest"
)

// A process can use one NVML library only, so the tests run in a process each:
// this variable says which library a process is for: old, or a path. Empty: the
// new one.
const variantEnv = "GPUPILOT_TEST_NVML"

const fakeDir = "../../../test/fakes/nvml"

// library is the path of the fake that this process is for, built by make or,
// where make has not run, here.
func library(t testing.TB) string {
	name := "libnvidia-ml-fake.so"
	switch v := os.Getenv(variantEnv); {
	case v == "old":
		name = "libnvidia-ml-fake-old.so"
	case v != "":
		return v
	}
	path, err := buildFake(name)
	if err != nil {
		t.Skipf("no fake NVML: %v", err)
	}
	return path
}

var built atomic.Bool

var buildDir = sync.OnceValues(func() (string, error) {
	if _, err := exec.LookPath("gcc"); err != nil {
		return "", err
	}
	dir, err := os.MkdirTemp("", "gpupilot-fake-nvml-")
	if err != nil {
		return "", err
	}
	built.Store(true)
	cmd := exec.Command("make", "--no-print-directory", "-C", fakeDir, "BIN="+dir)
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("make: %w: %s", err, out)
	}
	return dir, nil
})

// buildFake gives make's library, or a new one where that is missing or older
// than its sources.
func buildFake(name string) (string, error) {
	path, err := filepath.Abs(filepath.Join("../../../bin", name))
	if err != nil {
		return "", err
	}
	sources, err := filepath.Glob(fakeDir + "/*")
	if err != nil {
		return "", err
	}
	sources = append(sources, fakeDir+"/../scenario.h", fakeDir+"/../shared.h")
	lib, err := os.Stat(path)
	fresh := err == nil
	for _, src := range sources {
		if st, err := os.Stat(src); err == nil && fresh && !strings.HasSuffix(src, ".md") && st.ModTime().After(lib.ModTime()) {
			fresh = false
		}
	}
	if fresh {
		return path, nil
	}
	dir, err := buildDir()
	return filepath.Join(dir, name), err
}

func TestMain(m *testing.M) {
	code := m.Run()
	if built.Load() {
		dir, _ := buildDir()
		_ = os.RemoveAll(dir)
	}
	os.Exit(code)
}

// fake writes the file that the fake NVML reads.
type fake struct {
	t    testing.TB
	path string
	old  bool
	mu   sync.Mutex
	keys []string          // of lines, in the order in which they were first set
	line map[string]string // by key
}

func newFake(t testing.TB) *fake {
	f := &fake{t: t, path: filepath.Join(t.TempDir(), "gpus"), old: os.Getenv(variantEnv) == "old", line: map[string]string{}}
	f.put("gpus", "gpus 3")
	if f.old {
		f.put("reserved", "gpu * fb_reserved 0")
	}
	t.Setenv("GPUPILOT_FAKE_NVML", f.path)
	return f
}

// put sets the line of a key; an empty line takes it away.
func (f *fake) put(key, line string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, ok := f.line[key]; !ok {
		f.keys = append(f.keys, key)
	}
	f.line[key] = line
	var all strings.Builder
	for _, k := range f.keys {
		fmt.Fprintln(&all, f.line[k])
	}
	tmp := f.path + ".new"
	if err := os.WriteFile(tmp, []byte(all.String()), 0o644); err != nil {
		f.t.Fatal(err)
	}
	if err := os.Rename(tmp, f.path); err != nil {
		f.t.Fatal(err)
	}
}

func (f *fake) set(i int, key string, x float64) {
	f.put(fmt.Sprint(i, key), fmt.Sprintf("gpu %d %s %v", i, key, x))
}

// key is a value of the fake that shows as a field, times scale.
type key struct {
	name  string
	scale float64
}

var keys = map[gpu.FieldID]key{
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
	gpu.NVLinkBandwidth: {"nvlink_tx", 1000}, gpu.NVLinkBandwidthL0: {"nvlink0_tx", 1000},
	gpu.VGPULicenseStatus: {"vgpu_license", 1},
	gpu.GREngineActive:    {"gpm_gr", 1}, gpu.SMActive: {"gpm_sm", 1}, gpu.SMOccupancy: {"gpm_occ", 1}, gpu.TensorActive: {"gpm_tensor", 1}, gpu.DRAMActive: {"gpm_dram", 1},
	gpu.FP64Active: {"gpm_fp64", 1}, gpu.FP32Active: {"gpm_fp32", 1}, gpu.FP16Active: {"gpm_fp16", 1}, gpu.IntActive: {"gpm_int", 1},
	gpu.TensorIMMAActive: {"gpm_imma", 1}, gpu.TensorHMMAActive: {"gpm_hmma", 1}, gpu.TensorDFMAActive: {"gpm_dfma", 1},
	gpu.PCIeTxBytes: {"gpm_pcie_tx", 1. / (1 << 20)}, gpu.PCIeRxBytes: {"gpm_pcie_rx", 1. / (1 << 20)},
	gpu.NVLinkTxBytes: {"gpm_nvlink_tx", 1. / (1 << 20)}, gpu.NVLinkRxBytes: {"gpm_nvlink_rx", 1. / (1 << 20)},
}

// oldLacks are the fields that the library of 2018 does not give.
var oldLacks = gpu.SetOf(gpu.MemoryTemp, gpu.PowerUsageInstant, gpu.FBReserved, gpu.FBFree, gpu.UncorrRemappedRows, gpu.CorrRemappedRows,
	gpu.RowRemapFailure, gpu.RowRemapPending, gpu.NVLinkCRCFlitErrors, gpu.NVLinkCRCDataErrors, gpu.NVLinkReplayErrors,
	gpu.NVLinkRecoveryErrors, gpu.NVLinkBandwidth, gpu.NVLinkBandwidthL0, gpu.GREngineActive, gpu.SMActive, gpu.SMOccupancy, gpu.TensorActive,
	gpu.DRAMActive, gpu.FP64Active, gpu.FP32Active, gpu.FP16Active, gpu.IntActive, gpu.TensorIMMAActive, gpu.TensorHMMAActive,
	gpu.TensorDFMAActive, gpu.NVLinkTxBytes, gpu.NVLinkRxBytes)

func (f *fake) setField(i int, id gpu.FieldID, x float64) bool {
	k, ok := keys[id]
	switch {
	case f.old && oldLacks.HasID(id):
		return false
	case id == gpu.FBFree:
		return true // what the others leave
	case f.old && (id == gpu.PCIeTxBytes || id == gpu.PCIeRxBytes):
		k = key{strings.Replace(k.name, "gpm_", "", 1) + "_kb", 1. / 1000}
	case math.IsNaN(x) && !strings.HasPrefix(k.name, "gpm_"):
		return false
	}
	if ok {
		f.set(i, k.name, x*k.scale)
	}
	return ok
}

func (f *fake) control() gputest.Control {
	events := 0
	c := gputest.Control{
		Set: f.setField,
		Unsupport: func(i int, id gpu.FieldID) bool {
			k, ok := keys[id]
			if ok && !(f.old && oldLacks.HasID(id)) {
				f.put(fmt.Sprint(i, k.name), fmt.Sprintf("gpu %d unsupported %s", i, k.name))
				return true
			}
			return false
		},
		Lose:         func(i int) { f.put(fmt.Sprint("lost", i), fmt.Sprintf("gpu %d lost", i)) },
		Restore:      func(i int) { f.put(fmt.Sprint("lost", i), "") },
		UnloadDriver: func() { f.put("driver", "driver not-loaded") },
		LoadDriver:   func() { f.put("driver", "driver loaded") },
		Hang: func(i int) func() {
			f.put("hang", fmt.Sprintf("gpu %d hang 60000", i))
			return func() { f.put("hang", "") }
		},
		RaiseXID: func(i int, code uint64) {
			events++
			f.put(fmt.Sprint("xid", events), fmt.Sprintf("gpu %d xid %d", i, code))
		},
		EnableMIG:    func(i int, profile string, n int) { f.put("mig", fmt.Sprintf("gpu %d mig %s %d", i, profile, n)) },
		SetProcesses: f.setProcesses,
	}
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
	f.put(fmt.Sprint("processes", i), strings.Join(lines, "\n"))
}

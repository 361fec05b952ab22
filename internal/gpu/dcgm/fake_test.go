// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package dcgm

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

const fakeDir = "../../../test/fakes/dcgm"

// library is the path of the fake, built by make or, where make has not run
// since it changed, here.
func library(t testing.TB) string {
	path, err := fakeLibrary()
	if err != nil {
		t.Skipf("no fake DCGM: %v", err)
	}
	return path
}

var built atomic.Pointer[string]

var fakeLibrary = sync.OnceValues(func() (string, error) {
	const name = "libdcgm-fake.so"
	path, err := filepath.Abs(filepath.Join("../../../bin", name))
	if err != nil {
		return "", err
	}
	if fresh(path) {
		return path, nil
	}
	if _, err := exec.LookPath("gcc"); err != nil {
		return "", err
	}
	dir, err := os.MkdirTemp("", "gpupilot-fake-dcgm-")
	if err != nil {
		return "", err
	}
	built.Store(&dir)
	if out, err := exec.Command("make", "--no-print-directory", "-C", fakeDir, "BIN="+dir).CombinedOutput(); err != nil {
		return "", fmt.Errorf("make: %w: %s", err, out)
	}
	return filepath.Join(dir, name), nil
})

// fresh says whether the library is younger than its sources.
func fresh(path string) bool {
	sources, err := filepath.Glob(fakeDir + "/*")
	sources = append(sources, fakeDir+"/../scenario.h", fakeDir+"/../shared.h")
	lib, statErr := os.Stat(path)
	if err != nil || statErr != nil {
		return false
	}
	for _, src := range sources {
		if st, err := os.Stat(src); err == nil && !strings.HasSuffix(src, ".md") && st.ModTime().After(lib.ModTime()) {
			return false
		}
	}
	return true
}

func TestMain(m *testing.M) {
	code := m.Run()
	if dir := built.Load(); dir != nil {
		_ = os.RemoveAll(*dir)
	}
	os.Exit(code)
}

// fake writes the file that the fake DCGM reads.
type fake struct {
	t    testing.TB
	path string
	mu   sync.Mutex
	keys []string          // of lines, in the order in which they were first set
	line map[string]string // by key
}

func newFake(t testing.TB) *fake {
	f := &fake{t: t, path: filepath.Join(t.TempDir(), "gpus"), line: map[string]string{}}
	f.put("gpus", "gpus 3")
	t.Setenv("GPUPILOT_FAKE_DCGM", f.path)
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
	if err := os.WriteFile(tmp, []byte(all.String()), 0o600); err != nil {
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

func keys() map[gpu.FieldID]key {
	const perMiB, kibPerMB = 1. / (1 << 20), 1e6 / 1024
	return map[gpu.FieldID]key{
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
		gpu.NVLinkBandwidth: {"nvlink_tx", kibPerMB}, gpu.NVLinkBandwidthL0: {"nvlink0_tx", kibPerMB}, gpu.VGPULicenseStatus: {"vgpu_license", 1},
		gpu.GREngineActive: {"gpm_gr", 1}, gpu.SMActive: {"gpm_sm", 1}, gpu.SMOccupancy: {"gpm_occ", 1}, gpu.TensorActive: {"gpm_tensor", 1}, gpu.DRAMActive: {"gpm_dram", 1},
		gpu.FP64Active: {"gpm_fp64", 1}, gpu.FP32Active: {"gpm_fp32", 1}, gpu.FP16Active: {"gpm_fp16", 1}, gpu.IntActive: {"gpm_int", 1},
		gpu.TensorIMMAActive: {"gpm_imma", 1}, gpu.TensorHMMAActive: {"gpm_hmma", 1}, gpu.TensorDFMAActive: {"gpm_dfma", 1},
		gpu.PCIeTxBytes: {"gpm_pcie_tx", perMiB}, gpu.PCIeRxBytes: {"gpm_pcie_rx", perMiB},
		gpu.NVLinkTxBytes: {"gpm_nvlink_tx", perMiB}, gpu.NVLinkRxBytes: {"gpm_nvlink_rx", perMiB},
	}
}

func (f *fake) setField(i int, id gpu.FieldID, x float64) bool {
	if id == gpu.FBFree {
		return !math.IsNaN(x) // what the others leave
	}
	k, ok := keys()[id]
	if ok {
		f.set(i, k.name, x*k.scale)
	}
	return ok
}

// migUUID is what the driver of the fake's GPUs would call an instance.
func migUUID(parent string, gi, ci int) string {
	return fmt.Sprintf("MIG-%s-6670-5000-8000-%s%02x%02x", parent[4:12], parent[len(parent)-8:], gi, ci)
}

func (f *fake) control() gputest.Control {
	events := 0
	return gputest.Control{
		Set: f.setField,
		Unsupport: func(i int, id gpu.FieldID) bool {
			k, ok := keys()[id]
			if ok {
				f.put(fmt.Sprint(i, k.name), fmt.Sprintf("gpu %d unsupported %s", i, k.name))
			}
			return ok
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
		EnableMIG: func(i int, profile string, n int) { f.put("mig", fmt.Sprintf("gpu %d mig %s %d", i, profile, n)) },
	}
}

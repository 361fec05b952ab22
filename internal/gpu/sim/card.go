// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"math"
	"time"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

// card is the idle and busy figures of a GPU model. The figures of the H200 and
// the H100 are those of nvidia-smi -q on real cards, idle and under a burn
// test.
type card struct {
	model                string
	idleWatt, loadWatt   float64
	limitWatt            float64
	idleC, loadC         float64 // GPU temperature
	memoryOverC          float64 // how much warmer the memory is than the GPU
	slowdownC, shutdownC float64
	idleMHz, maxMHz      float64 // SM clock
	memoryMHz            float64
	idleVideo, maxVideo  float64
	totalMiB, resMiB     float64
}

const defaultModel = "NVIDIA H200"

func cardOf(model string) card {
	c := card{
		model: model, idleWatt: 77.7, loadWatt: 627, limitWatt: 700,
		idleC: 28, loadC: 52, memoryOverC: 4, slowdownC: 89, shutdownC: 95,
		idleMHz: 345, maxMHz: 1980, memoryMHz: 3201, idleVideo: 765, maxVideo: 1545,
		totalMiB: 143771, resMiB: 614,
	}
	if model == "NVIDIA H100 80GB HBM3" {
		c.idleWatt, c.loadWatt, c.memoryMHz, c.totalMiB, c.resMiB = 69.9, 632, 2619, 81559, 479
	}
	return c
}

// Time constants of the physics: NVML's average power covers one second, a
// heat sink follows in about twenty.
const (
	powerTau   = time.Second
	thermalTau = 20 * time.Second
)

// physics is the state that depends on the past: power, heat and energy.
type physics struct {
	at         time.Time // zero: not started
	watt       float64   // averaged
	celsius    float64
	millijoule float64
}

// step advances to now under the given draw. The first step starts in
// equilibrium.
func (p *physics) step(now time.Time, c card, target float64) {
	hot := c.idleC + (c.loadC-c.idleC)*(target-c.idleWatt)/(c.loadWatt-c.idleWatt)
	dt := now.Sub(p.at)
	switch {
	case p.at.IsZero():
		p.watt, p.celsius = target, hot
	case dt > 0:
		// The average draw over dt while it relaxes to target, in closed form.
		k := 1 - math.Exp(-dt.Seconds()/powerTau.Seconds())
		mean := target + (p.watt-target)*k*powerTau.Seconds()/dt.Seconds()
		p.millijoule += mean * dt.Seconds() * 1000
		p.watt += (target - p.watt) * k
		p.celsius += (hot - p.celsius) * (1 - math.Exp(-dt.Seconds()/thermalTau.Seconds()))
	default:
		return
	}
	p.at = now
}

// draw returns the power at utilisation u (0 to 1). It rises faster at first,
// because the clocks go up with the first kernel.
func (c card) draw(u float64) float64 {
	return c.idleWatt + (c.loadWatt-c.idleWatt)*math.Pow(u, 0.85)
}

// fill sets all fields of the card in state s at now in v.
func (c card) fill(v *gpu.Values, s GPUState, p *physics, now time.Time) {
	u := 0.0
	if s.Utilization != nil {
		u = *s.Utilization / 100
	}
	target := c.draw(u)
	p.step(now, c, target)
	v.Set(gpu.PowerUsage, round(p.watt, 0.001))
	v.Set(gpu.PowerUsageInstant, round(target, 0.001))
	v.Set(gpu.TotalEnergy, math.Floor(p.millijoule))
	v.Set(gpu.GPUTemp, math.Round(p.celsius))
	v.Set(gpu.MemoryTemp, math.Round(p.celsius+c.memoryOverC))
	c.fillConstants(v)
	c.fillClocks(v, u)
	if s.Utilization != nil {
		fillActivity(v, u)
	}
	if s.MemoryUsedMiB != nil {
		c.fillMemory(v, *s.MemoryUsedMiB)
	}
	v.Set(gpu.XIDErrors, 0)
	if n := len(s.XIDs); n > 0 {
		v.Set(gpu.XIDErrors, float64(s.XIDs[n-1].Code))
	}
}

func (c card) fillConstants(v *gpu.Values) {
	v.Set(gpu.SlowdownTemp, c.slowdownC)
	v.Set(gpu.ShutdownTemp, c.shutdownC)
	v.Set(gpu.PowerMgmtLimit, c.limitWatt)
	v.Set(gpu.EnforcedPowerLimit, c.limitWatt)
	v.Set(gpu.MaxSMClock, c.maxMHz)
	v.Set(gpu.MaxMemClock, c.memoryMHz)
	v.Set(gpu.MemClock, c.memoryMHz)
	v.Set(gpu.PState, 0)
	v.Set(gpu.PCIeLinkGen, 5)
	v.Set(gpu.PCIeMaxLinkGen, 5)
	v.Set(gpu.PCIeLinkWidth, 16)
	v.Set(gpu.PCIeMaxLinkWidth, 16)
	for _, id := range []gpu.FieldID{
		gpu.PCIeReplayCounter, gpu.EncUtil, gpu.DecUtil, gpu.VGPULicenseStatus,
		gpu.PowerViolation, gpu.ThermalViolation, gpu.SyncBoostViolation,
		gpu.BoardLimitViolation, gpu.LowUtilViolation, gpu.ReliabilityViolation,
		gpu.ECCSBEVolatile, gpu.ECCDBEVolatile, gpu.ECCSBEAggregate, gpu.ECCDBEAggregate,
		gpu.UncorrRemappedRows, gpu.CorrRemappedRows, gpu.RowRemapFailure, gpu.RowRemapPending,
		gpu.NVLinkCRCFlitErrors, gpu.NVLinkCRCDataErrors, gpu.NVLinkReplayErrors, gpu.NVLinkRecoveryErrors,
	} {
		v.Set(id, 0) // a healthy card
	}
	v.SetLabel(gpu.DriverVersion, "sim")
	v.SetLabel(gpu.NVMLVersion, "sim")
	v.SetLabel(gpu.Brand, "NVIDIA")
}

// clockIdle is bit 0 of the clocks' event reasons: nothing runs.
const clockIdle = 0x1

// fillClocks sets the clocks: a busy card runs at its highest clock.
func (c card) fillClocks(v *gpu.Values, u float64) {
	sm, video, reasons := c.maxMHz, c.maxVideo, 0
	if u == 0 {
		sm, video, reasons = c.idleMHz, c.idleVideo, clockIdle
	}
	v.Set(gpu.SMClock, sm)
	v.Set(gpu.VideoClock, video)
	v.Set(gpu.ClocksEventReasons, float64(reasons))
}

// fillActivity sets the profiling ratios of an LLM server that decodes: limited
// by memory, with a low tensor load, all proportional to u.
func fillActivity(v *gpu.Values, u float64) {
	v.Set(gpu.GPUUtil, math.Round(100*u))
	v.Set(gpu.MemCopyUtil, math.Round(100*0.55*u))
	v.Set(gpu.GREngineActive, round(u, 1e-6))
	v.Set(gpu.SMActive, round(0.86*u, 1e-6))
	v.Set(gpu.SMOccupancy, round(0.24*u, 1e-6))
	v.Set(gpu.TensorActive, round(0.31*u, 1e-6))
	v.Set(gpu.TensorHMMAActive, round(0.30*u, 1e-6))
	v.Set(gpu.TensorIMMAActive, 0)
	v.Set(gpu.TensorDFMAActive, 0)
	v.Set(gpu.DRAMActive, round(0.62*u, 1e-6))
	v.Set(gpu.FP64Active, 0)
	v.Set(gpu.FP32Active, round(0.09*u, 1e-6))
	v.Set(gpu.FP16Active, round(0.05*u, 1e-6))
	v.Set(gpu.IntActive, round(0.12*u, 1e-6))
	v.Set(gpu.PCIeTxBytes, math.Round(0.4e9*u))
	v.Set(gpu.PCIeRxBytes, math.Round(1.1e9*u))
	v.Set(gpu.NVLinkTxBytes, math.Round(38e9*u))
	v.Set(gpu.NVLinkRxBytes, math.Round(38e9*u))
	v.Set(gpu.NVLinkBandwidth, math.Round(76e3*u))
	v.Set(gpu.NVLinkBandwidthL0, math.Round(76e3/18*u)) // of 18 links
}

func (c card) fillMemory(v *gpu.Values, used float64) {
	usable := c.totalMiB - c.resMiB
	used = math.Round(min(used, usable))
	v.Set(gpu.FBTotal, c.totalMiB)
	v.Set(gpu.FBReserved, c.resMiB)
	v.Set(gpu.FBUsed, used)
	v.Set(gpu.FBFree, usable-used)
	v.Set(gpu.FBUsedPercent, round(used/usable, 1e-6))
}

func round(x, to float64) float64 { return math.Round(x/to) * to }

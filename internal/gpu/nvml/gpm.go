// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package nvml

import (
	"math"
	"sync/atomic"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/gpu/vendorlib"
)

// minSampleGap is how far apart two GPM samples must be: more than 100 ms,
// nvml.h says.
const minSampleGap = 101 * time.Millisecond

// gpmMetric is a GPM metric that gives a field.
type gpmMetric struct {
	id     gpu.FieldID
	metric nvml.GpmMetricId
	scale  float64
}

const (
	perCent  = 1. / 100 // GPM's percents as ratios
	mebibyte = 1 << 20  // GPM's MiB/s as B/s
)

var gpmMetrics = [...]gpmMetric{
	{gpu.GREngineActive, nvml.GPM_METRIC_GRAPHICS_UTIL, perCent},
	{gpu.SMActive, nvml.GPM_METRIC_SM_UTIL, perCent},
	{gpu.SMOccupancy, nvml.GPM_METRIC_SM_OCCUPANCY, perCent},
	{gpu.TensorActive, nvml.GPM_METRIC_ANY_TENSOR_UTIL, perCent},
	{gpu.DRAMActive, nvml.GPM_METRIC_DRAM_BW_UTIL, perCent},
	{gpu.FP64Active, nvml.GPM_METRIC_FP64_UTIL, perCent},
	{gpu.FP32Active, nvml.GPM_METRIC_FP32_UTIL, perCent},
	{gpu.FP16Active, nvml.GPM_METRIC_FP16_UTIL, perCent},
	{gpu.PCIeTxBytes, nvml.GPM_METRIC_PCIE_TX_PER_SEC, mebibyte},
	{gpu.PCIeRxBytes, nvml.GPM_METRIC_PCIE_RX_PER_SEC, mebibyte},
	{gpu.NVLinkTxBytes, nvml.GPM_METRIC_NVLINK_TOTAL_TX_PER_SEC, mebibyte},
	{gpu.NVLinkRxBytes, nvml.GPM_METRIC_NVLINK_TOTAL_RX_PER_SEC, mebibyte},
	{gpu.TensorIMMAActive, nvml.GPM_METRIC_IMMA_TENSOR_UTIL, perCent},
	{gpu.TensorHMMAActive, nvml.GPM_METRIC_HMMA_TENSOR_UTIL, perCent},
	{gpu.TensorDFMAActive, nvml.GPM_METRIC_DFMA_TENSOR_UTIL, perCent},
	{gpu.IntActive, nvml.GPM_METRIC_INTEGER_UTIL, perCent},
}

func gpmFields() gpu.FieldSet {
	var s gpu.FieldSet
	for _, m := range gpmMetrics {
		i, _ := gpu.IndexOf(m.id)
		s.Add(i)
	}
	return s
}

// gpmState is the state of a device between samples.
type gpmState struct {
	refused   vendorlib.Refusal // GPM
	absent    atomic.Bool       // the device does not support GPM
	supported bool
	pcie      vendorlib.Refusal // PCIe throughput without GPM
	prev, cur nvml.GpmSample
	at        time.Time // of prev; zero: prev is empty
	request   nvml.GpmMetricsGetType
	last      [len(gpmMetrics)]float64 // NaN: no value
}

// forget drops the sample and the computed values.
func (g *gpmState) forget() {
	g.at = time.Time{}
	g.blank()
}

func (g *gpmState) blank() {
	for k := range g.last {
		g.last[k] = math.NaN()
	}
}

func (g *gpmState) free() {
	for _, s := range []nvml.GpmSample{g.prev, g.cur} {
		if s != nil {
			_ = s.Free() // an error cannot be handled
		}
	}
	g.prev, g.cur, g.supported = nil, nil, false
	g.forget()
}

// readGPM sets the means between the last sample and a new one. If the last is
// younger than minSampleGap, it sets the last means again.
func readGPM(d *device) nvml.Return {
	g := &d.gpm
	if !d.ses.gpm || d.MIG != nil && !d.ses.gpmMIG || g.refused.Holds(d.now) {
		return readPCIe(d)
	}
	if ret := g.prepare(d); ret != nvml.SUCCESS {
		return ret
	}
	if !g.supported {
		return readPCIe(d)
	}
	if g.at.IsZero() || d.now.Sub(g.at) >= minSampleGap {
		if ret := g.advance(d); ret != nvml.SUCCESS {
			g.forget()
			if classify(ret) == unsupported {
				g.unsupported(d.now)
				return readPCIe(d)
			}
			return ret
		}
	}
	for k, m := range gpmMetrics {
		if !math.IsNaN(g.last[k]) { // GPM's value for no value
			d.out.set(m.id, g.last[k])
		}
	}
	return nvml.SUCCESS
}

func (g *gpmState) unsupported(now time.Time) {
	g.refused.Record(now)
	g.absent.Store(true)
}

// noProfiling returns why the device gives no GPM metrics; empty if it does.
func (d *device) noProfiling() string {
	switch {
	case !d.ses.gpm || d.MIG != nil && !d.ses.gpmMIG:
		return "this NVML has no GPM"
	case d.gpm.absent.Load():
		return gpu.NoProfilingByNVML
	}
	return ""
}

// prepare asks once whether the device has GPM, and allocates the samples.
func (g *gpmState) prepare(d *device) nvml.Return {
	if g.supported {
		return nvml.SUCCESS
	}
	support, ret := d.root.GpmQueryDeviceSupport()
	if c := classify(ret); c != good && c != unsupported && c != invalid {
		return ret
	}
	if ret != nvml.SUCCESS || support.IsSupportedDevice == 0 {
		g.unsupported(d.now)
		return nvml.SUCCESS
	}
	g.absent.Store(false)
	for _, s := range []*nvml.GpmSample{&g.prev, &g.cur} {
		if *s != nil {
			continue
		}
		fresh, ret := d.ses.lib.GpmSampleAlloc()
		if ret != nvml.SUCCESS {
			return ret
		}
		*s = fresh
	}
	g.supported = true
	g.forget()
	return nvml.SUCCESS
}

// advance takes a new sample and computes the wanted metrics between it and
// the one before, if there was one.
func (g *gpmState) advance(d *device) nvml.Return {
	if ret := g.sample(d); ret != nvml.SUCCESS {
		return ret
	}
	first := g.at.IsZero()
	g.prev, g.cur, g.at = g.cur, g.prev, d.now
	g.blank()
	if first {
		return nvml.SUCCESS
	}
	var which [len(gpmMetrics)]int
	n := 0
	for k, m := range gpmMetrics {
		if d.out.want.HasID(m.id) {
			g.request.Metrics[n] = nvml.GpmMetric{MetricId: uint32(m.metric), NvmlReturn: uint32(nvml.ERROR_UNKNOWN), Value: math.NaN()}
			which[n] = k
			n++
		}
	}
	g.request.NumMetrics = uint32(n)
	g.request.Sample1, g.request.Sample2 = g.cur, g.prev // older, newer
	if ret := d.ses.lib.GpmMetricsGet(&g.request); ret != nvml.SUCCESS {
		return ret
	}
	for i, a := range g.request.Metrics[:n] {
		if nvml.Return(a.NvmlReturn) == nvml.SUCCESS {
			g.last[which[i]] = a.Value * gpmMetrics[which[i]].scale
		}
	}
	return nvml.SUCCESS
}

func (g *gpmState) sample(d *device) nvml.Return {
	if d.MIG != nil {
		return d.root.GpmMigSampleGet(d.MIG.GPUInstance, g.cur)
	}
	return d.root.GpmSampleGet(g.cur)
}

// readPCIe serves GPUs before Hopper. NVML measures for 20 ms at each call.
func readPCIe(d *device) nvml.Return {
	g := &d.gpm
	if d.MIG != nil || !d.ses.pcie || g.pcie.Holds(d.now) {
		return nvml.SUCCESS
	}
	for _, c := range [...]struct {
		id      gpu.FieldID
		counter nvml.PcieUtilCounter
	}{{gpu.PCIeTxBytes, nvml.PCIE_UTIL_TX_BYTES}, {gpu.PCIeRxBytes, nvml.PCIE_UTIL_RX_BYTES}} {
		if !d.out.want.HasID(c.id) {
			continue
		}
		kb, ret := d.handle.GetPcieThroughput(c.counter)
		if classify(ret) == unsupported {
			g.pcie.Record(d.now)
			return nvml.SUCCESS
		}
		if ret != nvml.SUCCESS {
			return ret
		}
		d.out.set(c.id, float64(kb)*1000) // KB/s, nvml.h
	}
	return nvml.SUCCESS
}

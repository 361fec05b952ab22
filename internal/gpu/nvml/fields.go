// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package nvml

import (
	"encoding/binary"
	"math"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/gpu/vendorlib"
)

// allLinks is the scope of a NVLink counter that sums up all links.
const allLinks = math.MaxUint32

// minRateWindow is the shortest time between two readings of a counter for a
// rate. Until then the last rate is used.
const minRateWindow = 100 * time.Millisecond

// maxLinks is how many NVLinks a GPU has at the most: a B200 has 18.
const maxLinks = 18

// linkBandwidth are the fields of all links' bandwidth, and of each link's.
var linkBandwidth = [1 + maxLinks]gpu.FieldID{
	gpu.NVLinkBandwidth, gpu.NVLinkBandwidthL0, 441, 442, 443, 444, 445, 475, 476, 477, 478, 479, 480, 446, 447, 448, 494, 495, 496,
}

// batchField is an NVML field id that gives a field, or one half of a rate.
type batchField struct {
	id    gpu.FieldID
	nvml  uint32 // NVML_FI_DEV_*
	scope uint32
	scale float64
	max   float64 // a larger number is not a value; 0: no limit
	part  int     // 1, 2: transmitted and received of a rate
}

// batch is plainBatch and two rows for each field of linkBandwidth.
var batch = func() (all [len(plainBatch) + 2*len(linkBandwidth)]batchField) {
	n := copy(all[:], plainBatch[:])
	for i, id := range linkBandwidth {
		scope := uint32(allLinks)
		if i > 0 {
			scope = uint32(i - 1)
		}
		all[n] = batchField{id: id, nvml: nvml.FI_DEV_NVLINK_THROUGHPUT_DATA_TX, scope: scope, part: 1}
		all[n+1] = batchField{id: id, nvml: nvml.FI_DEV_NVLINK_THROUGHPUT_DATA_RX, scope: scope, part: 2}
		n += 2
	}
	return all
}()

var plainBatch = [...]batchField{
	{id: gpu.MemoryTemp, nvml: nvml.FI_DEV_MEMORY_TEMP, scale: 1, max: 200}, // 255 means no value
	{id: gpu.PowerUsageInstant, nvml: nvml.FI_DEV_POWER_INSTANT, scale: 1e-3},
	{id: gpu.TotalEnergy, nvml: nvml.FI_DEV_TOTAL_ENERGY_CONSUMPTION, scale: 1},
	{id: gpu.PCIeReplayCounter, nvml: nvml.FI_DEV_PCIE_REPLAY_COUNTER, scale: 1},
	{id: gpu.PowerViolation, nvml: nvml.FI_DEV_PERF_POLICY_POWER, scale: 1},
	{id: gpu.ThermalViolation, nvml: nvml.FI_DEV_PERF_POLICY_THERMAL, scale: 1},
	{id: gpu.SyncBoostViolation, nvml: nvml.FI_DEV_PERF_POLICY_SYNC_BOOST, scale: 1},
	{id: gpu.BoardLimitViolation, nvml: nvml.FI_DEV_PERF_POLICY_BOARD_LIMIT, scale: 1},
	{id: gpu.LowUtilViolation, nvml: nvml.FI_DEV_PERF_POLICY_LOW_UTILIZATION, scale: 1},
	{id: gpu.ReliabilityViolation, nvml: nvml.FI_DEV_PERF_POLICY_RELIABILITY, scale: 1},
	{id: gpu.ECCSBEVolatile, nvml: nvml.FI_DEV_ECC_SBE_VOL_TOTAL, scale: 1},
	{id: gpu.ECCDBEVolatile, nvml: nvml.FI_DEV_ECC_DBE_VOL_TOTAL, scale: 1},
	{id: gpu.ECCSBEAggregate, nvml: nvml.FI_DEV_ECC_SBE_AGG_TOTAL, scale: 1},
	{id: gpu.ECCDBEAggregate, nvml: nvml.FI_DEV_ECC_DBE_AGG_TOTAL, scale: 1},
	{id: gpu.RetiredSBE, nvml: nvml.FI_DEV_RETIRED_SBE, scale: 1},
	{id: gpu.RetiredDBE, nvml: nvml.FI_DEV_RETIRED_DBE, scale: 1},
	{id: gpu.RetiredPending, nvml: nvml.FI_DEV_RETIRED_PENDING, scale: 1},
	{id: gpu.CorrRemappedRows, nvml: nvml.FI_DEV_REMAPPED_COR, scale: 1},
	{id: gpu.UncorrRemappedRows, nvml: nvml.FI_DEV_REMAPPED_UNC, scale: 1},
	{id: gpu.RowRemapPending, nvml: nvml.FI_DEV_REMAPPED_PENDING, scale: 1},
	{id: gpu.RowRemapFailure, nvml: nvml.FI_DEV_REMAPPED_FAILURE, scale: 1},
	{id: gpu.NVLinkCRCFlitErrors, nvml: nvml.FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL, scale: 1},
	{id: gpu.NVLinkCRCDataErrors, nvml: nvml.FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL, scale: 1},
	{id: gpu.NVLinkReplayErrors, nvml: nvml.FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL, scale: 1},
	{id: gpu.NVLinkRecoveryErrors, nvml: nvml.FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL, scale: 1},
}

func batchFields() gpu.FieldSet {
	var s gpu.FieldSet
	for _, f := range batch {
		i, _ := gpu.IndexOf(f.id)
		s.Add(i)
	}
	return s
}

// fieldState is the state of a device's batches between reads.
type fieldState struct {
	refused [len(batch)]vendorlib.Refusal
	values  [len(batch)]nvml.FieldValue
	which   [len(batch)]int // values[k] answers batch[which[k]]
	links   [len(linkBandwidth)]linkRate
}

// forget drops the counters, which may start again at 0.
func (s *fieldState) forget() { s.links = [len(linkBandwidth)]linkRate{} }

// linkRate computes a rate from a pair of counters.
type linkRate struct {
	at     time.Time // of the counters below; zero: no counters
	tx, rx float64   // KiB
	rate   float64   // MB/s
	known  bool
}

// readBatch reads all wanted field ids with one call.
func readBatch(d *device) nvml.Return {
	s := &d.fields
	n := 0
	have := d.out.v.Fields()
	for k := range batch {
		f := &batch[k]
		if !d.out.want.HasID(f.id) || have.HasID(f.id) || s.refused[k].Holds(d.now) {
			continue
		}
		s.which[n] = k
		s.values[n] = question(f.nvml, f.scope)
		n++
	}
	if n == 0 {
		return nvml.SUCCESS
	}
	if ret := getFieldValues(d.handle, s.values[:n]); ret != nvml.SUCCESS {
		return ret
	}
	return d.takeBatch(n)
}

// getFieldValues asks for all values with one call, or for each alone if the
// library refuses that for an id that it does not know.
func getFieldValues(handle nvml.Device, values []nvml.FieldValue) nvml.Return {
	ret := handle.GetFieldValues(values)
	if classify(ret) != invalid {
		return ret
	}
	for i := range values {
		if one := handle.GetFieldValues(values[i : i+1]); one != nvml.SUCCESS {
			values[i].NvmlReturn = uint32(one)
		}
	}
	return nvml.SUCCESS
}

// untouched marks a return code or value type that the library has not written.
// An initial 0 would look like a value of 0.
const untouched = math.MaxUint32

// question returns a field value for the library to fill in.
func question(id, scope uint32) nvml.FieldValue {
	return nvml.FieldValue{FieldId: id, ScopeId: scope, NvmlReturn: untouched, ValueType: untouched}
}

// verdict classifies an answer's return code. An answer with a value and
// without a code is good.
func verdict(a *nvml.FieldValue) class {
	switch {
	case a.NvmlReturn != untouched:
		return classify(nvml.Return(a.NvmlReturn))
	case a.ValueType != untouched:
		return good
	}
	return unsupported
}

// takeBatch stores the n answers. It returns GPU_IS_LOST if all of them have
// that code.
func (d *device) takeBatch(n int) nvml.Return {
	s := &d.fields
	var parts [len(linkBandwidth)]struct{ tx, rx float64 }
	var got [len(linkBandwidth)]int
	gone := 0
	for i, a := range s.values[:n] {
		k := s.which[i]
		f := &batch[k]
		switch verdict(&a) {
		case good:
		case unsupported, invalid:
			s.refused[k].Record(d.now)
			continue
		case lost:
			gone++
			continue
		default:
			continue
		}
		n, ok := number(&a)
		x := n.Float
		link := 0
		if f.scope != allLinks {
			link = 1 + int(f.scope)
		}
		switch {
		case !ok || f.max > 0 && x > f.max:
		case f.part == 1:
			parts[link].tx = x
			got[link]++
		case f.part == 2:
			parts[link].rx = x
			got[link]++
		default:
			d.out.setNumber(f.id, n, f.scale)
		}
	}
	for link, id := range linkBandwidth {
		if got[link] == 2 {
			if rate, ok := s.links[link].update(d.now, parts[link].tx, parts[link].rx); ok {
				d.out.set(id, rate)
			}
		}
	}
	if gone == n {
		return nvml.ERROR_GPU_IS_LOST
	}
	return nvml.SUCCESS
}

// update takes counters in KiB and returns the rate in DCGM's MB/s, which are
// 1000 KiB/s.
func (l *linkRate) update(now time.Time, tx, rx float64) (float64, bool) {
	since := now.Sub(l.at)
	switch {
	case l.at.IsZero() || tx < l.tx || rx < l.rx:
		*l = linkRate{at: now, tx: tx, rx: rx}
	case since >= minRateWindow:
		rate := (tx - l.tx + rx - l.rx) / since.Seconds() / 1000
		*l = linkRate{at: now, tx: tx, rx: rx, rate: rate, known: true}
	}
	return l.rate, l.known
}

// number decodes an answer's value.
func number(a *nvml.FieldValue) (gpu.Number, bool) {
	bits := binary.NativeEndian.Uint64(a.Value[:])
	switch nvml.ValueType(a.ValueType) {
	case nvml.VALUE_TYPE_DOUBLE:
		return gpu.Real(math.Float64frombits(bits)), true
	case nvml.VALUE_TYPE_UNSIGNED_INT:
		return gpu.Whole(int64(binary.NativeEndian.Uint32(a.Value[:]))), true
	case nvml.VALUE_TYPE_UNSIGNED_LONG, nvml.VALUE_TYPE_UNSIGNED_LONG_LONG: // 64 bits both, on Linux
		if bits > math.MaxInt64 {
			return gpu.Real(float64(bits)), true
		}
		return gpu.Whole(int64(bits)), true
	case nvml.VALUE_TYPE_SIGNED_LONG_LONG:
		return gpu.Whole(int64(bits)), true
	case nvml.VALUE_TYPE_SIGNED_INT:
		return gpu.Whole(int64(int32(binary.NativeEndian.Uint32(a.Value[:])))), true
	case nvml.VALUE_TYPE_UNSIGNED_SHORT:
		return gpu.Whole(int64(binary.NativeEndian.Uint16(a.Value[:]))), true
	}
	return gpu.Number{}, false
}

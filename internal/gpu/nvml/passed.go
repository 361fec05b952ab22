// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package nvml

import (
	"cmp"
	"math"
	"strconv"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/gpu/vendorlib"
)

// equivalent is consecutive fields of DCGM, outside of the gpu package's table,
// that DCGM itself reads through NVML: the first one as from says, each further
// one as the next field value, or of the next link.
type equivalent struct {
	first, last gpu.FieldID
	from        source
}

// source is where NVML has a value: in a field value, or in an error counter of
// one link.
type source struct {
	field   uint32 // NVML_FI_DEV_*; 0: the counter
	scope   uint32 // of the field value; the counter's link
	counter nvml.NvLinkErrorCounter
	moved   bool // the field value's number depends on the driver: see throttleShift
	ber     bool // a bit error rate in NVML's encoding, to be decoded
}

// equivalents are sorted by field. They follow DCGM 4.6 (dcgm_fields.cpp,
// DcgmCacheManager.cpp), which also sums up the links for the fields from 1200 on.
var equivalents = [...]equivalent{
	{400, 405, source{field: nvml.FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_L0}},
	{406, 408, source{counter: nvml.NVLINK_ERROR_DL_CRC_FLIT, scope: 12}},
	{410, 415, source{field: nvml.FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_L0}},
	{416, 418, source{counter: nvml.NVLINK_ERROR_DL_CRC_DATA, scope: 12}},
	{420, 425, source{field: nvml.FI_DEV_NVLINK_REPLAY_ERROR_COUNT_L0}},
	{426, 428, source{counter: nvml.NVLINK_ERROR_DL_REPLAY, scope: 12}},
	{430, 435, source{field: nvml.FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_L0}},
	{436, 438, source{counter: nvml.NVLINK_ERROR_DL_RECOVERY, scope: 12}},
	{451, 456, source{field: nvml.FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_L6}},
	{457, 462, source{field: nvml.FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_L6}},
	{463, 468, source{field: nvml.FI_DEV_NVLINK_REPLAY_ERROR_COUNT_L6}},
	{469, 474, source{field: nvml.FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_L6}},
	{481, 483, source{counter: nvml.NVLINK_ERROR_DL_CRC_FLIT, scope: 15}},
	{484, 486, source{counter: nvml.NVLINK_ERROR_DL_CRC_DATA, scope: 15}},
	{487, 489, source{counter: nvml.NVLINK_ERROR_DL_REPLAY, scope: 15}},
	{491, 493, source{counter: nvml.NVLINK_ERROR_DL_RECOVERY, scope: 15}},
	{1200, 1203, source{field: nvml.FI_DEV_NVLINK_COUNT_XMIT_PACKETS, scope: allLinks}},
	{1204, 1213, source{field: nvml.FI_DEV_NVLINK_COUNT_MALFORMED_PACKET_ERRORS, scope: allLinks}},
	{1214, 1214, source{field: nvml.FI_DEV_NVLINK_COUNT_SYMBOL_ERRORS, scope: allLinks}},
	{1215, 1215, source{field: nvml.FI_DEV_NVLINK_COUNT_SYMBOL_BER, scope: allLinks}},
	{1216, 1216, source{field: nvml.FI_DEV_NVLINK_COUNT_SYMBOL_BER, scope: allLinks, ber: true}},
	{1217, 1217, source{field: nvml.FI_DEV_NVLINK_COUNT_EFFECTIVE_BER, scope: allLinks}},
	{1218, 1218, source{field: nvml.FI_DEV_NVLINK_COUNT_EFFECTIVE_BER, scope: allLinks, ber: true}},
	{1219, 1219, source{field: nvml.FI_DEV_NVLINK_COUNT_EFFECTIVE_ERRORS, scope: allLinks}},
	{1220, 1220, source{field: nvml.FI_DEV_NVLINK_ECC_DATA_ERROR_COUNT_TOTAL}},
	{1400, 1403, source{field: nvml.FI_DEV_C2C_LINK_ERROR_INTR}},
	{1404, 1419, source{field: nvml.FI_DEV_NVLINK_COUNT_FEC_HISTORY_0, scope: allLinks}},
	{1420, 1420, source{field: nvml.FI_DEV_CLOCKS_EVENT_REASON_SW_POWER_CAP}},
	{1421, 1421, source{field: nvml.FI_DEV_CLOCKS_EVENT_REASON_SYNC_BOOST}},
	{1422, 1424, source{field: nvml.FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN, moved: true}},
	{1501, 1501, source{field: nvml.FI_DEV_PCIE_COUNT_CORRECTABLE_ERRORS}},
	{1523, 1523, source{field: nvml.FI_DEV_GET_GPU_RECOVERY_ACTION}},
}

// sourceOf returns where NVML has a field that is not in the table.
func sourceOf(id gpu.FieldID) (source, bool) {
	for _, e := range equivalents {
		if id < e.first || id > e.last {
			continue
		}
		s, n := e.from, uint32(id-e.first)
		if s.field == 0 {
			s.scope += n
		} else {
			s.field += n
		}
		return s, true
	}
	return source{}, false
}

// throttleShift returns by how much the numbers of the field values 269 to 271,
// the time that the clocks were throttled, differ in a driver. They were 251 to
// 253 until driver 580.65 (CUDA 13.0), and have their numbers from 580.82 (CUDA
// 13.0 Update 1) on, where 251 to 253 are about power smoothing. ok is false for a
// version between these two, or without numbers.
func throttleShift(driver string) (shift uint32, ok bool) {
	first, rest, _ := strings.Cut(driver, ".")
	second, _, _ := strings.Cut(rest, ".")
	major, err1 := strconv.Atoi(first)
	minor, err2 := strconv.Atoi(second)
	if err := cmp.Or(err1, err2); err != nil {
		return 0, false
	}
	switch {
	case major > 580 || major == 580 && minor >= 82:
		return 0, true
	case major < 580 || minor <= 65:
		return nvml.FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN - 251, true
	}
	return 0, false
}

// Pass sets the fields outside of the table that Read also reads, and returns
// those that NVML does not have. See gpu.Passer.
func (r *Reader) Pass(ids []gpu.FieldID) (others []gpu.FieldID) {
	var mine []gpu.FieldID
	for _, id := range ids {
		if _, ok := sourceOf(id); ok || isIdentity(id) {
			mine = append(mine, id)
		} else {
			others = append(others, id)
		}
	}
	r.pass.Store(&mine)
	return others
}

// passedState is the state of a whole GPU's fields outside of the table.
type passedState struct {
	from    *[]gpu.FieldID // of which Reader.Pass
	rows    []passedRow
	values  []nvml.FieldValue // room for the field values of rows
	answers []*passedRow      // values[k] answers answers[k]
}

// passedRow is a field outside of the table.
type passedRow struct {
	id gpu.FieldID
	source
	refused vendorlib.Refusal
}

// passes reports whether fields outside of the table are to be read.
func (s *session) passes() bool {
	ids := s.pass.Load()
	return ids != nil && len(*ids) > 0
}

// passing returns the fields to read of a whole GPU.
func (d *device) passing() *passedState {
	s := &d.passed
	from := d.ses.pass.Load()
	if s.from == from {
		return s
	}
	*s = passedState{from: from}
	shift, known := throttleShift(d.ses.driver)
	for _, id := range *from {
		src, ok := sourceOf(id)
		if !ok {
			continue
		}
		if src.moved {
			src.field -= shift
		}
		if (!src.moved || known) && d.ses.has(src.symbol()) {
			s.rows = append(s.rows, passedRow{id: id, source: src})
		}
	}
	s.values, s.answers = make([]nvml.FieldValue, len(s.rows)), make([]*passedRow, len(s.rows))
	return s
}

// symbol is the function that reads a source.
func (s *source) symbol() string {
	if s.field == 0 {
		return "nvmlDeviceGetNvLinkErrorCounter"
	}
	return "nvmlDeviceGetFieldValues"
}

// readPassed reads the fields outside of the table: all field values with one
// call. It does not judge the GPU, which the basic probes do.
func (d *device) readPassed() {
	s := d.passing()
	n := 0
	for i := range s.rows {
		row := &s.rows[i]
		switch {
		case row.refused.Holds(d.now):
		case row.field == 0:
			x, ret := d.root.GetNvLinkErrorCounter(int(row.scope), row.counter)
			d.take(row, classify(ret), wholeOf(x))
		default:
			s.values[n], s.answers[n] = question(row.field, row.scope), row
			n++
		}
	}
	if n == 0 || getFieldValues(d.root, s.values[:n]) != nvml.SUCCESS {
		return
	}
	for k := range s.values[:n] {
		answer := &s.values[k]
		x, ok := number(answer)
		if c := verdict(answer); ok || c != good {
			d.take(s.answers[k], c, x)
		}
	}
}

// take stores the answer for a field.
func (d *device) take(row *passedRow, c class, x gpu.Number) {
	switch {
	case c == unsupported || c == invalid:
		row.refused.Record(d.now)
	case c != good:
	case x.Float >= math.MaxInt64:
		d.out.v.SetNone()
	case row.ber:
		d.out.v.Take(row.id, gpu.Real(bitErrorRate(x.Int)))
	default:
		d.out.v.Take(row.id, x)
	}
}

// bitErrorRate decodes NVML_NVLINK_ERROR_COUNTER_BER_GET: a mantissa of four bits
// above a negative exponent of eight. An error-free link has 15 and 255.
func bitErrorRate(bits int64) float64 {
	return float64(bits>>8&0xf) / math.Pow10(int(bits&0xff))
}

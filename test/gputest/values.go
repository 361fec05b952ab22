// SPDX-License-Identifier: Apache-2.0

package gputest

import (
	"fmt"
	"math"
	"testing"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

// sample is a value that a backend must show. All values differ, so that a
// field with another field's value is detected. They are exact in the units of
// GPU libraries (mW, bytes, hundredths).
type sample struct {
	id    gpu.FieldID
	value float64
	rate  bool // derived from two readings: 15 % of tolerance
}

func samples() []sample {
	s := func(id gpu.FieldID, value float64) sample { return sample{id: id, value: value} }
	return []sample{
		s(gpu.SMClock, 1755), s(gpu.MemClock, 3201), s(gpu.VideoClock, 1545),
		s(gpu.ClocksEventReasons, 4), s(gpu.MaxSMClock, 1980), s(gpu.MaxMemClock, 3202),
		s(gpu.MemoryTemp, 55), s(gpu.GPUTemp, 47), s(gpu.SlowdownTemp, 87), s(gpu.ShutdownTemp, 92),
		s(gpu.PowerUsage, 412.5), s(gpu.PowerUsageInstant, 433.25), s(gpu.TotalEnergy, 123456789012),
		s(gpu.PowerMgmtLimit, 700), s(gpu.EnforcedPowerLimit, 650), s(gpu.PState, 2), s(gpu.FanSpeed, 36),
		s(gpu.PCIeReplayCounter, 7), s(gpu.GPUUtil, 57), s(gpu.MemCopyUtil, 23), s(gpu.EncUtil, 11), s(gpu.DecUtil, 13),
		s(gpu.PCIeMaxLinkGen, 5), s(gpu.PCIeMaxLinkWidth, 16), s(gpu.PCIeLinkGen, 4), s(gpu.PCIeLinkWidth, 8),
		s(gpu.PowerViolation, 1_000_000_001), s(gpu.ThermalViolation, 1_000_000_002), s(gpu.SyncBoostViolation, 1_000_000_003),
		s(gpu.BoardLimitViolation, 1_000_000_004), s(gpu.LowUtilViolation, 1_000_000_005), s(gpu.ReliabilityViolation, 1_000_000_006),
		s(gpu.FBTotal, 143771), s(gpu.FBReserved, 614), s(gpu.FBUsed, 51200), s(gpu.FBFree, 91957),
		s(gpu.ECCSBEVolatile, 21), s(gpu.ECCDBEVolatile, 22), s(gpu.ECCSBEAggregate, 23), s(gpu.ECCDBEAggregate, 24),
		s(gpu.RetiredSBE, 3), s(gpu.RetiredDBE, 2), s(gpu.RetiredPending, 1),
		s(gpu.UncorrRemappedRows, 5), s(gpu.CorrRemappedRows, 6), s(gpu.RowRemapFailure, 1), s(gpu.RowRemapPending, 1),
		s(gpu.NVLinkCRCFlitErrors, 31), s(gpu.NVLinkCRCDataErrors, 32), s(gpu.NVLinkReplayErrors, 33), s(gpu.NVLinkRecoveryErrors, 34),
		{gpu.NVLinkBandwidthL0, 2000, true},
		{gpu.NVLinkBandwidth, 36000, true},
		s(gpu.VGPULicenseStatus, 1),
		s(gpu.GREngineActive, 0.61), s(gpu.SMActive, 0.52), s(gpu.SMOccupancy, 0.33), s(gpu.TensorActive, 0.27),
		s(gpu.DRAMActive, 0.41), s(gpu.FP64Active, 0.01), s(gpu.FP32Active, 0.12), s(gpu.FP16Active, 0.05),
		s(gpu.PCIeTxBytes, 125<<20), s(gpu.PCIeRxBytes, 250<<20), s(gpu.NVLinkTxBytes, 375<<20), s(gpu.NVLinkRxBytes, 500<<20),
		s(gpu.TensorIMMAActive, 0.02), s(gpu.TensorHMMAActive, 0.25), s(gpu.TensorDFMAActive, 0.03), s(gpu.IntActive, 0.08),
	}
}

// wrong describes the error of a reading of s; empty if it is correct. A
// counter may be 0.1 % higher.
func (s sample) wrong(v *gpu.Values) string {
	f, _ := gpu.Lookup(s.id)
	got, ok := v.Get(s.id)
	if !ok {
		return fmt.Sprintf("%s is absent, want %v %s", f.Name, s.value, f.Unit)
	}
	lo, hi := 1e-6*s.value, 1e-6*s.value
	switch {
	case s.rate:
		lo, hi = 0.15*s.value, 0.15*s.value
	case f.Kind == gpu.Counter:
		hi = 1e-3 * s.value
	}
	if got < s.value-lo || got > s.value+hi {
		return fmt.Sprintf("%s = %v, want %v %s", f.Name, got, s.value, f.Unit)
	}
	return ""
}

// units sets every field that the backend can set and reads them together.
func units(t *testing.T, b *bench) {
	uuid := b.gpus(t)[0].UUID
	var want gpu.FieldSet
	var set []sample
	for _, s := range samples() {
		if b.Control.Set(0, s.id, s.value) {
			set = append(set, s)
			i, _ := gpu.IndexOf(s.id)
			want.Add(i)
		} else {
			t.Logf("cannot be set: %s", s.id)
		}
	}
	if len(set) == 0 {
		t.Fatal("nothing can be set")
	}
	if want.HasID(gpu.FBUsed) && want.HasID(gpu.FBTotal) && want.HasID(gpu.FBReserved) {
		i, _ := gpu.IndexOf(gpu.FBUsedPercent)
		want.Add(i)
		set = append(set, sample{id: gpu.FBUsedPercent, value: 51200. / (143771 - 614)})
	}
	eventually(t, func() string {
		var v gpu.Values
		if err := b.Reader.Read(uuid, want, &v); err != nil {
			return err.Error()
		}
		for _, s := range set {
			if bad := s.wrong(&v); bad != "" {
				return bad
			}
		}
		return ""
	})
}

// wanted reads each field alone, and none.
func wanted(t *testing.T, b *bench) {
	uuid := b.gpus(t)[0].UUID
	if v := b.read(t, uuid); !empty(v) {
		t.Errorf("nothing was wanted; got %v and labels %v", v.Fields(), labels(v))
	}
	var v gpu.Values
	v.Set(gpu.GPUUtil, 99)
	v.SetLabel(gpu.Serial, "left over")
	if err := b.Reader.Read(uuid, gpu.FieldSet{}, &v); err != nil || !empty(&v) {
		t.Errorf("what was in Values before the read stayed there (error %v)", err)
	}
	read := 0
	for _, f := range gpu.Fields() {
		v := b.read(t, uuid, f.ID)
		only := gpu.SetOf(f.ID)
		if got := v.Fields(); got.Union(only) != only {
			t.Errorf("wanted %s alone, got also others: %v", f.Name, got)
		}
		for _, id := range labels(v) {
			if id != f.ID {
				t.Errorf("wanted %s alone, got also the label %s", f.Name, id)
			}
		}
		if !empty(v) {
			read++
		}
	}
	if read == 0 {
		t.Error("no field could be read at all")
	}
}

// unsupported makes fields unsupported on GPU 0 before their first read, and
// one after it.
func unsupported(t *testing.T, b *bench) {
	gpus := b.gpus(t)
	ids := []gpu.FieldID{gpu.PowerUsage, gpu.MemoryTemp, gpu.TensorActive, gpu.EncUtil, gpu.GPUUtil}
	taken := ids[:0:0]
	for _, id := range ids[:len(ids)-1] {
		if b.Control.Unsupport(0, id) {
			taken = append(taken, id)
		}
	}
	b.read(t, gpus[0].UUID, ids...)
	if b.Control.Unsupport(0, gpu.GPUUtil) {
		taken = append(taken, gpu.GPUUtil)
	}
	if len(taken) == 0 {
		t.Fatal("no field can be taken away")
	}
	for range 3 {
		v := b.read(t, gpus[0].UUID, ids...)
		for _, id := range taken {
			if x, ok := v.Get(id); ok {
				t.Errorf("%s is not supported and reads %v", id, x)
			}
		}
	}
	if v := b.read(t, gpus[1].UUID, taken...); empty(v) {
		t.Error("GPU 1 lost its fields with GPU 0")
	}
}

// blank sets blank values.
func blank(t *testing.T, b *bench) {
	uuid := b.gpus(t)[0].UUID
	done := 0
	for _, id := range []gpu.FieldID{gpu.TensorActive, gpu.SMActive, gpu.PowerUsage} {
		if !b.Control.Set(0, id, math.NaN()) {
			continue
		}
		done++
		for range 3 {
			if x, ok := b.read(t, uuid, id).Get(id); ok {
				t.Errorf("%s is blank and reads %v", id, x)
			}
		}
	}
	if done == 0 {
		t.Skip("the backend has no blank values")
	}
}

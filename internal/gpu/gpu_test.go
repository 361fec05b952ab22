// SPDX-License-Identifier: Apache-2.0

package gpu

import (
	"math"
	"reflect"
	"testing"
)

func TestTableIsSortedAndComplete(t *testing.T) {
	names := map[string]bool{}
	for i, f := range table {
		if i > 0 && i != numGPUFields && table[i-1].ID >= f.ID {
			t.Errorf("%s (%d) stands after %s (%d)", f.Name, f.ID, table[i-1].Name, table[i-1].ID)
		}
		onPart := f.On(NVSwitch) || f.On(NVLink) || f.On(CPU) || f.On(CPUCore)
		if onPart != (i >= numGPUFields) || onPart && f.PodAgg != NoAggregate {
			t.Errorf("%s: of a part %v, at %d of %d", f.Name, onPart, i, numGPUFields)
		}
		if names[f.Name] || f.Name == "" || f.Help == "" {
			t.Errorf("field %d: name %q taken or empty, or no help", f.ID, f.Name)
		}
		names[f.Name] = true
		if j, ok := IndexOf(f.ID); !ok || int(j) != i {
			t.Errorf("IndexOf(%d) = %d, %v; want %d", f.ID, j, ok, i)
		}
		if f.Kind == Label && f.PodAgg != NoAggregate {
			t.Errorf("%s is a label and has an aggregation", f.Name)
		}
	}
	if _, ok := IndexOf(9999); ok {
		t.Error("IndexOf(9999) found something")
	}
}

func TestMissingIsNotZero(t *testing.T) {
	var v Values
	if _, ok := v.Get(PowerUsage); ok {
		t.Error("an empty Values has a power")
	}
	v.Set(PowerUsage, math.NaN())
	v.Set(GPUUtil, math.Inf(1))
	if v.Has(PowerUsage) || v.Has(GPUUtil) {
		t.Error("NaN or infinity was taken for a value")
	}
	if v.Wrong() != 2 {
		t.Errorf("%d values were none", v.Wrong())
	}
	v.Set(PowerUsage, 0)
	if x, ok := v.Get(PowerUsage); !ok || x != 0 {
		t.Error("a measured 0 is not there")
	}
	c := v.Clone()
	v.Reset()
	if v.Has(PowerUsage) || !c.Has(PowerUsage) {
		t.Error("Reset reaches into a clone, or does not reset")
	}
}

// A float64 does not hold every whole number above 2^53.
func TestWholeNumbersAreExact(t *testing.T) {
	var v Values
	const large = 1<<53 + 1
	v.SetInt(TotalEnergy, large)
	v.SetUint(PCIeReplayCounter, math.MaxInt64)
	v.SetUint(PowerViolation, math.MaxInt64+1)
	v.Set(PowerUsage, 77.5)
	f := func(id FieldID, want Number, wantOK bool) {
		t.Helper()
		if got, ok := v.Number(id); got != want || ok != wantOK {
			t.Errorf("%s: %+v, %v; want %+v, %v", id, got, ok, want, wantOK)
		}
		if x, ok := v.Get(id); x != want.Float || ok != wantOK {
			t.Errorf("%s: %v, %v", id, x, ok)
		}
	}
	f(TotalEnergy, Whole(large), true)
	f(PCIeReplayCounter, Whole(math.MaxInt64), true)
	f(PowerViolation, Number{}, false)
	f(PowerUsage, Real(77.5), true)
	if v.Wrong() != 1 {
		t.Errorf("%d values were none", v.Wrong())
	}
	var other Values
	other.Set(TotalEnergy, 0.5)
	other.SetInt(PowerUsage, 3)
	other.SetLabel(Serial, "1650")
	other.SetLabel(Brand, "NVIDIA")
	v.Add(&other, SetOf(TotalEnergy, PowerUsage, Serial))
	f(TotalEnergy, Real(0.5), true)
	f(PowerUsage, Whole(3), true)
	if s, ok := v.GetLabel(Serial); !ok || s != "1650" {
		t.Errorf("serial %q, %v", s, ok)
	}
	if _, ok := v.GetLabel(Brand); ok {
		t.Error("a string was taken that was not asked for")
	}
	if got, want := v.Given(), SetOf(TotalEnergy, PCIeReplayCounter, PowerUsage, Serial); got != want {
		t.Errorf("given %v, want %v", got, want)
	}
	v.Reset()
	v.Set(TotalEnergy, 1)
	f(TotalEnergy, Real(1), true)
}

func TestParseDeviceID(t *testing.T) {
	f := func(in string, want DeviceID, ok bool) {
		t.Helper()
		got, gotOK := ParseDeviceID(in)
		if gotOK != ok || ok && got != want {
			t.Errorf("ParseDeviceID(%q) = %+v, %v; want %+v, %v", in, got, gotOK, want, ok)
		}
	}
	f("GPU-1", DeviceID{UUID: "GPU-1", Minor: -1, GPUInstance: -1}, true)
	f("GPU-1::3", DeviceID{UUID: "GPU-1", Minor: -1, GPUInstance: -1, Replica: "3"}, true)
	f("MIG-9", DeviceID{UUID: "MIG-9", Minor: -1, GPUInstance: -1}, true)
	f("MIG-9::0", DeviceID{UUID: "MIG-9", Minor: -1, GPUInstance: -1, Replica: "0"}, true)
	f("MIG-GPU-1/3/0", DeviceID{UUID: "MIG-GPU-1/3/0", Minor: -1, GPUInstance: -1}, true)
	f("nvidia7", DeviceID{Minor: 7, GPUInstance: -1}, true)
	f("nvidia0/gi2", DeviceID{Minor: 0, GPUInstance: 2}, true)
	f("nvidia0/gi2/vgpu1", DeviceID{Minor: 0, GPUInstance: 2, Replica: "1"}, true)
	f("nvidia0/vgpu1", DeviceID{Minor: 0, GPUInstance: -1, Replica: "1"}, true)
	f("", DeviceID{}, false)
	f("nvidia", DeviceID{}, false)
	f("nvidia-1", DeviceID{}, false)
	f("tpu0", DeviceID{}, false)
	f("nvidia0/giX", DeviceID{}, false)
}

// The number of a GPU names the whole GPU, and none of its MIG instances.
func TestMatches(t *testing.T) {
	whole := Device{UUID: "GPU-a", Minor: 3}
	instance := Device{UUID: "MIG-a1", Minor: 3, MIG: &MIG{ParentUUID: "GPU-a", GPUInstance: 2}}
	f := func(id string, wantWhole, wantInstance bool) {
		t.Helper()
		d, ok := ParseDeviceID(id)
		if !ok || d.Matches(&whole) != wantWhole || d.Matches(&instance) != wantInstance {
			t.Errorf("%s names the GPU: %v, want %v; its instance: %v, want %v", id, d.Matches(&whole), wantWhole, d.Matches(&instance), wantInstance)
		}
	}
	f("nvidia3", true, false)
	f("nvidia3/gi2", false, true)
	f("nvidia3/gi1", false, false)
	f("nvidia2", false, false)
	f("GPU-a", true, false)
	f("MIG-a1", false, true)
}

func TestMatchesWithoutMinor(t *testing.T) {
	// DCGM or NVML does not always tell the minor number; the index is what
	// dcgm-exporter goes by.
	d := Device{Index: 1, UUID: "GPU-a", Minor: -1}
	for text, want := range map[string]bool{"nvidia1": true, "nvidia0": false} {
		id, ok := ParseDeviceID(text)
		if !ok || id.Matches(&d) != want {
			t.Errorf("%s: %v", text, !want)
		}
	}
}

func TestAttribute(t *testing.T) {
	devices := []DeviceSnapshot{
		{Device: Device{UUID: "GPU-a", Minor: 0}},
		{Device: Device{UUID: "MIG-a1", Minor: 0, MIG: &MIG{ParentUUID: "GPU-a", GPUInstance: 2}}},
		{Device: Device{UUID: "GPU-b", Minor: 1}},
	}
	p, q := Owner{Namespace: "n", Pod: "p", Container: "c"}, Owner{Namespace: "n", Pod: "q", Container: "c"}
	unmatched := Attribute(devices, []Allocation{
		{DeviceID: "GPU-b::1", Owner: q},
		{DeviceID: "GPU-b::0", Owner: p},
		{DeviceID: "nvidia0/gi2", Owner: p},
		{DeviceID: "GPU-gone", Owner: p},
	})
	if len(unmatched) != 1 || unmatched[0].DeviceID != "GPU-gone" {
		t.Errorf("unmatched = %+v", unmatched)
	}
	p0, q1 := p, q
	p0.Replica, q1.Replica = "0", "1"
	want := [][]Owner{nil, {p}, {p0, q1}}
	for i, d := range devices {
		if !reflect.DeepEqual(d.Owners, want[i]) {
			t.Errorf("%s: owners %+v, want %+v", d.UUID, d.Owners, want[i])
		}
	}
}

func FuzzParseDeviceID(f *testing.F) {
	for _, s := range []string{"GPU-1::3", "nvidia0/gi2/vgpu1", "MIG-GPU-1/3/0", "::", "//"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		id, ok := ParseDeviceID(s)
		if ok && (id.UUID != "") == (id.Minor >= 0) {
			t.Errorf("ParseDeviceID(%q) = %+v: want exactly one of UUID and minor", s, id)
		}
	})
}

// The last call to return ends what is being closed; a call that does not
// return delays the end, not the caller.
// A claim's MIG device is its GPU's where the GPU is collected and it is not.
func TestAttributeMIGClaims(t *testing.T) {
	hold := func(id, mig string) Allocation {
		return Allocation{DeviceID: id, Owner: Owner{Pod: id, Claim: &Claim{ParentUUID: "GPU-a", MIGUUID: mig}}}
	}
	allocs := []Allocation{hold("MIG-a1", "MIG-a1"), hold("n1/on-demand", "")}
	f := func(devices []DeviceSnapshot, want ...string) {
		t.Helper()
		unmatched := Attribute(devices, allocs)
		var got []string
		for _, d := range devices {
			for _, o := range d.Owners {
				got = append(got, d.UUID+" "+o.Pod)
			}
		}
		if !reflect.DeepEqual(got, want) || len(got)+len(unmatched) != len(allocs) {
			t.Errorf("%v, want %v; unmatched %v", got, want, unmatched)
		}
	}
	whole := DeviceSnapshot{Device: Device{UUID: "GPU-a"}}
	instance := DeviceSnapshot{Device: Device{UUID: "MIG-a1", MIG: &MIG{ParentUUID: "GPU-a"}}}
	f([]DeviceSnapshot{whole}, "GPU-a MIG-a1", "GPU-a n1/on-demand")
	f([]DeviceSnapshot{instance}, "MIG-a1 MIG-a1")
	f([]DeviceSnapshot{whole, instance}, "GPU-a n1/on-demand", "MIG-a1 MIG-a1")
}

// SPDX-License-Identifier: Apache-2.0

package gpu

import (
	"testing"
	"time"
)

var xidTime = time.UnixMilli(1_790_000_000_000)

// What a device does at the moment is not lasting, whatever its number is next to.
func TestIsLasting(t *testing.T) {
	for _, id := range []FieldID{XIDErrors, ECCSBEVolatile, ECCDBEAggregate, RetiredPending, RowRemapFailure, RowRemapPending, NVLinkCRCFlitErrors, NVLinkRecoveryErrors, PCIeReplayCounter, SwitchFatal, SwitchNonFatal, SwitchLinkCRC, 1204} {
		if !id.IsLasting() {
			t.Errorf("%s ends with the device", id)
		}
	}
	for _, f := range table {
		if f.ID.IsLasting() && (f.Unit != None || f.Kind == Label || f.PodAgg == Mean) {
			t.Errorf("%s is lasting, with unit %s", f.Name, f.Unit)
		}
	}
	for _, id := range []FieldID{GPUTemp, TotalEnergy, GPUUtil, PowerViolation, NVLinkBandwidth, NVLinkBandwidthL0, 441, 475, 494, SwitchTemp, SwitchLinkStatus, 1203, CPUUtil} {
		if id.IsLasting() {
			t.Errorf("%s stays though the device cannot be read", id)
		}
	}
}

func TestLastXID(t *testing.T) {
	var x XIDLog
	at := xidTime
	x.Seed("a", 31, at)
	x.Seed("a", 13, at.Add(-1)) // older
	x.Add("a", 79, at)          // newer than the ones before, whatever its time
	x.Add("b", 48, at.Add(-9))
	if got := x.Last("a", "b"); got != 79 {
		t.Errorf("last is %d, want 79", got)
	}
	got := AppendXIDs(nil, x.Counts("a"), []XIDCount{{Code: 31, Count: 2, Last: at.Add(9)}, {Code: 95, Count: 1, Last: at}})
	want := []XIDCount{{31, 2, at.Add(9)}, {79, 1, at.Add(1)}, {95, 1, at}}
	if len(got) != len(want) || got[0] != want[0] || got[1] != want[1] || got[2] != want[2] {
		t.Errorf("both lists: %v, want %v", got, want)
	}
	if last, ok := LastXID(got); !ok || last.Code != 31 {
		t.Errorf("last of both: %v, %v", last, ok)
	}
}

// SPDX-License-Identifier: Apache-2.0

package gpu

import "testing"

func TestXIDs(t *testing.T) {
	for i := range xids {
		x := &xids[i]
		if i > 0 && xids[i-1].Code >= x.Code {
			t.Errorf("XID %d stands after %d", x.Code, xids[i-1].Code)
		}
		if got, ok := LookupXID(x.Code); !ok || got != x || x.Text == "" {
			t.Errorf("XID %d is %+v, %v", x.Code, got, ok)
		}
		if x.GPU.Health == HealthFail && x.Code != 94 && x.Fatal == "" { // 94 is contained: its process ends
			t.Errorf("XID %d fails the GPU, and is not fatal", x.Code)
		}
	}
	for _, code := range []uint64{1, 151, 1 << 60} {
		if got, ok := LookupXID(code); ok {
			t.Errorf("XID %d is %+v", code, got)
		}
	}
	if x, _ := LookupXID(79); x.Text != "GPU has fallen off the bus" || x.Fatal != "it fell off the bus" || x.Watch != WatchPCIe {
		t.Errorf("XID 79 is %+v", x)
	}
	if x, _ := LookupXID(13); x.Fatal != "" || x.System != (Verdict{}) {
		t.Errorf("XID 13, an application's error, is %+v", x)
	}
}

// SPDX-License-Identifier: Apache-2.0

package gpu

import "testing"

func TestNeedsDCGM(t *testing.T) {
	f := func(reason string, want bool) {
		t.Helper()
		if l := (Lack{Reason: reason}); l.NeedsDCGM() != want {
			t.Errorf("%q: %v", reason, !want)
		}
	}
	f("NVML gives profiling fields from Hopper on", true)
	f("NVML gives profiling fields from Hopper on; through DCGM: GPU library not found: libdcgm.so.4", true)
	f("not read through NVML; DCGM may give it (--backend auto or dcgm)", true)
	f("not read through NVML; through DCGM: no host engine", true)
	f("NVML gives profiling fields from Hopper on; DCGM does not give it for this device", false)
	f("not read through NVML; DCGM does not give it for this device", false)
	f("not read through NVML; DCGM has not been asked yet", false)
	f("NVML does not give it for this GPU and driver; through DCGM: GPU library not found", false) // such as a fan's speed
	f("no NvSwitch, NVLink or CPU gives it", false)
	f("", false)
}

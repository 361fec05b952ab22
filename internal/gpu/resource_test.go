// SPDX-License-Identifier: Apache-2.0

package gpu

import "testing"

func TestIsResource(t *testing.T) {
	f := func(name string, want bool) {
		t.Helper()
		if got := IsResource(name, []string{"example.com/a100"}); got != want {
			t.Errorf("IsResource(%s) = %v", name, got)
		}
	}
	f("nvidia.com/gpu", true)
	f("nvidia.com/gpu.shared", true)
	f("nvidia.com/mig-1g.10gb", true)
	f("nvidia.com/gpumem", false)
	f("nvidia.com/A100-SXM4-80GB", true)
	f("nvidia.com/mig-1g.10gb.shared", true)
	f("nvidia.com/hostdev", false)
	f("nvidia.com/", false)
	f("amd.com/gpu", true)
	f("amd.com/cpx_nps4", true)
	f("amd.com/cpx_nps3", false)
	f("amd.com/xilinx_u30", false)
	f("example.com/a100", true)
	f("example.com/nic", false)
	f("cpu", false)
	f("", false)
}

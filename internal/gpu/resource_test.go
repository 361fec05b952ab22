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
	f("amd.com/gpu", true)
	f("example.com/a100", true)
	f("example.com/nic", false)
	f("cpu", false)
	f("", false)
}

// SPDX-License-Identifier: Apache-2.0

package exposition

import (
	"testing"

	"github.com/gpupilot/gpupilot/internal/gpu/names"
)

func TestProfilesHaveDefaults(t *testing.T) {
	f := func(p names.Profile, metrics, labels int, wants ...string) {
		t.Helper()
		c := DefaultCollectors(p)
		if len(c.Metrics) != metrics || len(c.Labels) != labels {
			t.Errorf("profile %s: %d metrics and %d labels, want %d and %d", p, len(c.Metrics), len(c.Labels), metrics, labels)
		}
		have := map[string]bool{}
		for _, m := range c.Metrics {
			if have[m.Name] || m.Help == "" {
				t.Errorf("profile %s: %s is there twice or has no help", p, m.Name)
			}
			have[m.Name] = true
		}
		for _, l := range c.Labels {
			have[l.Name] = true
		}
		for _, w := range wants {
			if !have[w] {
				t.Errorf("profile %s lacks %s", p, w)
			}
		}
	}
	f(names.Profile48, 25, 1, "DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DRIVER_VERSION", "DCGM_FI_DEV_FB_RESERVED")
	f(names.Profile482, 25, 1, "DCGM_FI_DEV_GPU_UTIL")
	f(names.Profile49, 26, 1, "DCGM_FI_DEV_GPU_UTIL_RATIO", "DCGM_FI_SYSTEM_DRIVER_VERSION", "DCGM_FI_DEV_FB_CAPACITY_BYTES")
	f(names.Profile1x, 20, 0, "dcgm_gpu_utilization", "dcgm_fi_prof_pcie_tx_bytes")
}

// SPDX-License-Identifier: Apache-2.0

package exposition

import (
	"fmt"
	"strings"
	"testing"

	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/gpu/names"
)

// Pages are rendered before they are asked for where each collection is
// scraped, and else when they are; a scrape gets the last collection either way.
func TestPagesAreRenderedOnDemand(t *testing.T) {
	now := soon()
	e := New(Config{Collectors: DefaultCollectors(names.Profile48)})
	clock := 1000
	collect := func() (rendered bool) {
		clock++
		e.Update(snapshot(now, wholeGPU(0, now, map[gpu.FieldID]float64{gpu.SMClock: float64(clock)})), Stats{}, now)
		return !e.unshown.Load()
	}
	scrape := func() {
		t.Helper()
		if _, body := get(t, e, "/metrics"); !strings.HasSuffix(series(body, "DCGM_FI_DEV_SM_CLOCK{"), fmt.Sprint(" ", clock)) {
			t.Errorf("a scrape gets %q, want %d", series(body, "DCGM_FI_DEV_SM_CLOCK{"), clock)
		}
	}
	f := func(what string, rendered, want bool) {
		t.Helper()
		if rendered != want {
			t.Errorf("%s: rendered is %v", what, rendered)
		}
	}
	for range 20 {
		f("nobody scrapes", collect(), false)
	}
	for range 5 { // each third collection is scraped
		scrape()
		f("after a scrape", collect(), false)
		f("after none", collect(), false)
		f("after none", collect(), false)
	}
	scrape()
	f("after one scrape", collect(), false)
	for range 5 {
		scrape()
		f("each collection is scraped", collect(), true)
	}
	f("one was not scraped", collect(), false)
}

// A reload shows the last collection as it was read, and the new collectors from
// the next one on.
func TestAReloadBeforeTheScrape(t *testing.T) {
	now := soon()
	c, _ := ParseCollectors("DCGM_FI_DEV_SM_CLOCK, gauge, a\n")
	e := New(Config{Collectors: c})
	e.Update(snapshot(now, wholeGPU(0, now, map[gpu.FieldID]float64{gpu.SMClock: 1})), Stats{}, now)
	c, _ = ParseCollectors("DCGM_FI_DEV_GPU_TEMP, gauge, a\n")
	e.Reconfigure(c, 0)
	if _, body := get(t, e, "/metrics"); !strings.Contains(body, "DCGM_FI_DEV_SM_CLOCK{") || strings.Contains(body, "GPU_TEMP") {
		t.Errorf("after the reload:\n%s", body)
	}
	e.Update(snapshot(now, wholeGPU(0, now, map[gpu.FieldID]float64{gpu.GPUTemp: 40})), Stats{}, now)
	if _, body := get(t, e, "/metrics"); strings.Contains(body, "DCGM_FI_DEV_SM_CLOCK{") || !strings.Contains(body, "DCGM_FI_DEV_GPU_TEMP{") {
		t.Errorf("after the next collection:\n%s", body)
	}
}

// SPDX-License-Identifier: Apache-2.0

package exposition

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/gpu/names"
)

// Whoever scrapes while pages come and are reused gets one page, whole: all its
// values are of one generation.
func TestScrapesDuringUpdates(t *testing.T) {
	e := New(Config{Collectors: DefaultCollectors(names.Profile48), Further: true})
	update := func(generation int) {
		now := soon()
		s := snapshot(now)
		for i := range 4 {
			s.Devices = append(s.Devices, wholeGPU(i, now, map[gpu.FieldID]float64{gpu.SMClock: float64(generation), gpu.FBUsed: float64(generation)}))
		}
		e.Update(s, Stats{Errors: uint64(generation)}, now)
	}
	update(0)
	stop := make(chan struct{})
	var scrapers sync.WaitGroup
	for i := range 4 {
		header := [][]string{nil, {"Accept-Encoding", "gzip"}, {"Accept", "application/openmetrics-text"}, {"Accept", "application/openmetrics-text", "Accept-Encoding", "gzip"}}[i]
		target := "/metrics"
		if i == 0 {
			target += "?name[]=DCGM_FI_DEV_SM_CLOCK&name[]=gpupilot_collection_errors_total"
		}
		scrapers.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				_, body := get(t, e, target, header...)
				if err := oneGeneration(body); err != nil {
					t.Errorf("%s %v: %v", target, header, err)
					return
				}
			}
		})
	}
	for g := range 2000 {
		update(g)
	}
	close(stop)
	scrapers.Wait()
	if n := len(e.pages.free); n > maxFree {
		t.Errorf("%d pages are kept", n)
	}
}

func oneGeneration(body string) error {
	seen, lines := "", 0
	for _, l := range samples(body) {
		if strings.HasPrefix(l, "DCGM") || strings.HasPrefix(l, "gpupilot_collection_errors") {
			v := l[strings.LastIndexByte(l, ' ')+1:]
			if seen != "" && v != seen {
				return fmt.Errorf("generations %s and %s in one page", seen, v)
			}
			seen = v
			lines++
		}
	}
	if lines != 5 && lines != 9 {
		return fmt.Errorf("%d lines", lines)
	}
	return nil
}

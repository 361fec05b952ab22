// SPDX-License-Identifier: Apache-2.0

package exposition

import (
	"encoding/json"
	"net/http"
	"testing"
	"time"

	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/gpu/names"
	"github.com/gpupilot/gpupilot/test/promtest"
)

// Prometheus knows each metric of each profile under its name, as the type that
// the profile's file gives it: those of the file that is built in, and all
// further fields.
func TestPrometheusKnowsTheTypes(t *testing.T) {
	for _, p := range names.Profiles() {
		t.Run(string(p), func(t *testing.T) {
			t.Parallel()
			c := everything(p)
			e := New(Config{Profile: p, Collectors: c, Further: true})
			now := time.Now()
			values := map[gpu.FieldID]float64{}
			for i := range gpu.Fields() {
				if f := gpu.At(gpu.Index(i)); f.Kind != gpu.Label {
					values[f.ID] = 1
				}
			}
			s := snapshot(now, wholeGPU(0, now, values))
			s.Interval = time.Hour
			e.Update(s, Stats{}, now)
			known := metadata(t, promtest.Scrape(t, e), len(c.Metrics))
			for _, m := range c.Metrics {
				if got := known[m.Name]; got != m.Type {
					t.Errorf("%s is a %q, want %q", m.Name, got, m.Type)
				}
			}
			if got := known["gpupilot_gpu_energy_joules_total"]; got != Counter {
				t.Errorf("gpupilot_gpu_energy_joules_total is a %q", got)
			}
		})
	}
}

// everything are the profile's own collectors and those of all other fields of
// GPUs.
func everything(p names.Profile) Collectors {
	c := DefaultCollectors(p)
	have := c.Fields()
	for i := range gpu.Fields() {
		f := gpu.At(gpu.Index(i))
		if f.Kind == gpu.Label || have.Has(gpu.Index(i)) {
			continue
		}
		name, scale := p.Name(f)
		c.Metrics = append(c.Metrics, Collector{Name: name, Ref: gpu.Ref{Field: f.ID, Scale: scale}, Type: typeOf(p, f), Help: p.Help(f)})
	}
	return c
}

// metadata are the types that Prometheus knows, once it knows so many.
func metadata(t *testing.T, address string, least int) map[string]Type {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(100 * time.Millisecond) {
		var answer struct {
			Data map[string][]struct{ Type Type }
		}
		resp, err := http.Get(address + "/api/v1/metadata")
		if err != nil {
			t.Fatal(err)
		}
		err = json.NewDecoder(resp.Body).Decode(&answer)
		_ = resp.Body.Close()
		if err != nil {
			t.Fatal(err)
		}
		if len(answer.Data) >= least {
			out := map[string]Type{}
			for name, all := range answer.Data {
				out[name] = all[0].Type
			}
			return out
		}
		if time.Now().After(deadline) {
			t.Fatalf("after a minute Prometheus knows %d metrics of %d", len(answer.Data), least)
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package usage

import (
	"slices"
	"testing"
	"time"

	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/window/page"
	"github.com/gpupilot/gpupilot/internal/window/stat"
)

// A field that the metrics API is asked for is scraped from then on, for a
// while.
func TestFieldsOnDemand(t *testing.T) {
	r := newRig(t)
	now := time.Now()
	if set := r.deps.Fields.At(now); set.HasID(gpu.SMActive) {
		t.Error("SMActive is in use before anybody asks")
	}
	r.Value("ns", "p", stat.Query{Field: gpu.SMActive, Now: now, MaxAge: time.Second})
	select {
	case <-r.deps.Fields.Changed():
	default:
		t.Error("a new field does not change what is scraped")
	}
	r.Value("ns", "p", stat.Query{Field: gpu.SMActive, Now: now.Add(time.Minute), MaxAge: time.Second})
	select {
	case <-r.deps.Fields.Changed():
		t.Error("a field in use changes what is scraped")
	default:
	}
	if set := r.deps.Fields.At(now.Add(requestTTL)); !set.HasID(gpu.SMActive) {
		t.Error("SMActive left while it was asked for")
	}
	if set := r.deps.Fields.At(now.Add(time.Minute + requestTTL + 1)); set.HasID(gpu.SMActive) || set != AlwaysScraped() {
		t.Error("SMActive stays though nobody asks")
	}
}

// What autoscalers hold is in use for their namespace until they hold something else.
func TestHeldFields(t *testing.T) {
	f, now := NewFields(), time.Now()
	hold := func() {
		f.Hold(page.NewNamed(map[string]gpu.FieldSet{"ns": gpu.SetOf(gpu.SMActive)}), []string{"queue"})
	}
	hold()
	first := f.Named()
	if set := first.Of("ns"); !set.HasID(gpu.SMActive) || first.Of("other") != (gpu.FieldSet{}) || f.At(now) != AlwaysScraped() {
		t.Errorf("%v is in use", set)
	}
	if hold(); f.Named() != first {
		t.Error("what is held again has changed")
	}
	if names := f.Names(); !slices.Contains(names, "queue") || !slices.Contains(names, "DCGM_FI_PROF_SM_ACTIVE") {
		t.Errorf("names in use: %v", names)
	}
	f.Hold(nil, nil)
	if f.Named() != nil || slices.Contains(f.Names(), "queue") {
		t.Error("what nobody holds is in use")
	}
}

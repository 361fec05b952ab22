// SPDX-License-Identifier: Apache-2.0

package shown

import (
	"fmt"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/scale"
	"github.com/gpupilot/gpupilot/internal/window/series"
	"github.com/gpupilot/gpupilot/internal/window/view"
)

// A device's age is that of its newest value. A value that is much older than
// that is not shown beside it.
func TestDevicesShowTheirAge(t *testing.T) {
	now := time.Unix(1000, 0)
	f := func(utilAge, powerAge, wantAge time.Duration, wantUtil, wantPower bool) {
		t.Helper()
		var values []series.FieldSample
		for field, age := range map[gpu.FieldID]time.Duration{gpu.GPUUtil: utilAge, gpu.PowerUsage: powerAge} {
			if age >= 0 {
				values = append(values, series.FieldSample{Field: field, Sample: series.Sample{At: now.Add(-age), Value: 7}})
			}
		}
		g := gpuOf(&series.DeviceView{Device: "GPU-1", Values: values}, now, 5*time.Second, new([]float64), new([]int))
		if g.Age != wantAge || (g.Utilization != nil) != wantUtil || (g.PowerWatts != nil) != wantPower {
			t.Errorf("utilisation %v old, power %v: age %v, utilisation %v, power %v", utilAge, powerAge, g.Age, g.Utilization != nil, g.PowerWatts != nil)
		}
	}
	const s, none = time.Second, -1
	f(1*s, 1*s, 1*s, true, true)
	f(4*s, 1*s, 1*s, true, true)
	f(60*s, 1*s, 1*s, false, true) // a value that stopped is not as new as the others
	f(60*s, 61*s, 60*s, true, true)
	f(none, 2*s, 2*s, false, true)
	f(none, none, 0, false, false)
}

func TestPoints(t *testing.T) {
	var h Points
	at := func(s int) time.Time { return time.Unix(int64(s), 0) }
	d := scale.Decision{}
	for i := range 1000 {
		d.Time = at(0).Add(time.Duration(i) * 500 * time.Millisecond)
		d.Replicas = int32(i)
		h.Add(&d)
	}
	got := h.List()
	if len(got) != 500 || got[0].Replicas != 1 || got[499].Replicas != 999 {
		t.Errorf("%d points from %d to %d; want the last of each second", len(got), got[0].Replicas, got[len(got)-1].Replicas)
	}
	for i := range 1000 {
		d.Time = at(1000 + i)
		d.Replicas = int32(i)
		h.Add(&d)
	}
	got = h.List()
	if len(got) != historyPoints || got[0].Replicas != 400 || got[historyPoints-1].Replicas != 999 {
		t.Errorf("%d points from %d to %d; want the last %d", len(got), got[0].Replicas, got[len(got)-1].Replicas, historyPoints)
	}
}

// A namespace whose replicas change all the time pushes out its own decisions,
// not those of others.
func TestRecentIsShared(t *testing.T) {
	var r Log
	d := &scale.Decision{}
	r.Add(types.NamespacedName{Namespace: "quiet", Name: "web"}, d, false)
	for range 3 * maxEvents {
		r.Add(types.NamespacedName{Namespace: "noisy", Name: "web"}, d, false)
	}
	list := r.List()
	if len(list) != maxEvents || list[len(list)-1].Namespace != "quiet" || list[0].Namespace != "noisy" {
		t.Errorf("%d events, the oldest of %s, want %d and that of the quiet namespace", len(list), list[len(list)-1].Namespace, maxEvents)
	}
}

// A state that lasts is one span, also if it comes and goes with each decision. The spans are
// bounded: those that have ended are forgotten first.
func TestSpans(t *testing.T) {
	var s Spans
	at := func(sec int) time.Time { return time.Unix(int64(sec), 0) }
	limited := []view.Span{{Kind: SpanTest, Name: "ScalingLimited True", Text: "at the maximum"}}
	for sec := range 100 {
		current := limited
		if sec%3 == 0 {
			current = nil
		}
		s.Observe(at(sec), current)
	}
	if got := s.List(); len(got) != 1 || !got[0].From.Equal(at(1)) || !got[0].Until.IsZero() || got[0].Text != "at the maximum" {
		t.Errorf("%+v, want one that lasts since second 1", got)
	}
	s.Observe(at(200), nil)
	if got := s.List(); len(got) != 1 || !got[0].Until.Equal(at(98)) {
		t.Errorf("%+v, want one that ended at second 98", got)
	}
	s.Observe(at(201), limited)
	for sec := range 3 * maxSpans {
		s.Observe(at(300+100*sec), append(limited, view.Span{Kind: SpanTest, Name: fmt.Sprint(sec)}))
	}
	got := s.List()
	if len(got) != maxSpans || got[0].Name != "ScalingLimited True" && got[1].Name != "ScalingLimited True" {
		t.Errorf("%d spans, want %d with the one that lasts", len(got), maxSpans)
	}
}

// SpanTest is a kind of spans in tests.
const SpanTest = "test"

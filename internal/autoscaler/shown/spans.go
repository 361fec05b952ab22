// SPDX-License-Identifier: Apache-2.0

package shown

import (
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpupilot/gpupilot/internal/autoscaler/explain"
	"github.com/gpupilot/gpupilot/internal/base/excerpt"
	"github.com/gpupilot/gpupilot/internal/scale"
	"github.com/gpupilot/gpupilot/internal/window/view"
)

const (
	maxSpans    = 64 // of a workload
	maxSpanText = 200
	// mergeGap is the time for which a state may be absent without ending, so that one that
	// comes and goes with each decision is one span.
	mergeGap = 15 * time.Second
)

// Spans keeps the states of a workload that last, with their times. The zero value is
// empty.
type Spans struct {
	list []view.Span // oldest first
	seen []time.Time // when each was last observed
}

// Observe records the states of a moment. From and Until of current are ignored.
func (s *Spans) Observe(now time.Time, current []view.Span) {
	for i := range s.list {
		if s.list[i].Until.IsZero() && now.Sub(s.seen[i]) > mergeGap {
			s.list[i].Until = s.seen[i]
		}
	}
	for _, x := range current {
		at := slices.IndexFunc(s.list, func(o view.Span) bool { return o.Until.IsZero() && o.Kind == x.Kind && o.Name == x.Name })
		if at >= 0 {
			s.seen[at], s.list[at].Text = now, excerpt.Of(x.Text, maxSpanText)
			continue
		}
		s.makeRoom()
		x.From, x.Until, x.Text = now, time.Time{}, excerpt.Of(x.Text, maxSpanText)
		s.list, s.seen = append(s.list, x), append(s.seen, now)
	}
}

// makeRoom forgets the oldest span that has ended, else the oldest.
func (s *Spans) makeRoom() {
	if len(s.list) < maxSpans {
		return
	}
	at := max(0, slices.IndexFunc(s.list, func(o view.Span) bool { return !o.Until.IsZero() }))
	s.list, s.seen = slices.Delete(s.list, at, at+1), slices.Delete(s.seen, at, at+1)
}

// List returns the spans, oldest first.
func (s *Spans) List() []view.Span { return slices.Clone(s.list) }

// SpansOf returns the states of a workload that last: conditions that are to be looked at,
// active schedules, and a decision that is held for lack of data.
func SpansOf(conditions []metav1.Condition, schedules []string, d *scale.Decision) (out []view.Span) {
	for i := range conditions {
		if c := &conditions[i]; explain.IsNotable(c) {
			out = append(out, view.Span{Kind: view.SpanCondition, Name: c.Type + " " + string(c.Status) + ": " + c.Reason, Text: c.Message})
		}
	}
	for _, name := range schedules {
		out = append(out, view.Span{Kind: view.SpanSchedule, Name: name})
	}
	if d != nil && (d.Rule == scale.RuleMissing || d.Rule == scale.RulePartial || d.Rule == scale.RuleFallback) {
		out = append(out, view.Span{Kind: view.SpanHeld, Name: string(d.Rule), Text: d.Sentence()})
	}
	return out
}

// Conditions returns the conditions with their texts shortened.
func Conditions(in []metav1.Condition) []view.Condition {
	out := make([]view.Condition, 0, len(in))
	for i := range in {
		c := &in[i]
		out = append(out, view.Condition{Type: c.Type, Status: string(c.Status), Reason: c.Reason, Message: excerpt.Of(c.Message, maxText), Notable: explain.IsNotable(c)})
	}
	return out
}

// SPDX-License-Identifier: Apache-2.0

package backtest

import (
	"cmp"
	"errors"
	"fmt"
	"net/url"
	"time"

	"github.com/gpupilot/gpupilot/internal/base/excerpt"
	"github.com/gpupilot/gpupilot/internal/replay/service"
	"github.com/gpupilot/gpupilot/internal/replay/trace"
	"github.com/gpupilot/gpupilot/internal/scale/policy"
	"github.com/gpupilot/gpupilot/internal/scale/whatif"
	"github.com/gpupilot/gpupilot/internal/window/history"
	"github.com/gpupilot/gpupilot/internal/window/view"
)

// History is what the controller recorded of a workload: the last minutes second by
// second, and days as one-minute aggregates.
type History struct {
	Name    string
	Policy  policy.Compiled
	Points  []view.Point
	Minutes view.Minutes // in steps of a minute; without metrics: none
}

// ErrNoPath says that a controller is too old to have a path.
var ErrNoPath = errors.New("the controller does not have this path")

// secondsLength is how far back the controller keeps each second.
const secondsLength = 10 * time.Minute

// Read reads the history of a workload from the controller's API: the seconds, and the minutes of length.
// get decodes what is at a path.
func (h *History) Read(get func(path string, query url.Values, into any) error, namespace, name string, length time.Duration) error {
	var seconds view.History
	object := url.Values{"namespace": {namespace}, "name": {name}}
	if err := get("api/v1/history", object, &seconds); err != nil {
		return err
	}
	h.Points = seconds.Points
	if length <= secondsLength {
		return nil
	}
	query := url.Values{
		"namespace": {namespace}, "name": {name}, "since": {min(length, history.Retention).String()}, "step": {"1m"},
		"metric": {string(history.NewMetric(view.ReplicasMetric, "state", "serving"))},
	}
	for i := range h.Policy.Policy.Signals {
		query.Add("metric", string(history.NewMetric(view.SignalMetric, "signal", excerpt.Of(h.Policy.Policy.Signals[i].Name, history.MaxSignal))))
	}
	if err := get("api/v1/minutes", query, &h.Minutes); !errors.Is(err, ErrNoPath) {
		return err
	}
	return nil
}

// minMinutes is how far back minutes must go to be replayed instead of the seconds.
const minMinutes = time.Hour

// recording is a workload's history in regular steps.
type recording struct {
	step    time.Duration
	rates   []trace.Rate // without those that are missing; per second in replicas
	missing int          // steps without a value, after the first one
}

// recording returns the minutes if they go back far enough, else the seconds.
func (h *History) recording() recording {
	minutes := recording{step: h.Minutes.Step}
	for i := range h.Minutes.Steps() {
		if need, ok := h.minuteNeed(i); ok {
			minutes.rates = append(minutes.rates, trace.Rate{At: h.Minutes.First.Add(time.Duration(i) * h.Minutes.Step), PerSecond: need})
		}
	}
	if n := len(minutes.rates); n > 1 {
		length := minutes.rates[n-1].At.Sub(minutes.rates[0].At)
		if minutes.missing = int(length/minutes.step) + 1 - n; length >= minMinutes {
			return minutes
		}
	}
	seconds := recording{step: time.Second}
	for i := range h.Points {
		p := &h.Points[i]
		if need, ok := h.need(float64(p.Serving), p.Signals); ok {
			seconds.rates = append(seconds.rates, trace.Rate{At: p.Time.Truncate(time.Second), PerSecond: need})
		}
	}
	return seconds
}

// Note says how detailed the history is.
func (h *History) Note() string {
	r := h.recording()
	if r.step < time.Minute || len(r.rates) == 0 {
		return fmt.Sprintf("%s: %d seconds of the controller's last decisions are replayed second by second", h.Name, len(r.rates))
	}
	const layout = "2006-01-02 15:04"
	text := fmt.Sprintf("%s: %d minutes from %s to %s UTC are replayed as means of one minute: bursts within a minute are lost", h.Name, len(r.rates),
		r.rates[0].At.UTC().Format(layout), r.rates[len(r.rates)-1].At.UTC().Format(layout))
	if r.missing > 0 {
		text += fmt.Sprintf("; %d minutes are missing and are gaps", r.missing)
	}
	return text + "; --history 10m replays the last ten minutes second by second"
}

// Trace returns a load that needs as many replicas as the recorded signals asked for, at
// the policy's targets. Its requests have these mean tokens (0: the defaults), because the
// real ones are unknown.
func (h *History) Trace(m *service.Model, prompt, output float64) (*trace.Trace, error) {
	prompt, output = cmp.Or(prompt, trace.DefaultPrompt), cmp.Or(output, trace.DefaultOutput)
	capacity := m.Capacity(prompt, output)
	r := h.recording()
	for i := range r.rates {
		r.rates[i].PerSecond *= capacity
	}
	if len(r.rates) < 2 {
		return nil, errors.New("the controller has recorded too few values: try again in a minute, or use --prometheus")
	}
	return trace.FromRates(h.Name, r.rates, trace.Sampling{Step: r.step, Prompt: prompt, Output: output})
}

// need returns the most replicas that a signal asked for at a moment; ok is false if no
// signal had a value.
func (h *History) need(serving float64, signals []*float64) (need float64, ok bool) {
	for i, v := range signals {
		if v == nil || i >= len(h.Policy.Policy.Signals) {
			continue
		}
		need, ok = max(need, whatif.Demand(&h.Policy.Policy.Signals[i], *v, serving, h.Policy.Sources[i].Kind == policy.Query)), true
	}
	return need, ok
}

// minuteNeed is need for a minute. Signals are found by their names, so that a signal
// that is new in the policy has no value before.
func (h *History) minuteNeed(i int) (need float64, ok bool) {
	serving := h.minute(i, view.ReplicasMetric, "state", "serving")
	if serving == nil {
		return 0, false
	}
	signals := make([]*float64, len(h.Policy.Policy.Signals))
	for j := range signals {
		signals[j] = h.minute(i, view.SignalMetric, "signal", excerpt.Of(h.Policy.Policy.Signals[j].Name, history.MaxSignal))
	}
	return h.need(*serving, signals)
}

// minute returns the mean of a metric in a minute; nil if it is missing.
func (h *History) minute(i int, metric string, labels ...string) *float64 {
	m := h.Minutes.Named(i, metric, labels...)
	if m == nil {
		return nil
	}
	return &m.Mean[i]
}

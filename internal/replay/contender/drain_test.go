// SPDX-License-Identifier: Apache-2.0

package contender

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpupilot/gpupilot/internal/replay/service"
	"github.com/gpupilot/gpupilot/internal/replay/trace"
	"github.com/gpupilot/gpupilot/internal/scale/policy"
)

// chat returns a policy on requests with further lines of its spec.
func chat(t *testing.T, spec string) Entry {
	t.Helper()
	return scaledBy(t, "[{name: requests, preset: vllm}]", spec)
}

// scaledBy returns a policy with these signals and further lines of its spec.
func scaledBy(t *testing.T, signals, spec string) Entry {
	t.Helper()
	all, err := policy.Parse("policy", fmt.Appendf(nil, `
kind: GPUAutoscaler
spec:
  scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: chat}
  maxReplicas: 8
  signals: %s
  %s
`, signals, strings.ReplaceAll(spec, "\n", "\n  ")))
	if err != nil {
		t.Fatal(err)
	}
	return NewOurs("chat", all[0].Compiled)
}

// replay replays a rate of requests/s on six replicas, and calls each after each second with the replicas before it.
func (e *Entry) replay(t *testing.T, seconds int, rate func(now int) float64, each func(d *service.Deployment, now, before int)) {
	t.Helper()
	e.replayAs(t, Replay{}, seconds, rate, each)
}

func (e *Entry) replayAs(t *testing.T, r Replay, seconds int, rate func(now int) float64, each func(d *service.Deployment, now, before int)) {
	t.Helper()
	r.Model, r.Min, r.Max, r.Startup = &worker, 1, 8, 30
	scaler, err := e.New(&r)
	if err != nil {
		t.Fatal(err)
	}
	cfg := &service.Config{
		Model: worker, Startup: service.Startup{Median: 20}, Patience: 60, Seconds: float64(seconds),
		Need: make([]float64, seconds/service.NeedSeconds+1), Replicas: 6,
	}
	d := service.New(cfg, scaler)
	next := 0.0
	for now := 1; now <= seconds; now++ {
		var q []trace.Request
		for perSecond := rate(now); perSecond > 0 && next < float64(now); next += 1 / perSecond {
			q = append(q, trace.Request{At: next, Prompt: 500, Output: 2000})
		}
		next = max(next, float64(now))
		before := d.Replicas()
		d.Run(q, float64(now))
		each(d, now, before)
	}
}

func falls(now int) float64 {
	if now > 300 {
		return 0.6
	}
	return 2
}

// In a replay a policy with drain deletes no pod that has requests. The same policy without
// it does.
func TestReplayDrains(t *testing.T) {
	const behavior = "behavior: {scaleDown: {stabilizationWindowSeconds: 30, policies: [{type: Pods, value: 1, periodSeconds: 30}]}}\n"
	deleted := func(drain string) (busy, fell int) {
		e := chat(t, behavior+drain)
		e.replay(t, 1200, falls, func(d *service.Deployment, _, before int) {
			if d.Replicas() < before {
				fell++
			}
			for _, p := range d.Pods() {
				if p.Phase == service.Draining {
					busy++
				}
			}
		})
		return busy, fell
	}
	if busy, fell := deleted("drain: {maxSeconds: 120}"); busy != 0 || fell == 0 {
		t.Errorf("with drain: %d seconds of deleted pods with requests, %d scale-downs", busy, fell)
	}
	if busy, fell := deleted(""); busy == 0 || fell == 0 {
		t.Errorf("without drain: %d seconds of deleted pods with requests, %d scale-downs", busy, fell)
	}
}

// In a replay the formula decides, and not the signal that asks for the most replicas.
func TestReplayFollowsAFormula(t *testing.T) {
	last := func(formula string) (replicas int) {
		e := chat(t, "behavior: {scaleDown: {stabilizationWindowSeconds: 30}}\n"+formula)
		e.replay(t, 900, func(int) float64 { return 0.6 }, func(d *service.Deployment, _, _ int) { replicas = d.Replicas() })
		return replicas
	}
	plain := last("")
	if plain < 1 || plain > 4 {
		t.Fatalf("%d replicas without a formula: the test cannot fail", plain)
	}
	if got := last("formula: requests.replicas + 4.0"); got < plain+3 || got > plain+4 {
		t.Errorf("%d replicas, want 4 more than requests take, which is %d rounded up", got, plain)
	}
	if got := last("formula: max(requests.replicas, 5.0)"); got != 5 {
		t.Errorf("%d replicas, want 5", got)
	}
}

// Queries are not replayed, and neither is a formula over them: the other signals decide.
func TestReplayLeavesOutAFormulaOfQueries(t *testing.T) {
	const query, busy = `{name: queue, query: {promql: sum(w)}, target: {value: "5"}}`, `{name: gpu-use, gpu: {metric: Utilization}, target: {value: "60"}}`
	end := func(signals, formula string) (replicas int, notes []string) {
		e := scaledBy(t, signals, formula)
		e.replay(t, 600, func(int) float64 { return 2 }, func(d *service.Deployment, _, _ int) { replicas = d.Replicas() })
		return replicas, e.Notes
	}
	want, _ := end("["+busy+"]", "")
	for _, signals := range []string{query + ", " + busy, busy + ", " + query} {
		got, notes := end("["+signals+"]", "formula: queue.replicas + 0.5 * gpu_use.replicas")
		if got != want || len(notes) != 1 || !strings.Contains(notes[0], "without its formula, which combines queries") {
			t.Errorf("%d replicas, want %d; notes %q", got, want, notes)
		}
	}
}

// In a replay the policies of steps hold: one replica at a time, and the time between two of them.
func TestReplayFollowsSteps(t *testing.T) {
	const steps = `behavior:
  scaleUp: {policies: [{type: Pods, value: 1, periodSeconds: 60}]}
  scaleDown: {tolerance: 500m, stabilizationWindowSeconds: 60, policies: [{type: Pods, value: 1, periodSeconds: 60}]}`
	e := scaledBy(t, `[{gpu: {metric: Utilization}, target: {value: "60"}}]`, steps)
	last, changes := -60, 0
	e.replay(t, 2400, falls, func(d *service.Deployment, now, before int) {
		n := d.Replicas()
		if n == before {
			return
		}
		if changes++; n-before > 1 || before-n > 1 || now-last < 60 {
			t.Errorf("%d to %d replicas at %d s, the last change was at %d s", before, n, now, last)
		}
		last = now
	})
	if changes < 2 {
		t.Errorf("%d changes", changes)
	}
}

// In a replay a policy with idle gives up all replicas once nobody has sent a request for that
// long, and not before. The same policy without it keeps its minimum.
func TestReplayIdle(t *testing.T) {
	const until, after, back = 300, 600, 1500
	last := func(spec string, rate func(int) float64) (replicas, zeroAt int) {
		e := chat(t, "behavior: {scaleDown: {stabilizationWindowSeconds: 30}}\n"+spec)
		if got := len(e.Notes) == 1 && strings.HasPrefix(e.Notes[0], "chat may remove replicas as idle: "); got != (spec != "") {
			t.Errorf("%q has the notes %q", spec, e.Notes)
		}
		e.replay(t, 1800, rate, func(d *service.Deployment, now, _ int) {
			if replicas = d.Replicas(); replicas == 0 && zeroAt == 0 {
				zeroAt = now
			}
		})
		return replicas, zeroAt
	}
	used := func(now int) float64 {
		if now > until && now < back {
			return 0
		}
		return 2
	}
	now, zeroAt := last("idle: {after: 10m}", used)
	if now != 0 || zeroAt < until+after || zeroAt > until+after+60 {
		t.Errorf("with idle: 0 replicas at %d s, %d at the end; want 0 from 10 min after the last requests ended, as nobody scales up by hand", zeroAt, now)
	}
	if now, zeroAt = last("", used); now == 0 || zeroAt > 0 {
		t.Errorf("without idle: 0 replicas at %d s, %d at the end", zeroAt, now)
	}
	if now, zeroAt = last("idle: {after: 10m}", func(now int) float64 { return 0.01 }); now == 0 || zeroAt > 0 {
		t.Errorf("with a request every 100 s: 0 replicas at %d s, %d at the end", zeroAt, now)
	}
}

// In a replay a policy with actuation: HPA sets its replicas every 15 s. Each replay has its own seconds.
func TestReplayThroughAnHPA(t *testing.T) {
	changes := func(spec string) (at []int) {
		e := chat(t, "behavior: {scaleDown: {stabilizationWindowSeconds: 0}}\n"+spec)
		if want := []string{"chat sets replicas through a HorizontalPodAutoscaler, which syncs every 15 s"}; spec != "" && !slices.Equal(e.Notes, want) {
			t.Errorf("notes %q, want %q", e.Notes, want)
		}
		e.replay(t, 1200, falls, func(d *service.Deployment, now, before int) {
			if d.Replicas() != before {
				at = append(at, now)
			}
		})
		return at
	}
	apart := func(at []int) bool {
		return !slices.ContainsFunc(at, func(now int) bool { return (now-at[0])%15 != 0 })
	}
	if at := changes("actuation: HPA"); len(at) < 3 || !apart(at) {
		t.Errorf("through an HPA: changes at %d s", at)
	}
	if at := changes(""); len(at) < 3 || apart(at) {
		t.Errorf("without: changes at %d s", at)
	}
}

// A pair, schedules and an override are not replayed, and that is said.
func TestReplaySaysWhatItLeavesOut(t *testing.T) {
	f := func(spec string, want ...string) {
		t.Helper()
		if e := chat(t, spec); !slices.Equal(e.Notes, want) {
			t.Errorf("%q has the notes %q, want %q", spec, e.Notes, want)
		}
	}
	f("drain: {maxSeconds: 60}")
	f(`pair: {with: decode, ratio: {min: "0.25", max: "1"}}`, "chat is replayed without its pair decode: a replay has one workload")
	f(`schedules: [{name: office, start: "08:00", end: "18:00", minReplicas: 2}]`)
	f(`override: {replicas: 2, until: "2026-01-01T00:40:00Z", reason: demo}`, "chat is replayed without its override")
}

// A load with times of day is replayed with the schedules of a policy, in their time zone. One without, or a scaled one, is
// not, and a note says so.
func TestReplayFollowsSchedules(t *testing.T) {
	const opens, closes, end = 600, 1200, 1800
	low := func(int) float64 { return 0.6 }
	// within returns the replicas half a minute after the schedule begins, and in the minute before that and at the end.
	within := func(spec string, r Replay, rate func(int) float64) (before, in, after int) {
		e := chat(t, "behavior: {scaleDown: {stabilizationWindowSeconds: 30}}\n"+spec)
		e.replayAs(t, r, end, rate, func(d *service.Deployment, now, _ int) {
			switch now {
			case opens - 1:
				before = d.Replicas()
			case opens + 30:
				in = d.Replicas()
			case end:
				after = d.Replicas()
			}
		})
		return before, in, after
	}
	const more = `schedules: [{name: office, timezone: Europe/Berlin, start: "08:00", end: "08:10", minReplicas: 7, leadTime: 0}]`
	berlin := time.Date(2026, 3, 2, 6, 50, 0, 0, time.UTC) // ten minutes before
	if before, in, after := within(more, Replay{Start: berlin}, low); before > 4 || in != 7 || after > 4 {
		t.Errorf("%d, %d and %d replicas, want 7 while the schedule is active", before, in, after)
	}
	for _, r := range []Replay{{}, {Start: berlin, Scaled: true}, {Start: berlin.Add(time.Hour)}} {
		if before, in, after := within(more, r, low); before > 4 || in > 4 || after > 4 {
			t.Errorf("%+v: %d, %d and %d replicas, want no schedule", r, before, in, after)
		}
	}
	const fewer = `schedules: [{name: night, timezone: Europe/Berlin, start: "08:00", end: "08:10", maxReplicas: 2}]`
	high := func(int) float64 { return 2 }
	if before, in, after := within(fewer, Replay{Start: berlin}, high); before <= 2 || in != 2 || after <= 2 {
		t.Errorf("%d, %d and %d replicas, want 2 while the schedule is active", before, in, after)
	}
	if before, in, _ := within(strings.Replace(more, "minReplicas: 7", "minReplicas: 20, maxReplicas: 20", 1), Replay{Start: berlin}, low); before > 4 || in != 8 {
		t.Errorf("%d and %d replicas, want the 8 that the replay allows", before, in)
	}
	if e := chat(t, more); len(e.Untimed) != 1 || !strings.HasPrefix(e.Untimed[0], "chat is replayed without its schedules: ") {
		t.Errorf("notes %q of a load without times", e.Untimed)
	}
}

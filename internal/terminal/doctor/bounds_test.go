// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/gpupilot/gpupilot/internal/window/view"
)

// merge sets fields of the GPUAutoscaler's spec and status, as YAML.
func merge(t *testing.T, spec, status string) func(*world) {
	return func(w *world) {
		for part, text := range map[string]string{"spec": spec, "status": status} {
			for name, value := range parse(t, text) {
				w.set("gpuautoscalers", value, part, name)
			}
		}
	}
}

// both does one change after the other.
func both(changes ...func(*world)) func(*world) {
	return func(w *world) {
		for _, f := range changes {
			f(w)
		}
	}
}

const (
	ownHPA = `{metadata: {namespace: llm, name: gpupilot-chat, uid: u1, creationTimestamp: "2026-11-24T11:00:00Z"}, spec: {scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: chat}}, status: {desiredReplicas: %d, conditions: [{type: AbleToScale, status: %q, reason: FailedUpdateScale, message: m}]}}`
	byHPA  = `{actuation: HPA}`
	owns   = `{desiredReplicas: 3, hpa: {name: gpupilot-chat, uid: u1}}`
	office = `{name: office, start: "08:00", end: "18:00", minReplicas: 4}`
	step   = `{desiredReplicas: %d, lastDecision: {time: "2026-11-24T12:00:00.000000Z", reason: Override, message: m, steps: [{rule: Signals, before: 1, after: 6, message: m}, {rule: Override, before: %d, after: %d, message: m}]}}`
)

// decided is the controller's decision of that many replicas, an hour ago.
func desired(n int32) func(*world) {
	return func(w *world) {
		w.view.Recent = []view.Event{{Namespace: "llm", Name: "chat", Decision: view.Decision{Time: noon.Add(-time.Hour), Replicas: n}}}
	}
}

func override(what, until string) string {
	return fmt.Sprintf(`{override: {%s, until: %q, reason: incident 4711}}`, what, until)
}

// read adds that the controller has read the override.
func read(until, status string) string {
	return fmt.Sprintf(`{override: {since: "2026-11-24T11:50:00Z", until: %q}, `, until) + strings.TrimPrefix(status, "{")
}

func schedulesOf(all ...string) string { return "{schedules: [" + strings.Join(all, ", ") + "]}" }

// boundsBreaks are the ways to break the checks of bounds.go.
func boundsBreaks(t *testing.T) map[string][]func(*world) {
	owned := func(desired int, able string) func(*world) {
		return both(merge(t, byHPA, owns), func(w *world) { w.add(t, "horizontalpodautoscalers", ownHPA, desired, able) })
	}
	refused := func(reason string) func(*world) {
		return merge(t, byHPA, `{conditions: [{type: AbleToScale, status: "False", reason: `+reason+`, message: m, lastTransitionTime: "2026-11-24T11:00:00Z"}]}`)
	}
	return map[string][]func(*world){
		"GP414": {
			merge(t, override("replicas: 2", "2026-11-24T18:00:00Z"), read("2026-11-24T18:00:00Z", fmt.Sprintf(step, 2, 6, 2))),
			merge(t, override("maxReplicas: 2", "2026-11-24T12:20:00Z"), read("2026-11-24T12:20:00Z", fmt.Sprintf(step, 2, 6, 2))), // it ends soon, too
			merge(t, override("freeze: Up", "2026-11-24T18:00:00Z"), read("2026-11-24T18:00:00Z", fmt.Sprintf(step, 2, 6, 2))),
			both(merge(t, override("replicas: 2", "2026-11-24T18:00:00Z"), read("2026-11-24T18:00:00Z", `{desiredReplicas: 2}`)), merge(t, `{minReplicas: 3}`, `{}`)), // no rule says it
			both(merge(t, override("replicas: 2", "2026-11-24T18:00:00Z"), read("2026-11-24T18:00:00Z", `{desiredReplicas: 2}`)), merge(t, schedulesOf(office), `{}`)),
		},
		"GP415": {
			merge(t, override("replicas: 6", "2026-11-24T12:59:00Z"), read("2026-11-24T12:59:00Z", fmt.Sprintf(step, 6, 2, 6))),
			merge(t, override("freeze: Down", "2026-11-24T12:59:00Z"), read("2026-11-24T12:59:00Z", fmt.Sprintf(step, 6, 2, 6))),
			both(merge(t, override("replicas: 6", "2026-11-24T12:59:00Z"), read("2026-11-24T12:59:00Z", fmt.Sprintf(step, 6, 2, 6))), merge(t, `{budget: {maxGPUs: 8}}`, `{}`)),
		},
		"GP416": {
			merge(t, override("replicas: 6", "2026-12-25T12:00:00Z"), `{override: {since: "2026-11-24T11:59:00Z", until: "2026-12-25T12:00:00Z"}}`),
			merge(t, schedulesOf(`{name: same, start: "08:00", end: "18:00", minReplicas: 1, maxReplicas: 8}`), `{}`),
			merge(t, schedulesOf(office, `{name: within, start: "09:00", end: "17:00", minReplicas: 3}`), `{}`),
			merge(t, schedulesOf(`{name: never, cron: "0 8 30 2 *", duration: 1h, minReplicas: 3}`), `{}`),
		},
		"GP417": {
			merge(t, schedulesOf(`{name: late, start: "08:00", end: "18:00", minReplicas: 4, leadTime: 45}`), `{}`),
			merge(t, schedulesOf(`{name: always, start: "08:00", end: "18:00", minReplicas: 4, leadTime: 50400}`), `{}`),
		},
		"GP418": {
			both(merge(t, schedulesOf(`{name: night, timezone: Europe/Berlin, start: "02:10", end: "02:50", minReplicas: 4}`), `{}`), march),
			both(merge(t, schedulesOf(`{name: night, timezone: Europe/Berlin, start: "22:00", end: "02:30", maxReplicas: 4}`), `{}`), march),
			both(merge(t, schedulesOf(`{name: night, timezone: Europe/Berlin, cron: "30 2 * * *", duration: 2h, minReplicas: 4}`), `{}`), march),
		},
		"GP419": {
			refused("HPANotKept"), refused("HPAReadsNoMetric"), refused("HPAStopping"),
			merge(t, byHPA, `{desiredReplicas: 3}`),
			merge(t, byHPA, owns), // it was deleted
			owned(1, "False"),
			both(owned(1, "True"), desired(3)),
			both(owned(1, "True"), func(w *world) { w.set("horizontalpodautoscalers", object_{}, "status") }),
		},
	}
}

// march is three days before the clock of Berlin changes.
func march(w *world) {
	w.now = time.Date(2026, 3, 26, 12, 0, 0, 0, time.UTC)
	w.view.Time = w.now
}

// Overrides, schedules and owned HorizontalPodAutoscalers that do what they are for are no findings.
func TestBoundsAreHealthy(t *testing.T) {
	f := func(what string, change func(w *world)) {
		t.Helper()
		w := healthy(t)
		change(w)
		results, _ := w.examine(t, Selection{Only: []string{"scaling"}})
		for i := range results {
			if r := &results[i]; r.Status != Passed {
				t.Errorf("%s: %s %s %v %s", what, r.Code, r.Status, r.Findings, r.Reason)
			}
		}
	}
	f("an override that changes nothing", merge(t, override("replicas: 2", "2026-11-24T12:10:00Z"), read("2026-11-24T12:10:00Z", `{desiredReplicas: 2}`)))
	f("one that holds more, for long", merge(t, override("replicas: 6", "2026-11-24T13:01:00Z"), read("2026-11-24T13:01:00Z", fmt.Sprintf(step, 6, 2, 6))))
	f("one that has ended", merge(t, override("replicas: 6", "2026-11-24T11:00:00Z"), read("2026-11-24T11:00:00Z", fmt.Sprintf(step, 6, 2, 6))))
	f("one above which the spec's maximum is", merge(t, override("maxReplicas: 8", "2026-11-24T18:00:00Z"), read("2026-11-24T18:00:00Z", fmt.Sprintf(step, 8, 20, 8))))
	f("one that the budget would limit, too", both(
		merge(t, override("maxReplicas: 2", "2026-11-24T18:00:00Z"), read("2026-11-24T18:00:00Z", fmt.Sprintf(step, 2, 6, 2))), merge(t, `{budget: {maxGPUs: 4}}`, `{}`)))
	f("one that was not decided with yet", merge(t, override("replicas: 2", "2026-11-24T18:00:00Z"), fmt.Sprintf(step, 2, 6, 2)))
	f("what others set to 0", both(
		merge(t, override("minReplicas: 0", "2026-11-24T18:00:00Z"), read("2026-11-24T18:00:00Z", strings.ReplaceAll(fmt.Sprintf(step, 0, 1, 0), "Override", "SetToZero"))), merge(t, `{minReplicas: 2}`, `{}`)))
	f("schedules", both(merge(t, schedulesOf(office, `{name: night, start: "22:00", end: "06:00", maxReplicas: 2, leadTime: 1}`, `{name: week, cron: "0 12 * * MON", duration: 1h, minReplicas: 5, leadTime: 0}`), `{}`)))
	f("a schedule of the next year", merge(t, schedulesOf(`{name: sale, cron: "0 0 27 2 *", duration: 24h, minReplicas: 4}`), `{}`))
	f("one in the clock's change that is shown twice", both(merge(t, schedulesOf(`{name: night, timezone: Europe/Berlin, start: "02:10", end: "02:50", minReplicas: 4}`), `{}`), func(w *world) {
		w.now = time.Date(2026, 10, 22, 12, 0, 0, 0, time.UTC)
	}))
	f("an owned HPA", both(merge(t, byHPA, owns), func(w *world) { w.add(t, "horizontalpodautoscalers", ownHPA, 3, "True") }, desired(3)))
	f("one that has to follow yet", both(merge(t, byHPA, owns), func(w *world) {
		w.add(t, "horizontalpodautoscalers", ownHPA, 2, "True")
		w.view.Recent = []view.Event{{Namespace: "llm", Name: "chat", Decision: view.Decision{Time: noon.Add(-50 * time.Second), Replicas: 3}}}
	}))
	f("one that is being stopped", merge(t, `{}`, `{conditions: [{type: AbleToScale, status: "False", reason: HPAStopping, message: m, lastTransitionTime: "2026-11-24T11:59:30Z"}]}`))
}

// Schedules of hostile tenants cost no more than their share, and what was not looked at is no success.
func TestManySchedules(t *testing.T) {
	w := healthy(t)
	var all []string
	for i := range 16 {
		all = append(all, fmt.Sprintf(`{name: s%d, cron: "* * * * *", duration: 1m, minReplicas: 2, leadTime: 86400}`, i))
	}
	merge(t, schedulesOf(all...), `{}`)(w)
	hostile := w.lists["gpuautoscalers"][0]
	w.lists["gpuautoscalers"] = nil
	for range 1000 {
		w.lists["gpuautoscalers"] = append(w.lists["gpuautoscalers"], hostile)
	}
	second := parse(t, autoscaler)
	second["metadata"].(object_)["name"] = "second"
	w.lists["gpuautoscalers"] = append(w.lists["gpuautoscalers"], second)
	w.set("gpuautoscalers", hostile["spec"], "spec")
	second["spec"].(object_)["schedules"] = parse(t, schedulesOf(`{name: same, start: "08:00", end: "18:00", maxReplicas: 8}`))["schedules"]
	results, f := w.examine(t, Selection{Only: []string{"GP416", "GP418"}})
	if got := failed(results); len(got) != 2 || got[0] != "GP416" || got[1] != "GP418?" {
		t.Errorf("%v", got)
	}
	if r := results[0].Findings; len(r) != 1 || r[0].Object != "GPUAutoscaler llm/second" {
		t.Errorf("%+v", r)
	}
	if f.schedulesErr == nil || !strings.Contains(f.schedulesErr.Error(), "1000 GPUAutoscalers") {
		t.Errorf("%v", f.schedulesErr)
	}
}

// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/gpupilot/gpupilot/internal/base/excerpt"
	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/scale"
	"github.com/gpupilot/gpupilot/internal/scale/replica"
	"github.com/gpupilot/gpupilot/internal/window/discovery"
)

// outage is a period in which replicas serve and no signal has a value.
type outage struct {
	ongoing   bool
	recorded  bool      // an Event was recorded, or none is needed
	lastEvent time.Time // when the last Event was recorded
}

// maxSilent bounds the number of silent targets in a message.
const maxSilent = 3

// watchSignals records once that the workload's signals became unreadable, and
// once that they are readable again.
func (w *workload) watchSignals(r *report) {
	o := &w.outage
	c := signalsCondition(r)
	if c.Reason != reasonNoFreshData {
		if o.ongoing && c.Reason == reasonReadable {
			w.shared.deps.Log.Info("signals readable again", "gpuautoscaler", w.key.String())
		}
		o.ongoing, o.recorded = false, false
		return
	}
	if o.ongoing && (o.recorded || !w.shared.deps.Leading()) {
		return
	}
	why := c.Message
	if r.queryProblem == "" {
		why += ": " + w.describeSilence()
	}
	if !o.ongoing {
		o.ongoing = true
		w.shared.deps.Log.Warn("signals unreadable", "gpuautoscaler", w.key.String(), "why", why)
	}
	if !w.shared.deps.Leading() {
		return
	}
	o.recorded = true
	last := meta.FindStatusCondition(r.object.Status.Conditions, c.Type)
	if last != nil && last.Reason == reasonNoFreshData || r.at.Sub(o.lastEvent) < minEventInterval {
		return // the previous leader recorded it, or the outage is intermittent
	}
	o.lastEvent = r.at
	w.record(r.object, corev1.EventTypeWarning, reasonNoFreshData, "Observe", excerpt.Of(why, maxMessage))
}

// watchSources records once that an exporter contradicts the API server about the
// workload's pods.
func (w *workload) watchSources(r *report) {
	c := sourcesCondition(r)
	if c.Reason != reasonContradicted {
		w.contradictionRecorded = false
		return
	}
	if w.contradictionRecorded || !w.shared.deps.Leading() {
		return
	}
	w.contradictionRecorded = true
	if last := meta.FindStatusCondition(r.object.Status.Conditions, c.Type); last != nil && last.Reason == c.Reason {
		return // the previous leader recorded it
	}
	w.record(r.object, corev1.EventTypeWarning, c.Reason, "Observe", c.Message)
}

// recordContradiction records an Event about the pod of an exporter whose claim the API
// server contradicts.
func (c *Controller) recordContradiction(target, note string) {
	at := c.discovered.Load().Origins[target].Pod
	pod, ok := c.deps.Pods.Get(at.Namespace, at.Name)
	if !ok || !c.deps.Leading() {
		return
	}
	c.deps.Record(Event{
		About: corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: at.Namespace, Name: at.Name, UID: pod.UID},
		Kind:  corev1.EventTypeWarning, Reason: reasonContradicted, Action: "Observe", Note: excerpt.Of(note, maxMessage),
	})
}

// describeSilence lists the targets of the serving pods that do not answer, or whose
// values no longer change.
func (w *workload) describeSilence() string {
	want := w.samplePlaces()
	found := w.shared.discovered.Load()
	var out []string
	for _, t := range w.shared.deps.States() {
		at := found.Origins[t.Name]
		if _, ok := want[at.Place]; !ok {
			continue
		}
		want[at.Place] = true
		if !t.Up {
			out = append(out, fmt.Sprintf("%s on node %s does not answer (%s)", t.Name, at.Node, cmp.Or(excerpt.Of(t.Error, maxDetail), "it never answered")))
		} else if t.Frozen > 0 {
			out = append(out, fmt.Sprintf("%s on node %s exposes values of %d devices that no longer change", t.Name, at.Node, t.Frozen))
		}
	}
	for place, found := range want {
		if !found {
			out = append(out, "no target is scraped at "+place)
		}
	}
	if len(out) == 0 {
		return "all targets answer, but have no samples of these pods"
	}
	slices.Sort(out)
	if more := len(out) - maxSilent; more > 0 {
		out = append(out[:maxSilent], fmt.Sprintf("and %d more", more))
	}
	return strings.Join(out, ", ")
}

// samplePlaces returns the places whose targets should have samples of the serving
// pods.
func (w *workload) samplePlaces() map[string]bool {
	out := map[string]bool{}
	for _, pod := range w.pods {
		if phase, _ := replica.PhaseOf(pod); phase != scale.Serving || replica.Finished(pod) {
			continue
		}
		if p := w.plan.Load(); p != nil && p.fields != (gpu.FieldSet{}) {
			out[discovery.NodePlace(pod.Spec.NodeName)] = false
		}
		if w.scrapesPods.Load() {
			out[discovery.PodPlace(pod.Namespace, pod.Name)] = false
		}
	}
	return out
}

// fallbackSuffix says what happens while a signal has no value, if its spec does.
func fallbackSuffix(p *plan, signal string) string {
	if p == nil {
		return ""
	}
	for i := range p.Policy.Signals {
		s := &p.Policy.Signals[i]
		switch {
		case s.Name != signal:
		case s.Fallback.Mode == scale.FallbackIgnore:
			return ", which is ignored (fallback: Ignore)"
		case s.Fallback.Mode == scale.FallbackMax:
			return " (fallback: Max)"
		case s.Fallback.Mode == scale.FallbackReplicas:
			return fmt.Sprintf(" (fallback: %d replicas)", s.Fallback.Replicas)
		}
	}
	return ""
}

// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpupilot/gpupilot/internal/base/excerpt"
	"github.com/gpupilot/gpupilot/internal/base/promtext"
	"github.com/gpupilot/gpupilot/internal/scale"
	"github.com/gpupilot/gpupilot/internal/scale/policy"
	"github.com/gpupilot/gpupilot/internal/scale/replica"
	"github.com/gpupilot/gpupilot/internal/window/discovery"
	"github.com/gpupilot/gpupilot/internal/window/view"
)

// maxSilent bounds the number of silent targets in a message.
const maxSilent = 3

// windowAge is the age of the oldest value in the windows, about.
const windowAge = 10 * time.Minute

// describeUnread says of the first signal without a value why pods, or their GPUs, have none: where it is read, what was
// found there, and what to set; empty: each signal has a value, or another message has the reason.
func (h *health) describeUnread(r *pass) string {
	d, p := r.Decision, r.plan
	if d == nil || p == nil || d.Serving == 0 || r.early || r.podsProblem != "" {
		return ""
	}
	for i := range p.Sources {
		name := p.Policy.Signals[i].Name
		missing := func(in scale.Input) bool { return in.Signal == name && in.Fresh == 0 }
		if !slices.ContainsFunc(d.Inputs, missing) {
			continue
		}
		switch p.Sources[i].Kind {
		case policy.Pods:
			return h.describeRead(r, &p.Sources[i])
		case policy.GPU:
			return h.describeExporters(r, name)
		}
	}
	return ""
}

// describeRead says where a signal is read of a serving pod, and what was found there: of one that does not answer, if
// there is one. The texts are ours, and the names of metrics valid ones: a pod chooses its answers.
func (h *health) describeRead(r *pass, src *policy.Source) (out string) {
	for _, pod := range r.pods {
		if !replica.Serving(pod) {
			continue
		}
		e, err := h.shared.finder.PodEndpoint(pod, src)
		if err != nil {
			continue
		}
		at := fmt.Sprintf("pod %s, %s, path %s, ", pod.Name, e.Port, excerpt.Of(e.URL.Path, maxDetail/4))
		if t, ok := h.shared.failingTarget(e.Name); ok {
			why := ownError(&t)
			if !strings.Contains(why, "set ") {
				why += "; set port or path in the signal if its metrics are elsewhere"
			}
			return at + "cannot be read: " + why
		}
		if out == "" {
			out = at + h.describeAnswer(r, pod, src)
		}
	}
	return out
}

// describeAnswer says what the page of a pod lacks that answers.
func (h *health) describeAnswer(r *pass, pod *corev1.Pod, src *policy.Source) string {
	var lacking []string
	for _, term := range src.Terms {
		if _, ok := r.Reader.ReadTerm(pod, term); ok {
			continue
		}
		older := r.Reader
		older.MaxAge = windowAge
		if last, ok := older.ReadTerm(pod, term); ok {
			return fmt.Sprintf("has no new %s since %s", excerpt.Of(term[0].Name, maxDetail/2), last.At.UTC().Format(time.TimeOnly+" UTC"))
		}
		lacking = append(lacking, term[0].Name)
	}
	if len(lacking) == 0 {
		return "has a value by now"
	}
	out := "answers without " + excerpt.Of(strings.Join(lacking, " and "), maxDetail/2)
	if h.guess.metric != lacking[0] || r.At.Sub(h.guess.at).Abs() > guessTTL {
		h.guess = guess{lacking[0], h.meant(src, lacking[0], pod.Namespace), r.At}
	}
	if meant := h.guess.meant; meant != "" {
		return out + ": did you mean " + meant + "?"
	}
	return out + "; set port or path in the signal if another page has it"
}

// guess is the metric that may be meant by another one. A tenant chooses the names: to compare 256 of 100 bytes took 9 ms,
// at each pass of each of their GPUAutoscalers.
type guess struct {
	metric, meant string
	at            time.Time
}

// guessTTL is how long a guess is used. Its metric may have come to a page meanwhile.
const guessTTL = 30 * time.Second

// meant returns the metric that may be meant by one that a page lacks: of those that pages of its namespace describe, or
// else of those of the servers that presets read; empty: there is none like it.
func (h *health) meant(src *policy.Source, metric, namespace string) string {
	var known []string
	if f := h.shared.deps.Described; f != nil {
		known = f(namespace)
	}
	servers := slices.Collect(maps.Keys(policy.Gauges(true)))
	if slices.Contains(servers, metric) { // it is spelt right
		servers = nil
	}
	asked := func(name string) bool {
		return slices.ContainsFunc(src.Terms, func(t policy.Term) bool {
			return slices.ContainsFunc(t, func(m policy.PodMetric) bool { return m.Name == name })
		})
	}
	for _, names := range [][]string{slices.DeleteFunc(known, asked), servers} {
		if meant := promtext.Closest(metric, names, 1); len(meant) > 0 {
			return meant[0]
		}
	}
	return ""
}

// describeExporters lists the exporters of the serving pods' nodes that do not answer, or whose values no longer change.
func (h *health) describeExporters(r *pass, signal string) string {
	var out, seen []string
	for _, pod := range r.pods {
		node := pod.Spec.NodeName
		if !replica.Serving(pod) || slices.Contains(seen, node) {
			continue
		}
		seen = append(seen, node)
		bad, scraped := h.shared.failingAt(discovery.NodePlace(node))
		if !scraped {
			out = append(out, fmt.Sprintf("node %s has no exporter", node))
		}
		for i := range bad {
			t := &bad[i]
			if t.Up {
				out = append(out, fmt.Sprintf("%s on node %s answers with old values (%d GPUs)", t.Name, node, t.Frozen))
			} else {
				out = append(out, fmt.Sprintf("%s on node %s does not answer (%s)", t.Name, node, ownError(t)))
			}
		}
	}
	if len(out) == 0 {
		return "the exporters of their nodes answer without " + excerpt.Of(signal, maxDetail/2) + " of these pods"
	}
	slices.Sort(out)
	if more := len(out) - maxSilent; more > 0 {
		out = append(out[:maxSilent], fmt.Sprintf("and %d more", more))
	}
	return strings.Join(out, ", ")
}

// ownError is why a target does not answer, without its name and its URL.
func ownError(t *view.Target) string {
	why := cmp.Or(t.Error, "it has not answered yet")
	if _, own, ok := strings.Cut(why, "): "); ok {
		why = own
	}
	return excerpt.Of(why, maxDetail)
}

// failingTTL is the time between two lists of the targets without values.
const failingTTL = 5 * time.Second

// failing caches which targets do not answer, or answer with old values. It is asked only while a signal of pods or GPUs,
// or a gateway's query, has no value.
type failing struct {
	mu     sync.Mutex
	asOf   time.Time
	places map[string][]view.Target // each place that is scraped, with those targets of it
}

// failingAt returns the targets of a place without new values, and whether it is scraped at all. The caller does not change
// them.
func (s *shared) failingAt(place string) (bad []view.Target, scraped bool) {
	f := &s.failing
	f.mu.Lock()
	defer f.mu.Unlock()
	if now := time.Now(); now.Sub(f.asOf) > failingTTL {
		f.asOf, f.places = now, map[string][]view.Target{}
		found := s.discovered.Load()
		for _, t := range s.deps.States() {
			at, bad := found.Origins[t.Name].Place, f.places[found.Origins[t.Name].Place]
			if !t.Up || t.Frozen > 0 {
				bad = append(bad, t)
			}
			f.places[at] = bad
		}
	}
	bad, scraped = f.places[place]
	return bad, scraped
}

// failingTarget returns a target that does not answer; ok is false if it does, or if it is not scraped.
func (s *shared) failingTarget(name string) (t view.Target, ok bool) {
	bad, _ := s.failingAt(s.discovered.Load().Origins[name].Place)
	if i := slices.IndexFunc(bad, func(t view.Target) bool { return t.Name == name && !t.Up }); i >= 0 {
		return bad[i], true
	}
	return t, false
}

// SPDX-License-Identifier: Apache-2.0

package discovery

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpupilot/gpupilot/internal/scale/policy"
)

// MaxPerPod bounds the scraped expositions of one pod: each takes time, and a tenant
// may create any number of GPUAutoscalers with different ports and paths. A server has
// one; some pods have a second one of their sidecar.
const MaxPerPod = 8

// podTargetSet collects the pods' own expositions.
type podTargetSet struct {
	targets map[string]*Target
	perPod  map[types.NamespacedName]int
	excess  map[string]bool // names of those beyond MaxPerPod
}

// readsPods reports whether any of the reader's signals reads pods' own metrics.
func (r *Reader) readsPods() bool {
	return slices.ContainsFunc(r.Sources, func(s policy.Source) bool { return s.Kind == policy.Pods })
}

// readsGateway reports whether the finder finds the gateway of a reader's signals.
func (f *Finder) readsGateway(r *Reader) bool {
	return f.cfg.Gateways && slices.ContainsFunc(r.Sources, func(s policy.Source) bool { return s.Gateway != nil })
}

// podTargets lists the pods' own expositions that autoscalers read, and notes in list which
// are not scraped. If a pod has too many, older autoscalers have precedence.
func (f *Finder) podTargets(readers []Reader, list *List) (targets []Target) {
	slices.SortFunc(readers, func(a, b Reader) int {
		return cmp.Or(a.Created.Compare(b.Created.Time), cmp.Compare(a.Name, b.Name))
	})
	found := podTargetSet{targets: map[string]*Target{}, perPod: map[types.NamespacedName]int{}, excess: map[string]bool{}}
	list.Gateways = map[types.NamespacedName]Gateways{}
	for i := range readers {
		r := &readers[i]
		for j := range r.Sources {
			if src := &r.Sources[j]; src.Kind == policy.Pods {
				f.addPodTargets(&found, src, f.pods.Select(r.Namespace, r.Selector))
			}
		}
		if f.readsGateway(r) {
			list.Gateways[types.NamespacedName{Namespace: r.Namespace, Name: r.Name}] = f.gatewayTargets(&found, r)
		}
	}
	list.Excess = found.excess
	out := make([]Target, 0, len(found.targets))
	for _, name := range slices.Sorted(maps.Keys(found.targets)) {
		t := found.targets[name]
		slices.SortFunc(t.Metrics, func(a, b policy.PodMetric) int { // among equal keys, metrics with bounds come first
			return cmp.Or(cmp.Compare(a.Key(), b.Key()), cmp.Compare(b.UpperBound, a.UpperBound))
		})
		t.Metrics = slices.CompactFunc(t.Metrics, func(a, b policy.PodMetric) bool { return a.Key() == b.Key() })
		out = append(out, *t)
	}
	return out
}

// add adds a target of a pod, unless it is there already, and returns the one that is
// there; nil: the pod has too many others.
func (s *podTargetSet) add(pod *corev1.Pod, t *Target) *Target {
	if have := s.targets[t.Name]; have != nil {
		return have
	}
	key := nameOf(pod)
	if s.perPod[key] >= MaxPerPod {
		return nil
	}
	s.perPod[key]++
	s.targets[t.Name], t.Pod = t, key
	return t
}

// targetName returns the target name of a pod's exposition at a port and a path.
func targetName(pod *corev1.Pod, port int32, path string, verify *policy.TLS) string {
	name := fmt.Sprintf("%s/%s/%s:%d%s", KindPod, pod.Namespace, pod.Name, port, path)
	if verify != nil {
		name += " (HTTPS)"
	}
	return name
}

func (f *Finder) addPodTargets(found *podTargetSet, src *policy.Source, pods []*corev1.Pod) {
	for _, pod := range pods {
		if !Scrapable(pod) {
			continue
		}
		e, err := f.PodEndpoint(pod, src)
		if err != nil {
			continue // a condition of the workload reports it
		}
		t := found.add(pod, &Target{Name: e.Name, Kind: KindPod, URL: e.URL, TLS: e.TLS, Port: e.Port, Labels: podLabels(pod, e.URL.Host)})
		if t == nil {
			found.excess[e.Name] = true
			continue
		}
		for _, term := range src.AllTerms() {
			t.Metrics = append(t.Metrics, term...)
		}
	}
}

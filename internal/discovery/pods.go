// SPDX-License-Identifier: Apache-2.0

package discovery

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/gpupilot/gpupilot/internal/policy"
	"github.com/gpupilot/gpupilot/internal/series"
)

// MaxPerPod is how many expositions of one pod are scraped: each takes time, and
// a tenant may write any number of GPUAutoscalers with other ports and paths. A
// server has one, some have a second one for their sidecar.
const MaxPerPod = 8

// found are the pods' own expositions while they are listed.
type found struct {
	targets map[string]*Target
	ofPod   map[types.NamespacedName]int
	excess  map[string]bool // names of those beyond MaxPerPod
}

// readsPods reports whether any of the reader's signals reads pods' own metrics.
func (r *Reader) readsPods() bool {
	return slices.ContainsFunc(r.Sources, func(s policy.Source) bool { return s.Kind == policy.Pods })
}

// podTargets lists the pods' own expositions that autoscalers read, those of older
// autoscalers first where a pod has too many.
func (f *Finder) podTargets(readers []Reader) (targets []Target, excess map[string]bool) {
	slices.SortFunc(readers, func(a, b Reader) int {
		return cmp.Or(a.Created.Compare(b.Created.Time), cmp.Compare(a.Name, b.Name))
	})
	found := found{targets: map[string]*Target{}, ofPod: map[types.NamespacedName]int{}, excess: map[string]bool{}}
	for i := range readers {
		r := &readers[i]
		for j := range r.Sources {
			if src := &r.Sources[j]; src.Kind == policy.Pods {
				f.podTargetsOf(&found, src, f.pods.Select(r.Namespace, r.Selector))
			}
		}
	}
	out := make([]Target, 0, len(found.targets))
	for _, name := range slices.Sorted(maps.Keys(found.targets)) {
		t := found.targets[name]
		slices.SortFunc(t.Metrics, func(a, b policy.PodMetric) int { // of equals, the first has a range if any has
			return cmp.Or(cmp.Compare(a.Key(), b.Key()), cmp.Compare(b.Most, a.Most))
		})
		t.Metrics = slices.CompactFunc(t.Metrics, func(a, b policy.PodMetric) bool { return a.Key() == b.Key() })
		out = append(out, *t)
	}
	return out, found.excess
}

// PodTargetName is the name of the exposition of a pod at a port and a path.
func PodTargetName(pod *corev1.Pod, port int32, path string) string {
	return fmt.Sprintf("%s/%s/%s:%d%s", KindPod, pod.Namespace, pod.Name, port, path)
}

func (f *Finder) podTargetsOf(found *found, src *policy.Source, pods []*corev1.Pod) {
	for _, pod := range pods {
		if !Scrapable(pod) {
			continue
		}
		u, port, err := f.PodEndpoint(pod, src)
		if err != nil {
			continue // the workload's condition tells it
		}
		name := PodTargetName(pod, port, src.Path)
		t := found.targets[name]
		if t == nil {
			key := types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}
			if found.ofPod[key] >= MaxPerPod {
				found.excess[name] = true
				continue
			}
			found.ofPod[key]++
			t = &Target{
				Name: name, Kind: KindPod, URL: u,
				Labels: series.TargetLabels{Node: pod.Spec.NodeName, Instance: u.Host, Job: KindPod, Namespace: pod.Namespace, Pod: pod.Name},
			}
			found.targets[name] = t
		}
		for _, term := range src.All() {
			t.Metrics = append(t.Metrics, term...)
		}
	}
}

// PodPort finds the port of a pod that serves its metrics: the one given, by
// number or by name; else one called metrics, the server's own, or the only one.
func PodPort(pod *corev1.Pod, port policy.Port) (int32, error) {
	given := port.Given
	if given != nil && given.Type == intstr.Int {
		return given.IntVal, nil
	}
	var all []corev1.ContainerPort
	for _, ctr := range pod.Spec.Containers {
		all = append(all, ctr.Ports...)
	}
	find := func(is func(corev1.ContainerPort) bool) int32 {
		if i := slices.IndexFunc(all, is); i >= 0 {
			return all[i].ContainerPort
		}
		return 0
	}
	if given != nil {
		if n := find(func(p corev1.ContainerPort) bool { return p.Name == given.StrVal }); n > 0 {
			return n, nil
		}
		return 0, fmt.Errorf("pod %s has no container port named %q", pod.Name, given.StrVal)
	}
	if port.Default > 0 {
		if n := find(func(p corev1.ContainerPort) bool { return p.Name == "metrics" }); n > 0 {
			return n, nil
		}
		own := find(func(p corev1.ContainerPort) bool { return p.ContainerPort == port.Default })
		if own > 0 || port.Apart || len(all) != 1 {
			return port.Default, nil
		}
	}
	if len(all) != 1 {
		return 0, fmt.Errorf("pod %s has %d container ports; name the one that serves its metrics in signals[].pods.port", pod.Name, len(all))
	}
	return all[0].ContainerPort, nil
}

// SPDX-License-Identifier: Apache-2.0

package discovery

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpupilot/gpupilot/internal/base/excerpt"
	"github.com/gpupilot/gpupilot/internal/scale/policy"
	"github.com/gpupilot/gpupilot/internal/window/series"
)

// maxGateways bounds the pods that are scraped as one gateway. A picker or a frontend
// has a few replicas.
const maxGateways = 32

// gatewayTargets adds the gateways of a reader's queries: pods of its own namespace
// only. Their series are kept as far as queries read them.
func (f *Finder) gatewayTargets(found *podTargetSet, r *Reader) (out Gateways) {
	for i := range r.Sources {
		g := r.Sources[i].Gateway
		if g == nil {
			continue
		}
		names, problem := f.oneGateway(found, r.Namespace, g)
		out.Targets = append(out.Targets, names...)
		if len(names) == 0 {
			out.Problem = problem
		}
	}
	return out
}

// oneGateway adds the targets of one gateway. problem is why there is none.
func (f *Finder) oneGateway(found *podTargetSet, namespace string, g *policy.Gateway) (names []string, problem string) {
	problem = fmt.Sprintf("no running pod of namespace %s has the labels of the gateway (%s); set selector in the signal", namespace, describeSelectors(g))
	for _, pod := range f.gatewayPods(namespace, g) {
		if !Scrapable(pod) || len(names) >= maxGateways {
			continue
		}
		name, err := f.addGateway(found, pod, g)
		if err != nil {
			problem = err.Error()
			continue
		}
		names = append(names, name)
	}
	return names, problem
}

// gatewayPods returns the pods of a gateway, each once.
func (f *Finder) gatewayPods(namespace string, g *policy.Gateway) (out []*corev1.Pod) {
	if namespace == "" {
		return nil // "" would select all namespaces
	}
	listed := map[types.UID]bool{}
	for _, selector := range g.Selectors {
		for _, pod := range f.pods.Select(namespace, selector) {
			if pod.UID == "" || !listed[pod.UID] {
				listed[pod.UID] = true
				out = append(out, pod)
			}
		}
	}
	return out
}

func (f *Finder) addGateway(found *podTargetSet, pod *corev1.Pod, g *policy.Gateway) (name string, err error) {
	port, err := PodPort(pod, g.Port)
	if err != nil {
		return "", err
	}
	e, err := f.at(pod, port, g.Path, g.TLS)
	if err != nil {
		return "", err
	}
	if found.add(pod, &Target{Name: e.Name, Kind: KindPod, URL: e.URL, TLS: e.TLS, Port: port, Labels: podLabels(pod, e.URL.Host)}) == nil {
		return "", fmt.Errorf("pod %s already has %d ports and paths that are scraped, which is the limit", pod.Name, MaxPerPod)
	}
	return e.Name, nil
}

// podLabels are the labels of a pod's own series.
func podLabels(pod *corev1.Pod, instance string) series.TargetLabels {
	return series.TargetLabels{Node: pod.Spec.NodeName, Instance: instance, Job: KindPod, Namespace: pod.Namespace, Pod: pod.Name}
}

// maxSelectors bounds the text about the selectors of a gateway, in bytes.
const maxSelectors = 300

// describeSelectors lists the selectors of a gateway.
func describeSelectors(g *policy.Gateway) string {
	texts := make([]string, len(g.Selectors))
	for i, s := range g.Selectors {
		texts[i] = s.String()
	}
	return excerpt.Of(strings.Join(texts, " or "), maxSelectors)
}

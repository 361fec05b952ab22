// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/policy"
	"github.com/gpupilot/gpupilot/internal/series"
)

// The kinds of targets.
const (
	KindAgent = "agent"
	KindDCGM  = "dcgm-exporter"
	KindPod   = "pod"
)

// Target is one exposition to be scraped.
type Target struct {
	Name    string // unique
	URL     url.URL
	Kind    string // KindAgent, KindDCGM or KindPod
	Labels  series.TargetLabels
	Fields  gpu.FieldSet       // of KindAgent and KindDCGM: those in use
	Metrics []policy.PodMetric // of KindPod: those in use, sorted by their keys, each once
}

const (
	// defaultPort is dcgm-exporter's, and ours.
	defaultPort = 9400
	// discoverGap bounds how often the targets are listed anew while pods
	// come and go; where there are many, idleShare does.
	discoverGap = 50 * time.Millisecond
	// rediscoverAll is how often they are listed with no occasion: a field that
	// nobody asks for any more leaves.
	rediscoverAll = time.Minute
)

func (c *Controller) discoverSoon() {
	select {
	case c.rediscover <- struct{}{}:
	default:
	}
}

// discover says what is to be scraped, and asks what is to be asked, whenever
// that may have changed.
func (c *Controller) discover(ctx context.Context) {
	every := time.NewTicker(rediscoverAll)
	defer every.Stop()
	for {
		began := time.Now()
		c.deps.Scrape(c.list(began))
		c.queries.follow(ctx)
		select {
		case <-ctx.Done():
			return
		case <-time.After(max(discoverGap, idleShare*time.Since(began))):
		}
		select {
		case <-ctx.Done():
			return
		case <-c.rediscover:
		case <-every.C:
		}
	}
}

// list makes the list of targets, and remembers where each one's samples belong.
func (c *Controller) list(now time.Time) []Target {
	fields := c.fieldsInUse(now)
	targets := c.agents(fields)
	for _, namespace := range c.cfg.DCGMNamespaces {
		targets = append(targets, c.exporters(KindDCGM, "dcgm-exporter", namespace, c.cfg.DCGM, fields)...)
	}
	c.findHosts(now)
	targets = append(targets, c.podTargets()...)
	places, nodes := make(map[string]string, len(targets)), make(map[string]string, len(targets))
	for i := range targets {
		t := &targets[i]
		nodes[t.Name] = t.Labels.Node
		places[t.Name] = nodePlace(t.Labels.Node)
		if t.Kind == KindPod {
			places[t.Name] = podPlace(t.Labels.Namespace, t.Labels.Pod)
		}
	}
	c.mu.Lock()
	c.places, c.nodes = places, nodes
	c.mu.Unlock()
	return targets
}

func nodePlace(node string) string          { return "node/" + node }
func podPlace(namespace, pod string) string { return "pod/" + namespace + "/" + pod }

// isExporter says whether the pod is one that we would scrape for GPUs.
func (c *Controller) isExporter(pod *corev1.Pod) bool {
	set := labels.Set(pod.Labels)
	match := func(s labels.Selector) bool { return s.Matches(set) }
	return c.cfg.AgentNamespace == pod.Namespace && slices.ContainsFunc(c.cfg.Agents, match) ||
		slices.Contains(c.cfg.DCGMNamespaces, pod.Namespace) && slices.ContainsFunc(c.cfg.DCGM, match)
}

// agents are the targets that are our agents.
func (c *Controller) agents(fields gpu.FieldSet) []Target {
	return c.exporters(KindAgent, "gpupilot-agent", c.cfg.AgentNamespace, c.cfg.Agents, fields)
}

// Agents returns the targets that are our agents, one per node.
func (c *Controller) Agents() []Target { return c.agents(gpu.FieldSet{}) }

// The ranks of exporters: what an agent says goes before what a dcgm-exporter says.
const (
	rankAgent = 0
	rankDCGM  = 1
)

// exporters are the targets of one kind in a namespace, found by their pods' labels.
func (c *Controller) exporters(kind, job, namespace string, selectors []labels.Selector, fields gpu.FieldSet) []Target {
	if namespace == "" {
		return nil // would select in all namespaces
	}
	rank := uint8(rankAgent)
	if kind == KindDCGM {
		rank = rankDCGM
	}
	var out []Target
	found := map[string]bool{}
	for _, sel := range selectors {
		for _, pod := range c.deps.Pods.Select(namespace, sel) {
			name := kind + "/" + pod.Namespace + "/" + pod.Name
			if !scrapable(pod) || found[name] {
				continue
			}
			found[name] = true
			u, err := c.endpoint(kind, pod, exporterPort(pod), "/metrics")
			if err != nil {
				c.refuse(name, err)
				continue
			}
			out = append(out, Target{
				Name: name, Kind: kind, URL: u, Fields: fields,
				Labels: series.TargetLabels{Node: pod.Spec.NodeName, Instance: u.Host, Job: job, Rank: rank},
			})
		}
	}
	return out
}

// scrapable says whether the pod's containers run and can be reached.
func scrapable(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodRunning && pod.Status.PodIP != "" && pod.DeletionTimestamp == nil
}

// sameEndpoint says whether a pod's change leaves what is scraped of it as it was.
func sameEndpoint(old, pod *corev1.Pod) bool {
	if old == nil || pod == nil {
		return old == pod
	}
	return scrapable(old) == scrapable(pod) && old.UID == pod.UID && old.Status.PodIP == pod.Status.PodIP &&
		old.Status.HostIP == pod.Status.HostIP && old.Spec.NodeName == pod.Spec.NodeName && maps.Equal(old.Labels, pod.Labels)
}

// exporterPort is the port called metrics, else the first one, else 9400.
func exporterPort(pod *corev1.Pod) int32 {
	first := int32(0)
	for _, ctr := range pod.Spec.Containers {
		for _, p := range ctr.Ports {
			if p.Name == "metrics" {
				return p.ContainerPort
			}
			first = cmp.Or(first, p.ContainerPort)
		}
	}
	return cmp.Or(first, defaultPort)
}

// maxPerPod is how many expositions of one pod are scraped: each takes time, and
// a tenant may write any number of GPUAutoscalers with other ports and paths. A
// server has one, some have a second one for their sidecar.
const maxPerPod = 8

// found are the pods' own expositions while they are listed.
type found struct {
	targets map[string]*Target
	ofPod   map[types.NamespacedName]int
	excess  map[string]bool // names of those beyond maxPerPod
}

// podTargets are the pods' own expositions that autoscalers read, those of older
// autoscalers first where a pod has too many.
func (c *Controller) podTargets() []Target {
	c.mu.RLock()
	workloads := slices.Collect(maps.Values(c.workloads))
	c.mu.RUnlock()
	slices.SortFunc(workloads, func(a, b *workload) int {
		x, y := a.object.Load(), b.object.Load()
		return cmp.Or(x.CreationTimestamp.Compare(y.CreationTimestamp.Time), cmp.Compare(x.Name, y.Name))
	})
	f := found{targets: map[string]*Target{}, ofPod: map[types.NamespacedName]int{}, excess: map[string]bool{}}
	for _, w := range workloads {
		p, sel := w.plan.Load(), w.selector.Load()
		if p == nil || sel == nil {
			continue
		}
		for i := range p.Sources {
			if src := &p.Sources[i]; src.Kind == policy.Pods {
				c.podTargetsOf(&f, src, c.deps.Pods.Select(w.key.Namespace, *sel))
			}
		}
	}
	c.mu.Lock()
	c.excess = f.excess
	c.mu.Unlock()
	out := make([]Target, 0, len(f.targets))
	for _, name := range slices.Sorted(maps.Keys(f.targets)) {
		t := f.targets[name]
		slices.SortFunc(t.Metrics, func(a, b policy.PodMetric) int { // of equals, the first has a range if any has
			return cmp.Or(cmp.Compare(a.Key(), b.Key()), cmp.Compare(b.Most, a.Most))
		})
		t.Metrics = slices.CompactFunc(t.Metrics, func(a, b policy.PodMetric) bool { return a.Key() == b.Key() })
		out = append(out, *t)
	}
	return out
}

// podTargetName is the name of the exposition of a pod at a port and a path.
func podTargetName(pod *corev1.Pod, port int32, path string) string {
	return fmt.Sprintf("%s/%s/%s:%d%s", KindPod, pod.Namespace, pod.Name, port, path)
}

func (c *Controller) podTargetsOf(f *found, src *policy.Source, pods []*corev1.Pod) {
	for _, pod := range pods {
		if !scrapable(pod) {
			continue
		}
		u, port, err := c.podEndpoint(pod, src)
		if err != nil {
			continue // the workload's condition tells it
		}
		name := podTargetName(pod, port, src.Path)
		t := f.targets[name]
		if t == nil {
			key := types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}
			if f.ofPod[key] >= maxPerPod {
				f.excess[name] = true
				continue
			}
			f.ofPod[key]++
			t = &Target{
				Name: name, Kind: KindPod, URL: u,
				Labels: series.TargetLabels{Node: pod.Spec.NodeName, Instance: u.Host, Job: KindPod, Namespace: pod.Namespace, Pod: pod.Name},
			}
			f.targets[name] = t
		}
		for _, term := range src.All() {
			t.Metrics = append(t.Metrics, term...)
		}
	}
}

// podPort finds the port of a pod that serves its metrics: the one given, by
// number or by name; else one called metrics, the server's own, or the only one.
func podPort(pod *corev1.Pod, port policy.Port) (int32, error) {
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

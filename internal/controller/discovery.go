// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
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
	URL     string
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
	targets := c.exporters(KindAgent, "gpupilot-agent", c.cfg.AgentNamespace, c.cfg.Agents, fields)
	targets = append(targets, c.exporters(KindDCGM, "dcgm-exporter", "", c.cfg.DCGM, fields)...)
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
	ours := c.cfg.AgentNamespace == "" || c.cfg.AgentNamespace == pod.Namespace
	return ours && slices.ContainsFunc(c.cfg.Agents, match) || slices.ContainsFunc(c.cfg.DCGM, match)
}

// exporters are the targets of one kind, found by their pods' labels; in all
// namespaces if namespace is empty.
func (c *Controller) exporters(kind, job, namespace string, selectors []labels.Selector, fields gpu.FieldSet) []Target {
	var out []Target
	found := map[string]bool{}
	for _, sel := range selectors {
		for _, pod := range c.deps.Pods.Select(namespace, sel) {
			name := kind + "/" + pod.Namespace + "/" + pod.Name
			if !scrapable(pod) || found[name] {
				continue
			}
			found[name] = true
			address := net.JoinHostPort(pod.Status.PodIP, strconv.Itoa(int(exporterPort(pod))))
			out = append(out, Target{
				Name: name, Kind: kind, URL: c.cfg.ExporterScheme + "://" + address + "/metrics", Fields: fields,
				Labels: series.TargetLabels{Node: pod.Spec.NodeName, Instance: address, Job: job},
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
		old.Spec.NodeName == pod.Spec.NodeName && maps.Equal(old.Labels, pod.Labels)
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

// podTargets are the pods' own expositions that autoscalers read.
func (c *Controller) podTargets() []Target {
	c.mu.RLock()
	workloads := slices.Collect(maps.Values(c.workloads))
	c.mu.RUnlock()
	byName := map[string]*Target{}
	for _, w := range workloads {
		p, sel := w.plan.Load(), w.selector.Load()
		if p == nil || sel == nil {
			continue
		}
		for i := range p.Sources {
			if src := &p.Sources[i]; src.Kind == policy.Pods {
				c.podTargetsOf(byName, src, c.deps.Pods.Select(w.key.Namespace, *sel))
			}
		}
	}
	out := make([]Target, 0, len(byName))
	for _, name := range slices.Sorted(maps.Keys(byName)) {
		t := byName[name]
		slices.SortFunc(t.Metrics, func(a, b policy.PodMetric) int { return cmp.Compare(a.Key(), b.Key()) })
		t.Metrics = slices.CompactFunc(t.Metrics, func(a, b policy.PodMetric) bool { return a.Key() == b.Key() })
		out = append(out, *t)
	}
	return out
}

func (c *Controller) podTargetsOf(byName map[string]*Target, src *policy.Source, pods []*corev1.Pod) {
	for _, pod := range pods {
		if !scrapable(pod) {
			continue
		}
		port, err := podPort(pod, src.Port)
		if err != nil {
			continue // the workload's condition tells it
		}
		address := net.JoinHostPort(pod.Status.PodIP, strconv.Itoa(int(port)))
		name := fmt.Sprintf("%s/%s/%s:%d%s", KindPod, pod.Namespace, pod.Name, port, src.Path)
		t := byName[name]
		if t == nil {
			t = &Target{
				Name: name, Kind: KindPod, URL: "http://" + address + src.Path,
				Labels: series.TargetLabels{Node: pod.Spec.NodeName, Instance: address, Job: KindPod, Namespace: pod.Namespace, Pod: pod.Name},
			}
			byName[name] = t
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

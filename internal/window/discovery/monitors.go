// SPDX-License-Identifier: Apache-2.0

package discovery

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpupilot/gpupilot/internal/window/podmonitor"
	"github.com/gpupilot/gpupilot/internal/window/series"
)

// PodMonitors are the cluster's PodMonitors.
type PodMonitors interface {
	// Current returns those in use.
	Current() *podmonitor.List
	// PodsProblem sets why some pods of a PodMonitor are not scraped; empty: all are.
	PodsProblem(id, problem string)
}

const (
	// maxMonitored bounds the targets of the PodMonitors of one namespace.
	maxMonitored = 1000
	// maxExamined bounds the endpoints of pods that the PodMonitors of one namespace
	// select, scraped or not: each costs about a microsecond per Find.
	maxExamined = 5000
	// maxRate bounds the scrapes per second of the targets of one namespace's
	// PodMonitors: with more targets, their intervals are longer.
	maxRate = 20
	// labelBudget is the time per Find for new labels of one namespace's targets. Beyond
	// it, targets keep their last labels until the next Find, and new ones wait for it,
	// so that the regular expressions of one tenant do not delay the others.
	labelBudget = 5 * time.Millisecond
)

// labelKey is an endpoint of a PodMonitor and a version of a pod. Both do not change.
type labelKey struct {
	endpoint *podmonitor.Endpoint
	pod      *corev1.Pod
}

// monitorLabels are the labels of an endpoint of a pod.
type monitorLabels struct {
	labels series.TargetLabels
	port   Port
	keep   bool
	err    error
}

// monitored collects the targets of PodMonitors during one Find.
type monitored struct {
	f       *Finder
	found   *podTargetSet
	targets map[string]int           // by the monitors' namespace
	seen    map[string]int           // endpoints of pods, by the monitors' namespace
	spent   map[string]time.Duration // for labels, by the monitors' namespace
	labels  map[labelKey]*monitorLabels
	scraped map[string][]*Target      // at the interval of a PodMonitor, by the monitors' namespace
	taken   map[string]*monitorLabels // by the names of targets that a PodMonitor has set
	late    bool                      // labels of some targets were left to the next Find
}

// monitorTargets adds the targets of PodMonitors. It reports whether all were found.
func (f *Finder) monitorTargets(found *podTargetSet, list *podmonitor.List) (whole bool) {
	x := monitored{
		f: f, found: found, targets: map[string]int{}, seen: map[string]int{}, scraped: map[string][]*Target{}, spent: map[string]time.Duration{},
		labels: map[labelKey]*monitorLabels{}, taken: map[string]*monitorLabels{},
	}
	for _, m := range list.All() {
		f.cfg.PodMonitors.PodsProblem(m.ID(), x.add(m))
	}
	for _, targets := range x.scraped {
		least := leastInterval(len(targets))
		for _, t := range targets {
			t.Interval = max(t.Interval, least)
		}
	}
	f.monitorLabels, f.monitorTaken = x.labels, x.taken
	return !x.late
}

// leastInterval returns the least interval of so many targets for maxRate: a power of two
// of seconds, so that it seldom changes. 0: any.
func leastInterval(targets int) time.Duration {
	if targets <= maxRate {
		return 0
	}
	d := time.Second
	for d*maxRate < time.Duration(targets)*time.Second {
		d *= 2
	}
	return d
}

// add adds the targets of one PodMonitor, and returns a reason why some are not scraped.
func (x *monitored) add(m *podmonitor.Monitor) (problem string) {
	if x.isOver(m) {
		return x.over(m)
	}
	namespaces := m.Namespaces
	if len(namespaces) == 0 {
		namespaces = []string{""} // all
	}
	for _, namespace := range namespaces {
		for _, pod := range x.f.pods.Select(namespace, m.Selector) {
			if !Scrapable(pod) || x.f.IsExporter(pod) {
				continue
			}
			if x.seen[m.Namespace] += len(m.Endpoints); x.isOver(m) {
				return x.over(m)
			}
			for i := range m.Endpoints {
				err := x.addEndpoint(m, &m.Endpoints[i], pod)
				if err != nil && (problem == "" || err.Error() < problem) { // the same one at each Find
					problem = err.Error()
				}
			}
		}
	}
	return problem
}

// isOver reports whether the PodMonitors of a namespace select too many pods. Those of
// trusted namespaces have no limit.
func (x *monitored) isOver(m *podmonitor.Monitor) bool {
	return !m.Trusted && (x.seen[m.Namespace] > maxExamined || x.targets[m.Namespace] >= maxMonitored)
}

func (x *monitored) over(m *podmonitor.Monitor) string {
	return fmt.Sprintf("the PodMonitors of namespace %s select too many pods: the limits are %d targets, and %d endpoints of pods that are scraped or not",
		m.Namespace, maxMonitored, maxExamined)
}

func (x *monitored) addEndpoint(m *podmonitor.Monitor, e *podmonitor.Endpoint, pod *corev1.Pod) error {
	l := x.labelsOf(m, e, pod)
	switch {
	case l == nil || l.err == nil && !l.keep:
		return nil
	case l.err != nil:
		return l.err
	}
	name := targetName(pod, l.port.Number, e.Path, e.TLS)
	if x.taken[name] != nil {
		return nil // an older PodMonitor has the same port and path
	}
	at, err := x.f.at(pod, l.port, e.Path, e.TLS)
	if err != nil {
		return err
	}
	_, read := x.found.targets[name]
	t := x.found.add(pod, &Target{Name: name, Kind: KindPod, URL: at.URL, TLS: e.TLS, Port: l.port, Interval: e.Interval})
	if t == nil {
		return fmt.Errorf("pod %s already has %d ports and paths that are scraped, which is the limit", pod.Name, MaxPerPod)
	}
	if t.Labels = l.labels; !read && !m.Trusted { // what an autoscaler reads too keeps its interval
		x.scraped[m.Namespace] = append(x.scraped[m.Namespace], t)
	}
	x.taken[name] = l
	x.targets[m.Namespace]++
	return nil
}

// labelsOf returns the labels of an endpoint of a pod. If there is no time for them, they
// are those of the last Find; nil: it had none.
func (x *monitored) labelsOf(m *podmonitor.Monitor, e *podmonitor.Endpoint, pod *corev1.Pod) *monitorLabels {
	key := labelKey{e, pod}
	l := x.f.monitorLabels[key]
	if l == nil {
		if x.spent[m.Namespace] > x.f.labelBudget && !m.Trusted {
			x.late = true
			port, _, err := e.ContainerPort(pod)
			if err != nil {
				return nil
			}
			return x.f.monitorTaken[targetName(pod, port.ContainerPort, e.Path, e.TLS)]
		}
		began := time.Now()
		l = x.f.newMonitorLabels(e, pod)
		x.spent[m.Namespace] += time.Since(began)
	}
	x.labels[key] = l
	return l
}

func (f *Finder) newMonitorLabels(e *podmonitor.Endpoint, pod *corev1.Pod) *monitorLabels {
	port, container, err := e.ContainerPort(pod)
	if err != nil {
		return &monitorLabels{err: err}
	}
	u, err := f.endpoint(KindPod, pod, port.ContainerPort, e.Path)
	if err != nil {
		return &monitorLabels{err: err}
	}
	l := &monitorLabels{port: Port{Number: port.ContainerPort, Name: port.Name, Container: container.Name}}
	l.labels, l.keep, l.err = e.Labels(pod, port, container, u.Host)
	return l
}

// monitorPort returns the port that the oldest PodMonitor names for a pod, and the endpoint;
// nil: none does.
func (f *Finder) monitorPort(pod *corev1.Pod) (Port, *podmonitor.Endpoint) {
	if f.cfg.PodMonitors == nil {
		return Port{}, nil
	}
	for _, m := range f.cfg.PodMonitors.Current().Of(pod) {
		for i := range m.Endpoints {
			if p, c, err := m.Endpoints[i].ContainerPort(pod); err == nil {
				return Port{Number: p.ContainerPort, Name: p.Name, Container: c.Name}, &m.Endpoints[i]
			}
		}
	}
	return Port{}, nil
}

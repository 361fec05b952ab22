// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	toolscache "k8s.io/client-go/tools/cache"

	"github.com/gpupilot/gpupilot/internal/promql/scope"
	"github.com/gpupilot/gpupilot/internal/window/podmonitor"
)

// podMonitors keeps the PodMonitors whose pods are scraped.
type podMonitors struct {
	p        *program
	set      *podmonitor.Set
	selector labels.Selector

	mu   sync.Mutex
	refs map[string]corev1.ObjectReference // by ID
}

// makePodMonitors makes the set of PodMonitors; nil without --pod-monitors.
func (p *program) makePodMonitors() *podMonitors {
	if !p.cfg.podMonitors || !p.cfg.has(roleScrape) {
		return nil
	}
	selector, err := labels.Parse(p.cfg.operatorLabels)
	if err != nil {
		selector = labels.Nothing() // the flag was checked
	}
	m := &podMonitors{p: p, selector: selector, refs: map[string]corev1.ObjectReference{}}
	m.set = &podmonitor.Set{
		Trusted: p.cfg.trustsQueriesOf, Report: m.report,
		Changed: func() { p.control.PodMonitorsChanged() },
	}
	return m
}

// run watches PodMonitors from the time when their CRD is installed.
func (m *podMonitors) run(g *group) {
	if m != nil {
		g.run(never(func(ctx context.Context) { m.p.watchInstalled(ctx, podmonitor.Kind, m) }))
	}
}

// OnAdd implements ResourceEventHandler.
func (m *podMonitors) OnAdd(obj any, _ bool) { m.put(obj) }

// OnUpdate implements ResourceEventHandler.
func (m *podMonitors) OnUpdate(_, obj any) { m.put(obj) }

// OnDelete implements ResourceEventHandler.
func (m *podMonitors) OnDelete(obj any) {
	if gone, ok := obj.(toolscache.DeletedFinalStateUnknown); ok {
		obj = gone.Obj
	}
	if u, ok := obj.(*unstructured.Unstructured); ok {
		m.remove(podmonitor.ID(u.GetNamespace(), u.GetName()))
	}
}

func (m *podMonitors) remove(id string) {
	m.mu.Lock()
	delete(m.refs, id)
	m.mu.Unlock()
	m.set.Remove(id)
}

func (m *podMonitors) put(obj any) {
	u, ok := obj.(*unstructured.Unstructured)
	if !ok {
		return
	}
	id := podmonitor.ID(u.GetNamespace(), u.GetName())
	if !m.selector.Matches(labels.Set(u.GetLabels())) {
		m.remove(id)
		return
	}
	m.mu.Lock()
	m.refs[id] = corev1.ObjectReference{
		APIVersion: podmonitor.Kind.GroupVersion().String(), Kind: podmonitor.Kind.Kind,
		Namespace: u.GetNamespace(), Name: u.GetName(), UID: u.GetUID(), ResourceVersion: u.GetResourceVersion(),
	}
	m.mu.Unlock()
	m.set.Put(u)
}

// report records an Event about a PodMonitor that is not scraped, or not as it says.
func (m *podMonitors) report(id, problem string) {
	if problem == "" {
		m.p.log.Info("PodMonitor is scraped as it says", "podmonitor", id)
		return
	}
	m.p.log.Warn("PodMonitor is not scraped as it says", "podmonitor", id, "why", problem)
	m.mu.Lock()
	ref, ok := m.refs[id]
	m.mu.Unlock()
	if ok && m.p.leading() {
		m.p.recorder.Event(ref, corev1.EventTypeWarning, "NotScraped", "Scrape", problem)
	}
}

// reportAgain records the Events that only a leader records.
func (m *podMonitors) reportAgain() {
	if m != nil {
		m.set.ReportAgain()
	}
}

// trustsQueriesOf reports whether queries, rules and PodMonitors of a namespace may read
// all namespaces.
func (c *config) trustsQueriesOf(namespace string) bool {
	return slices.Contains(c.queryNamespaces, namespace) || slices.Contains(c.queryNamespaces, scope.All)
}

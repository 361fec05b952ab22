// SPDX-License-Identifier: Apache-2.0

package podmonitor

import (
	"log/slog"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	toolscache "k8s.io/client-go/tools/cache"
)

// WatcherConfig holds the settings and the collaborators of a Watcher.
type WatcherConfig struct {
	Selector labels.Selector             // of the PodMonitors
	Trusted  func(namespace string) bool // as in Set
	// Record records an Event about a PodMonitor that is not scraped, or not as it says.
	// It must not block.
	Record func(about corev1.ObjectReference, problem string)
	Log    *slog.Logger
}

// Watcher is a Set of the PodMonitors that a selector selects. It is the handler of their
// watch. Changed is set before the watch begins.
type Watcher struct {
	Set
	cfg WatcherConfig

	refsMu sync.Mutex
	refs   map[string]corev1.ObjectReference // by ID
}

// NewWatcher returns no PodMonitors.
func NewWatcher(cfg WatcherConfig) *Watcher {
	m := &Watcher{cfg: cfg, refs: map[string]corev1.ObjectReference{}}
	m.Set.Trusted, m.Set.Report = cfg.Trusted, m.report
	return m
}

// OnAdd implements ResourceEventHandler.
func (m *Watcher) OnAdd(obj any, _ bool) { m.offer(obj) }

// OnUpdate implements ResourceEventHandler.
func (m *Watcher) OnUpdate(_, obj any) { m.offer(obj) }

// OnDelete implements ResourceEventHandler.
func (m *Watcher) OnDelete(obj any) {
	if gone, ok := obj.(toolscache.DeletedFinalStateUnknown); ok {
		obj = gone.Obj
	}
	if u, ok := obj.(*unstructured.Unstructured); ok {
		m.withdraw(ID(u.GetNamespace(), u.GetName()))
	}
}

func (m *Watcher) withdraw(id string) {
	m.refsMu.Lock()
	delete(m.refs, id)
	m.refsMu.Unlock()
	m.Remove(id)
}

func (m *Watcher) offer(obj any) {
	u, ok := obj.(*unstructured.Unstructured)
	if !ok {
		return
	}
	id := ID(u.GetNamespace(), u.GetName())
	if !m.cfg.Selector.Matches(labels.Set(u.GetLabels())) {
		m.withdraw(id)
		return
	}
	m.refsMu.Lock()
	m.refs[id] = corev1.ObjectReference{
		APIVersion: Kind.GroupVersion().String(), Kind: Kind.Kind,
		Namespace: u.GetNamespace(), Name: u.GetName(), UID: u.GetUID(), ResourceVersion: u.GetResourceVersion(),
	}
	m.refsMu.Unlock()
	m.Put(u)
}

// report tells about a PodMonitor that is not scraped, or not as it says.
func (m *Watcher) report(id, problem string) {
	if problem == "" {
		m.cfg.Log.Info("PodMonitor is scraped as it says", "podmonitor", id)
		return
	}
	m.cfg.Log.Warn("PodMonitor is not scraped as it says", "podmonitor", id, "why", problem)
	m.refsMu.Lock()
	ref, ok := m.refs[id]
	m.refsMu.Unlock()
	if ok {
		m.cfg.Record(ref, problem)
	}
}

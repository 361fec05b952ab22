// SPDX-License-Identifier: Apache-2.0

package main

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpupilot/gpupilot/internal/autoscaler/kubeflags"
	"github.com/gpupilot/gpupilot/internal/promql/scope"
	"github.com/gpupilot/gpupilot/internal/window/podmonitor"
)

// makePodMonitors makes the set of PodMonitors whose pods are scraped.
func (p *program) makePodMonitors() *podmonitor.Watcher {
	return podmonitor.NewWatcher(podmonitor.WatcherConfig{
		Selector: kubeflags.Selector(p.cfg.operatorLabels), Trusted: p.cfg.trustsQueriesOf, Log: p.log,
		Record: func(about corev1.ObjectReference, problem string) {
			if p.leading() {
				p.recorder.Event(about, corev1.EventTypeWarning, "NotScraped", "Scrape", problem)
			}
		},
	})
}

// trustsQueriesOf reports whether queries, rules and PodMonitors of a namespace may read
// all namespaces.
func (c *config) trustsQueriesOf(namespace string) bool {
	return slices.Contains(c.queryNamespaces, namespace) || slices.Contains(c.queryNamespaces, scope.All)
}

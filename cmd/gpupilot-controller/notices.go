// SPDX-License-Identifier: Apache-2.0

package main

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/autoscaler/events"
)

// notices returns the problems that this replica writes about. Where replicas evaluate
// rules and have no leader, each writes: equal Events are one.
func (p *program) notices() (list []events.Notice) {
	if p.leading() || !p.cfg.has(roleDecide) {
		if p.promql != nil {
			for _, x := range p.promql.objects.Problems() {
				list = append(list, events.Notice{About: x.About, Reason: x.Reason, Note: x.Text})
			}
		}
	}
	if !p.leading() {
		return list
	}
	for _, x := range p.queries.Problems() {
		list = append(list, events.Notice{
			About: corev1.ObjectReference{
				APIVersion: v1alpha1.GroupVersion.String(), Kind: "MetricQuery", Namespace: x.Namespace, Name: x.Name, UID: x.UID,
			},
			Reason: x.Reason, Note: x.Message,
		})
	}
	return list
}

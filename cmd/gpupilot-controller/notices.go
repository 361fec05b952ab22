// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/autoscaler/events"
)

// noticesInterval is the time between two looks at the problems of objects.
const noticesInterval = 5 * time.Second

// noticeProblems makes Events of the problems of PrometheusRules and MetricQueries. It
// looks at all problems again and again, so that a new leader misses none.
func (p *program) noticeProblems(ctx context.Context) {
	notices := events.NewNotices(p.recorder.EventOnce)
	tick := time.NewTicker(noticesInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			notices.Update(now, p.notices())
		}
	}
}

// notices returns the problems that this replica writes about. Where replicas evaluate
// rules and have no leader, each writes: equal Events are one.
func (p *program) notices() (list []events.Notice) {
	if p.leading() || !p.cfg.has(roleDecide) {
		list = p.promql.notices()
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

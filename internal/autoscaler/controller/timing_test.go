// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// BenchmarkPass is one look at a workload at its target: observation, decision,
// page and status.
func BenchmarkPass(b *testing.B) {
	for _, n := range []int{1, 100, 1000} {
		b.Run(fmt.Sprintf("pods=%d", n), func(b *testing.B) {
			a := autoscaler("web")
			a.Spec.MaxReplicas = 2000
			r := newRig(b, deployment("web", int32(n)), a)
			long := r.now.Add(-time.Hour)
			for i := range n {
				r.pods.Pods = append(r.pods.Pods, pod("web", fmt.Sprintf("web-%04d", i), long, ready(long)))
			}
			r.utilization(r.now, 60, r.pods.Pods...)
			w := r.add(a)
			w.pass(r.now)
			b.ReportAllocs()
			for b.Loop() {
				w.pass(r.now.Add(time.Second))
			}
			if d := w.status.next.Decision; d == nil || d.Replicas != int32(n) {
				b.Fatalf("decided %+v", d)
			}
		})
	}
}

// BenchmarkList lists what is to be scraped of 10,000 nodes.
func BenchmarkList(b *testing.B) {
	r := newRig(b)
	for i := range 10_000 {
		r.pods.Pods = append(r.pods.Pods, pod("agent", fmt.Sprintf("agent-%05d", i), at(0), func(p *corev1.Pod) { p.Spec.NodeName = fmt.Sprint("node-", i) }))
	}
	b.ReportAllocs()
	for b.Loop() {
		if got := r.listTargets(at(0)); len(got) != 10_000 {
			b.Fatal(len(got))
		}
	}
}

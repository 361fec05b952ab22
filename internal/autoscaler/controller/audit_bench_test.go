// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"fmt"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/window/discovery"
	"github.com/gpupilot/gpupilot/internal/window/podtest"
	"github.com/gpupilot/gpupilot/internal/window/series"
)

// podMap finds pods as a big cluster does.
type podMap struct {
	*podtest.List
	pods map[[2]string]*corev1.Pod
}

func (m *podMap) Get(namespace, name string) (*corev1.Pod, bool) {
	pod, ok := m.pods[[2]string{namespace, name}]
	return pod, ok
}

// BenchmarkAudit compares what the agents of 10,000 nodes with 8 GPUs claim.
func BenchmarkAudit(b *testing.B) {
	const nodes = 10_000
	r := newRig(b)
	r.store = series.New(series.Config{MaxBytes: 1 << 30})
	r.Controller.deps.Store = r.store
	pods := map[[2]string]*corev1.Pod{}
	r.Controller.deps.Pods = &podMap{&r.pods, pods}
	for i := range nodes {
		node := fmt.Sprintf("node-%d", i)
		r.Controller.devices.nodes[node] = 8
		t := r.store.Target(fmt.Sprintf("agent/gpupilot-system/agent-%d", i), series.TargetLabels{Node: node, Rank: discovery.RankAgent})
		var owners []series.DeviceOwners
		for g := range 8 {
			o := gpu.Owner{Namespace: fmt.Sprint("ns-", i%100), Pod: fmt.Sprintf("pod-%d-%d", i, g), Container: "c"}
			owners = append(owners, series.DeviceOwners{Device: fmt.Sprintf("GPU-%08x-d4bd-c2f7-dfaf-%012x", i, g), Owners: []gpu.Owner{o}})
			pods[[2]string{o.Namespace, o.Pod}] = &corev1.Pod{Spec: corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{
				Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("1")}},
			}}}}
		}
		t.SetOwners(r.now, owners)
		if _, err := t.Append(r.now, &series.Batch{}); err != nil {
			b.Fatal(err)
		}
	}
	a := newAudit(r.Controller)
	b.ReportAllocs()
	before := cpuTime(b)
	for b.Loop() {
		a.auditOnce(r.now)
	}
	b.ReportMetric(float64((cpuTime(b)-before).Milliseconds())/float64(b.N), "cpu-ms/op")
}

func cpuTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// SPDX-License-Identifier: Apache-2.0

package trust

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/window/discovery"
	"github.com/gpupilot/gpupilot/internal/window/series"
	"github.com/gpupilot/gpupilot/test/podtest"
)

// podMap finds pods as a big cluster does.
type podMap map[[2]string]*corev1.Pod

func (m podMap) Get(namespace, name string) (*corev1.Pod, bool) {
	pod, ok := m[[2]string{namespace, name}]
	return pod, ok
}

// BenchmarkAudit compares what the agents of 10,000 nodes with 8 GPUs claim.
func BenchmarkAudit(b *testing.B) {
	const nodes = 10_000
	now, store, devices, pods := time.Now(), series.New(series.Config{MaxBytes: 1 << 30}), NewDevices(nil), podMap{}
	for i := range nodes {
		node := fmt.Sprintf("node-%d", i)
		devices.nodes[node] = 8
		t := store.Target(fmt.Sprintf("agent/gpupilot-system/agent-%d", i), series.TargetLabels{Node: node, Rank: discovery.RankAgent})
		var owners []series.DeviceOwners
		for g := range 8 {
			o := gpu.Owner{Namespace: fmt.Sprint("ns-", i%100), Pod: fmt.Sprintf("pod-%d-%d", i, g), Container: "c"}
			owners = append(owners, series.DeviceOwners{Device: fmt.Sprintf("GPU-%08x-d4bd-c2f7-dfaf-%012x", i, g), Owners: []gpu.Owner{o}})
			pods[[2]string{o.Namespace, o.Pod}] = &corev1.Pod{Spec: corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{
				Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("1")}},
			}}}}
		}
		t.SetOwners(now, owners)
		if _, err := t.Append(now, &series.Batch{}); err != nil {
			b.Fatal(err)
		}
	}
	a := NewAudit(AuditDeps{Store: store, Pods: pods, Devices: devices, Record: func(string, string) {}})
	b.ReportAllocs()
	before := podtest.CPUTime(b)
	for b.Loop() {
		a.Compare(now)
	}
	b.ReportMetric(float64((podtest.CPUTime(b)-before).Milliseconds())/float64(b.N), "cpu-ms/op")
}

// SPDX-License-Identifier: Apache-2.0

package discovery

import (
	"fmt"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/window/podmonitor"
)

// A namespace at its limits: 50 PodMonitors that select all of its 1,000 pods, each with
// 8 relabelings.
func BenchmarkFindPodMonitors(b *testing.B) {
	var pods podList
	r := finder(&pods)
	for i := range maxMonitored {
		pods = append(pods, pod("web", fmt.Sprintf("web-%04d", i), ports("http", 8000)))
	}
	set := &podmonitor.Set{Trusted: func(string) bool { return false }, Changed: func() {}, Report: func(string, string) {}}
	r.cfg.PodMonitors = set
	relabeling := map[string]any{"sourceLabels": []any{"__meta_kubernetes_pod_name"}, "regex": "(.*)-(.*)", "targetLabel": "a", "replacement": "$1"}
	for i := range 50 {
		u := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"podMetricsEndpoints": []any{
			map[string]any{"port": "http", "path": fmt.Sprintf("/%d", i), "relabelings": []any{relabeling, relabeling, relabeling, relabeling, relabeling, relabeling, relabeling, relabeling}},
		}}}}
		u.SetNamespace("ns")
		u.SetName(fmt.Sprintf("m%02d", i))
		set.Put(u)
	}
	for b.Loop() {
		r.Find(time.Now(), gpu.FieldSet{}, nil)
	}
}

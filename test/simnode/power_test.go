// SPDX-License-Identifier: Apache-2.0

package simnode

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestPowerOffTellsNobody(t *testing.T) {
	r := start(t, Config{Nodes: 2, GPUs: 2, Workloads: []Workload{{
		Name: "chat", Model: Model{Capacity: 10, Concurrency: 32}, Offered: func(time.Time) float64 { return 5 },
	}}})
	node := r.NodeNames()[0]
	r.create(pod("a", node, 1, map[string]string{WorkloadAnnotation: "chat"}))
	p := r.awaitReady("a", true)
	serving := func(want int) {
		t.Helper()
		eventually(t, func() error {
			if s, _ := r.Status("chat"); s.Serving != want {
				return fmt.Errorf("%d pods serve, want %d", s.Serving, want)
			}
			return nil
		})
	}
	serving(1)
	if err := r.PowerOff(node); err != nil {
		t.Fatal(err)
	}
	serving(0)
	eventually(t, func() error {
		resp, err := http.Get(fmt.Sprintf("http://%s:%d/metrics", p.Status.PodIP, MetricsPort))
		if err == nil {
			_ = resp.Body.Close()
			return fmt.Errorf("the pod answers %s without power", resp.Status)
		}
		return nil
	})
	if !ready(r.get("a")) {
		t.Error("the API server was told of the power cut")
	}
	if got := r.allocations(node); len(got) != 0 {
		t.Errorf("without power the node's devices are held by %v", got)
	}

	// What a cluster does with a node that does not come back, and the node's return.
	if err := r.client.CoreV1().Nodes().Delete(t.Context(), node, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := r.client.CoreV1().Pods("default").Delete(t.Context(), "a", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := r.PowerOn(t.Context(), node); err != nil {
		t.Fatal(err)
	}
	r.create(pod("b", node, 2, map[string]string{WorkloadAnnotation: "chat"}))
	r.awaitReady("b", true)
	serving(1)
	if r.PowerOff("nowhere") == nil || r.PowerOn(t.Context(), "nowhere") == nil {
		t.Error("a node that does not exist was powered")
	}
}

// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"strings"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gpupilot/gpupilot/test/stack"
)

// A tenant's pod with a dcgm-exporter's labels, on the victim's node, says that the victim's pods hold many GPUs, all
// busy and then all idle. It is not asked: exporters are believed in the operator's namespaces only.
func TestForgedExporter(t *testing.T) {
	const name, load = "forged", 1.5
	rig.Offer(name, load)
	rig.Deploy(t, name, 3, 0)
	rig.Spread(t, name, 3)
	rig.Autoscale(t, name, nil)
	rig.Measured(t, name, 3)
	seen := rig.Record(t, name)

	var victims corev1.PodList
	if err := rig.Client.List(t.Context(), &victims, client.InNamespace(namespace), client.MatchingLabels{"app": name}); err != nil {
		t.Fatal(err)
	}
	// On each node with a victim: an exporter describes only the pods of its own node.
	var utilization, asked atomic.Int64
	utilization.Store(100)
	for i := range victims.Items {
		v := &victims.Items[i]
		forger := place(t, "forger", "exporter-beside-"+v.Name, v.Spec.NodeName, map[string]string{
			"app.kubernetes.io/name": "dcgm-exporter", "app": "nvidia-dcgm-exporter",
		})
		page := make([]string, 16) // GPUs of one pod
		for j := range page {
			page[j] = v.Name
		}
		servePage(t, forger.Status.PodIP, 9400, func() string {
			asked.Add(1)
			return claims("forged-"+v.Name, namespace, page, float64(utilization.Load()))
		})
	}
	rig.Stays(t, name, 3, 10)
	utilization.Store(0)
	rig.Stays(t, name, 3, 10)
	if v := seen.Values(); len(v) != 1 {
		t.Errorf("replicas went %v by what a tenant's pod says", v)
	}
	if strings.Contains(stack.Get(t, rig.ControllerURL+"/api/v1/view"), "GPU-forged") {
		t.Error("the page shows GPUs that a tenant's pod invented")
	}
	if n := asked.Load(); n > 0 {
		t.Errorf("a tenant's pod was asked %d times what GPUs do", n)
	}
}

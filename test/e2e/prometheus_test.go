// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/test/scalerig"
)

// While Prometheus is down the workload is held, and the status says why. Afterwards the query decides again.
func TestPrometheusDown(t *testing.T) {
	const name = "promdown"
	scalerig.SetBacklog(12)
	rig.Offer(name, 0.1)
	rig.Deploy(t, name, 1, time.Second)
	rig.Autoscale(t, name, func(a *v1alpha1.GPUAutoscaler) {
		a.Spec.Signals = []v1alpha1.Signal{{
			Query:  &v1alpha1.QuerySignal{PromQL: "sum(backlog)"},
			Target: &v1alpha1.Target{Value: resource.MustParse("5")},
		}}
	})
	rig.WantReplicas(t, name, "3", func(n int32) bool { return n == 3 })
	seen := rig.Record(t, name)

	rig.Prometheus.Interrupt()
	scalerig.SetBacklog(0)
	scalerig.Eventually(t, func() error {
		for _, c := range rig.Status(t, name).Conditions {
			if c.Type == v1alpha1.ConditionSignals && c.Status != "True" && strings.Contains(c.Message, "cannot be reached") {
				return nil
			}
		}
		return fmt.Errorf("the status does not say that Prometheus cannot be reached: %+v", rig.Status(t, name).Conditions)
	})
	rig.Stays(t, name, 3, 6*time.Second) // longer than the window
	if v := seen.Values(); len(v) != 1 {
		t.Errorf("replicas went %v while Prometheus was down", v)
	}

	if err := rig.Prometheus.Start(); err != nil {
		t.Fatal(err)
	}
	rig.WantReplicas(t, name, "1", func(n int32) bool { return n == 1 })
}

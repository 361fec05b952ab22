// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package promql

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/gpupilot/gpupilot/test/stack"
)

// The deciding replica scales on queries that the other replica answers, with its
// credentials. It has no PromQL of its own.
func TestRolesAreSplit(t *testing.T) {
	awaitBoth(t)
	loads["scaled"].Set(30)
	rig.Create(t, stack.Deployment(mine, "scaled", 1, 0))
	before := rig.asked.Load()
	rig.MustApply(t, `
apiVersion: gpupilot.dev/v1alpha1
kind: GPUAutoscaler
metadata: {name: scaled, namespace: team-a}
spec:
  scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: scaled}
  minReplicas: 1
  maxReplicas: 3
  behavior: {scaleDown: {stabilizationWindowSeconds: 0}}
  signals:
  - query: {promql: 'sum(max by (pod) (DCGM_FI_DEV_GPU_UTIL) * on (pod) group_left () max by (pod) (kube_pod_labels{label_app="scaled"}))'}
    target: {type: AverageValue, value: "50"}
`)
	replicas := func(want int32) {
		t.Helper()
		stack.Eventually(t, func() error {
			n, err := rig.Replicas(t.Context(), mine, "scaled")
			if err == nil && n != want {
				err = fmt.Errorf("%d replicas, want %d", n, want)
			}
			return err
		})
	}
	replicas(1)
	loads["scaled"].Set(90)
	replicas(2)
	loads["scaled"].Set(20)
	replicas(1)
	if rig.asked.Load() == before {
		t.Error("the deciding replica sent no query with credentials")
	}
	awaitValue(t, "deployments.apps/alpha/gpu_utilization", "Deployment", 40) // custom metrics are the deciding replica's
	status, body := fetch(t, rig.ControllerURL+"/api/v1/query?query=1")
	if status != 404 {
		t.Errorf("PromQL on the deciding replica: %d %s", status, body)
	}
}

// A second look at the whole: the replica for queries writes nothing that the deciding
// replica writes.
func TestOnlyOneReplicaLeads(t *testing.T) {
	status, body := get(t, "all", "/metrics", nil)
	if status != 200 || !strings.Contains(body, "\ngpupilot_leader 0") {
		t.Errorf("the replica for queries leads: %d", status)
	}
	stack.Eventually(t, func() error {
		if _, body := fetch(t, rig.ControllerURL+"/metrics"); !strings.Contains(body, "\ngpupilot_leader 1") {
			return fmt.Errorf("the deciding replica does not lead after %s", time.Minute)
		}
		return nil
	})
}

// SPDX-License-Identifier: Apache-2.0

//go:build !race

// Package journeys goes the main ways through the product on one real control plane, with simulated GPUs, real agents and
// the real controller: from a GPU's value to replicas, by GPUAutoscalers, by an HPA on custom metrics, by KEDA, by two
// public walkthroughs; GPUExporters; the page in a browser; and one fault of each kind.
package journeys

import (
	"context"
	"net"
	"strconv"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gpupilot/gpupilot/test/cluster"
	"github.com/gpupilot/gpupilot/test/stack"
)

const namespace = stack.WorkloadNamespace

var (
	rig         *stack.Stack // that all tests share
	arguments   []string     // the controller's
	kedaAddress string       // of its scaler

	// spare are nodes without an agent and without workloads.
	spare = []string{"gpu-node-4", "gpu-node-5"}
)

func TestMain(m *testing.M) {
	port, err := cluster.FreePort("127.0.0.1")
	if err != nil {
		panic(err)
	}
	kedaAddress = net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	arguments = []string{
		"--node-health", "--prometheus-rules", "--adapter-config", "walkthrough/testdata/adapter-config.yaml",
		"--keda-address", kedaAddress, "--keda-auth", "none",
	}
	stack.Main(m, stack.Config{Nodes: 6, HPASyncPeriod: time.Second, Backlog: true, ControllerArgs: arguments}, func(s *stack.Stack) error {
		rig = s
		for _, name := range spare {
			patch := client.RawPatch(types.MergePatchType, []byte(`{"metadata": {"labels": {"`+stack.NoAgentLabel+`": ""}}, "spec": {"unschedulable": true}}`))
			if err := s.Client.Patch(context.Background(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}, patch); err != nil {
				return err
			}
		}
		return nil
	})
}

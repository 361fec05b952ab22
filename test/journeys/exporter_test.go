// SPDX-License-Identifier: Apache-2.0

//go:build !race

package journeys

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/test/simnode"
	"github.com/gpupilot/gpupilot/test/stack"
)

// A GPUExporter runs agents on its nodes, the controller reads them, and a change of the collectors starts none again.
func TestGPUExporter(t *testing.T) {
	t.Parallel()
	e := &v1alpha1.GPUExporter{ObjectMeta: metav1.ObjectMeta{Name: "spare"}, Spec: v1alpha1.GPUExporterSpec{
		Image: stack.AgentImage, Backend: v1alpha1.BackendSim, NodeSelector: map[string]string{stack.NoAgentLabel: ""},
		PodAnnotations: map[string]string{simnode.ExecAnnotation: simnode.ExecImage},
		// The pods share this machine's network.
		Args: []string{"--address=$(POD_IP):9400", "--sim-state=$(SIM_STATE)"},
		Env:  []v1alpha1.EnvVar{{Name: "DCGM_POD_RESOURCES_KUBELET_SOCKET", Value: "$(POD_RESOURCES_SOCKET)"}},
	}}
	if err := rig.Client.Create(t.Context(), e); err != nil {
		t.Fatal(err)
	}
	stack.Eventually(t, func() error {
		if err := rig.Client.Get(t.Context(), client.ObjectKeyFromObject(e), e); err != nil {
			return err
		}
		if s := e.Status; s.ReadyAgents != int32(len(spare)) || s.GPUCount != int32(8*len(spare)) || s.NodesWithProblems != 0 {
			return fmt.Errorf("status %+v", s)
		}
		return nil
	})
	agents := func() (pods []corev1.Pod, restarts int32) {
		t.Helper()
		var list corev1.PodList
		if err := rig.Client.List(t.Context(), &list, client.InNamespace(stack.Namespace), client.MatchingLabels{"gpupilot.dev/exporter": e.Name}); err != nil {
			t.Fatal(err)
		}
		for i := range list.Items {
			for _, s := range list.Items[i].Status.ContainerStatuses {
				restarts += s.RestartCount
			}
		}
		return list.Items, restarts
	}
	patch := client.RawPatch(types.MergePatchType, []byte(`{"spec":{"collectors":{"csv":"DCGM_FI_DEV_GPU_TEMP, gauge, Temperature.\n"}}}`))
	if err := rig.Client.Patch(t.Context(), e, patch); err != nil {
		t.Fatal(err)
	}
	before, _ := agents()
	for i := range before {
		stack.Eventually(t, func() error {
			page := stack.Get(t, "http://"+before[i].Status.PodIP+":9400/metrics")
			if !strings.Contains(page, "DCGM_FI_DEV_GPU_TEMP{") || strings.Contains(page, "DCGM_FI_DEV_GPU_UTIL{") {
				return fmt.Errorf("%s does not follow the collectors:\n%.500s", before[i].Name, page)
			}
			return nil
		})
	}
	after, restarts := agents()
	if len(after) != len(before) || restarts != 0 {
		t.Errorf("%d agents became %d, with %d restarts", len(before), len(after), restarts)
	}
	for i := range after {
		if after[i].UID != before[i].UID {
			t.Errorf("the agent %s was replaced", before[i].Name)
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

//go:build linux && !race

package journeys

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpupilot/gpupilot/test/agentrig"
	"github.com/gpupilot/gpupilot/test/stack"
)

// On a node, a lost GPU costs its own series, and a kubelet that is away no series at all. Both come back.
func TestFaultsOfANode(t *testing.T) {
	t.Parallel()
	const gpus, bin = 4, "../../bin"
	dir := t.TempDir()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	library := agentrig.NVML(bin, dir)
	healthy := fmt.Sprintf("gpus %d\ngpu * util 57\n", gpus)
	must(library.Set(healthy))
	var grants []agentrig.Grant
	for i := range gpus {
		grants = append(grants, agentrig.Grant{Namespace: "team", Pod: "llm", Container: "server", Resource: "nvidia.com/gpu", DeviceID: fmt.Sprint("nvidia", i)})
	}
	kubelet, err := agentrig.StartKubelet(filepath.Join(dir, "kubelet.sock"), grants)
	must(err)
	t.Cleanup(kubelet.Stop)
	agent, err := agentrig.Start(t.Context(), agentrig.Config{
		Binary: filepath.Join(bin, "gpupilot-agent"), Env: library.Env(), Args: append(library.Args(), kubelet.Args()...),
	})
	must(err)
	t.Cleanup(func() { must(agent.Stop()) })

	// shows waits for a page with that many GPUs' utilisations, of which so many name their pod, and with a sample.
	shows := func(devices, pods int, sample string) {
		t.Helper()
		must(agent.Await(t.Context(), stack.Patience, func(page string) bool {
			all, owned := 0, 0
			for line := range strings.Lines(page) {
				if strings.HasPrefix(line, "DCGM_FI_DEV_GPU_UTIL{") {
					all++
					if strings.Contains(line, `pod="llm"`) {
						owned++
					}
				}
			}
			return all == devices && owned == pods && strings.Contains(page, "\n"+sample+"\n")
		}))
	}
	const up, down = "gpupilot_pod_resources_up 1", "gpupilot_pod_resources_up 0"
	shows(gpus, gpus, up)
	must(library.Set(healthy + "gpu 3 lost\n"))
	shows(gpus-1, gpus-1, up)
	kubelet.Stop()
	shows(gpus-1, gpus-1, down) // the owners are those that it told last
	must(kubelet.Start())
	must(library.Set(healthy))
	shows(gpus, gpus, up)
}

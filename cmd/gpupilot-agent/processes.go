// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/gpupilot/gpupilot/internal/base/flags"
	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/node/agent"
	"github.com/gpupilot/gpupilot/internal/node/procs"
)

// processFlags are the flags of per-process metrics.
type processFlags struct {
	processMetrics bool
	podLogs        string
	hostProc       string
}

func processDefaults() processFlags {
	return processFlags{podLogs: procs.DefaultLogs, hostProc: procs.DefaultProc}
}

func (c *processFlags) options() []option {
	return []option{
		{
			"process-metrics", "", "GPUPILOT_PROCESS_METRICS", &c.processMetrics,
			"report GPU use of each pod's processes, also on time-sliced and MPS GPUs; needs hostPID", nil,
		},
		{
			"pod-logs", "", "GPUPILOT_POD_LOGS", &c.podLogs,
			"`directory` of the kubelet's pod logs; maps pod UIDs to names if there is no service account", flags.NotEmpty(&c.podLogs),
		},
		{
			"host-proc", "", "GPUPILOT_HOST_PROC", &c.hostProc,
			"`directory` of the node's processes", flags.NotEmpty(&c.hostProc),
		},
	}
}

// addProcesses makes the agent list processes if a flag asks for that, and
// reports whether it does. --kubernetes-virtual-gpus implies it if the node's
// processes are visible: dcgm-exporter takes utilisation and memory of sharers
// from them. Without the node's processes, a busy pod would look idle.
func (c *config) addProcesses(deps *agent.Deps, log *slog.Logger) (bool, error) {
	reader, able := deps.Reader.(gpu.ProcessReader)
	table := procs.New(c.hostProc, c.podLogs)
	implied := c.virtualGPUs && c.kubernetes && able && deps.Reader.Backend() != "sim" && table.SeesNode()
	switch {
	case implied && !c.processMetrics:
		log.Info("pods that share a GPU get the share that their processes use", "flag", "kubernetes-virtual-gpus")
	case !c.processMetrics:
		return false, nil
	case !able:
		return false, fmt.Errorf("--process-metrics: the backend %s does not list processes: use nvml or auto", deps.Reader.Backend())
	case !table.SeesNode():
		return false, errors.New("--process-metrics needs the node's processes, but only the container's are visible: set hostPID: true in the pod")
	}
	deps.Processes = func(uuid string) (gpu.Processes, error) {
		ps, err := reader.Processes(uuid)
		for i := range ps.List {
			ps.List[i].Place = table.Place(ps.List[i].PID)
		}
		return ps, err
	}
	deps.PodNames = table.Pods
	return true, nil
}

// hasAccount reports whether the service account has a token.
func (c *config) hasAccount() bool {
	_, err := os.Stat(filepath.Join(c.serviceAccount, "token"))
	return err == nil
}

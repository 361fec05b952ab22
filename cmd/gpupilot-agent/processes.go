// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/gpupilot/gpupilot/internal/agent"
	"github.com/gpupilot/gpupilot/internal/flags"
	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/procs"
)

// processFlags are those of the processes on devices.
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
			"what each pod's processes use of a GPU, on time-sliced and MPS GPUs too; needs hostPID", nil,
		},
		{
			"pod-logs", "", "GPUPILOT_POD_LOGS", &c.podLogs,
			"`directory` of the kubelet's pod logs, whose names tell pods' names by UID where there is no service account", flags.NotEmpty(&c.podLogs),
		},
		{
			"host-proc", "", "GPUPILOT_HOST_PROC", &c.hostProc,
			"`directory` of the node's processes", flags.NotEmpty(&c.hostProc),
		},
	}
}

// addProcesses lists processes where that is asked for, and says whether it
// does. Virtual GPUs ask, too, where the node's processes are seen:
// dcgm-exporter takes utilisation and memory of sharers from them. Without the
// node's processes a pod that works would seem to idle.
func (c *config) addProcesses(deps *agent.Deps, log *slog.Logger) (bool, error) {
	reader, able := deps.Reader.(gpu.ProcessReader)
	table := procs.New(c.hostProc, c.podLogs)
	implied := c.virtualGPUs && c.kubernetes && able && deps.Reader.Backend() != "sim" && table.SeesNode()
	switch {
	case implied && !c.processMetrics:
		log.Info("sharers of a GPU have the shares that their processes use", "flag", "kubernetes-virtual-gpus")
	case !c.processMetrics:
		return false, nil
	case !able:
		return false, fmt.Errorf("--process-metrics: the backend %s does not list processes: use nvml or auto", deps.Reader.Backend())
	case !table.SeesNode():
		return false, errors.New("--process-metrics needs to see the node's processes, and sees its own container's: set hostPID: true")
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

// hasAccount says whether the service account has a token.
func (c *config) hasAccount() bool {
	_, err := os.Stat(filepath.Join(c.serviceAccount, "token"))
	return err == nil
}

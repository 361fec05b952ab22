// SPDX-License-Identifier: Apache-2.0

// Package pagetest makes the pages that tests of page and scrape read.
package pagetest

import (
	"fmt"
	"strings"
	"time"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

// Sick is the page of an agent, of whose two GPUs one is down and one has a row remap
// failure.
const Sick = `# TYPE gpupilot_backend_up gauge
gpupilot_backend_up{backend="nvml"} 1
gpupilot_device_up{uuid="GPU-0"} 1
gpupilot_device_up{uuid="GPU-1"} 0
DCGM_FI_DEV_ROW_REMAP_FAILURE{gpu="0",UUID="GPU-0"} 1
DCGM_FI_DEV_ROW_REMAP_FAILURE{gpu="1",UUID="GPU-1"} 0
gpupilot_xid_last_seen_timestamp_seconds{uuid="GPU-1",xid="79"} 1800000000
gpupilot_xid_last_seen_timestamp_seconds{uuid="GPU-1",xid="nonsense"} 1800000000
`

// Node is the page of an agent with 8 GPUs, with the first n of the fields that take
// numbers, each series with its pod.
func Node(node, n int) []byte {
	fields := []string{"DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_FB_USED", "DCGM_FI_DEV_POWER_USAGE", "DCGM_FI_PROF_SM_ACTIVE"}
	for _, f := range gpu.Fields() {
		if f.Kind != gpu.Label && len(fields) < n && !strings.Contains(strings.Join(fields, " "), f.Name) {
			fields = append(fields, f.Name)
		}
	}
	var b strings.Builder
	fmt.Fprintf(&b, "# HELP gpupilot_collection_timestamp_seconds When.\n# TYPE gpupilot_collection_timestamp_seconds gauge\n")
	fmt.Fprintf(&b, "gpupilot_collection_timestamp_seconds %.6f\n", float64(time.Now().UnixMicro())/1e6)
	fmt.Fprintf(&b, "gpupilot_collection_interval_seconds 1\ngpupilot_collection_duration_seconds 0.005\n")
	for g := range 8 {
		fmt.Fprintf(&b, "gpupilot_gpu_allocation_info{uuid=%q,namespace=\"ns\",pod=\"pod-%d-%d\",container=\"c\",replica=\"\"} 1\n", uuid(node, g), node, g)
	}
	for _, f := range fields[:n] {
		fmt.Fprintf(&b, "# HELP %s Some words on what this is (in units).\n# TYPE %s gauge\n", f, f)
		for g := range 8 {
			fmt.Fprintf(&b, `%s{gpu="%d",UUID=%q,pci_bus_id="00000000:%02X:00.0",device="nvidia%d",modelName="NVIDIA H200",hostname="node-%d",DCGM_FI_DRIVER_VERSION="580.105.08",container="c",namespace="ns",pod="pod-%d-%d"} %d.%06d`+"\n",
				f, g, uuid(node, g), g, g, node, node, g, g*10, g*1234)
		}
	}
	return []byte(b.String())
}

func uuid(node, g int) string { return fmt.Sprintf("GPU-%08x-d4bd-c2f7-dfaf-%012x", node, g) }

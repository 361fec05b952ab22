// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"os"

	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/gpu/vendorlib"
)

// probeFlags are those of --probe, which does nothing but count GPUs.
type probeFlags struct {
	probe  bool
	result string
	sys    string
}

func probeDefaults() probeFlags {
	return probeFlags{result: "/dev/termination-log", sys: "/sys"}
}

func (p *probeFlags) options() []option {
	return []option{
		{"probe", "", "", &p.probe, "count the node's PCI devices that are NVIDIA GPUs, write the number and exit; it needs no driver", nil},
		{"probe-result", "", "GPUPILOT_PROBE_RESULT", &p.result, "`file` that --probe writes gpus=N to", nil},
		{"host-sys", "", "GPUPILOT_HOST_SYS", &p.sys, "`directory` of the node's sysfs, whose PCI bus has the node's GPUs", nil},
	}
}

// run counts the GPUs and writes their number. The kubelet makes it the termination
// message of the container, where the controller reads it.
func (p *probeFlags) runProbe(out io.Writer) error {
	gpus, err := vendorlib.NewBus(p.sys).GPUs()
	if err != nil {
		return fmt.Errorf("--probe: %w", err)
	}
	text := fmt.Sprintf("%s%d\n", gpu.ProbeResult, len(gpus))
	if err := os.WriteFile(p.result, []byte(text), 0o644); err != nil { // the kubelet reads it
		return fmt.Errorf("--probe-result: %w", err)
	}
	_, err = io.WriteString(out, text)
	return err
}

// bus returns what lists the GPUs that the agent's library must list; nil where that is not
// known: simulated GPUs, a host engine, which may be another machine's, and a container
// that was given some of the GPUs. NVIDIA's runtime writes void for devices of CDI, which
// are all GPUs in a cluster.
func (c *config) bus(visible string) func() []gpu.BusGPU {
	all := visible == "" || visible == "all" || visible == "void" && c.kubernetes
	if c.backend == "sim" || c.hostEngine != "" || !all {
		return nil
	}
	bus := vendorlib.NewBus(c.sys)
	return func() []gpu.BusGPU {
		gpus, _ := bus.GPUs() // of a bus that cannot be read, nothing is known
		return gpus
	}
}

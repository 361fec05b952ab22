// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/gpupilot/gpupilot/internal/base/regularfile"
	"github.com/gpupilot/gpupilot/internal/gpu"
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
		{"host-sys", "", "GPUPILOT_HOST_SYS", &p.sys, "`directory` of the node's sysfs, for --probe", nil},
	}
}

// run counts the GPUs and writes their number. The kubelet makes it the termination
// message of the container, where the controller reads it.
func (p *probeFlags) runProbe(ctx context.Context, out io.Writer) error {
	n, err := countPCI(ctx, p.sys)
	if err != nil {
		return fmt.Errorf("--probe: %w", err)
	}
	text := fmt.Sprintf("%s%d\n", gpu.ProbeResult, n)
	if err := os.WriteFile(p.result, []byte(text), 0o644); err != nil { // the kubelet reads it
		return fmt.Errorf("--probe-result: %w", err)
	}
	_, err = io.WriteString(out, text)
	return err
}

// The ids of the PCI devices that are counted: NVIDIA's of the classes VGA controller
// and 3D controller.
const (
	vendorNVIDIA = "0x10de"
	classVGA     = "0x0300"
	class3D      = "0x0302"
)

// maxPCIFile bounds a file of sysfs, which is a few bytes.
const maxPCIFile = 4096

// countPCI counts the GPUs below a sysfs. A device that vanishes meanwhile does not
// count.
func countPCI(ctx context.Context, sys string) (n int, err error) {
	dir := filepath.Join(sys, "bus", "pci", "devices")
	entries, err := os.ReadDir(dir)
	if os.IsNotExist(err) {
		return 0, nil // a node without PCI has no such directory
	}
	if err != nil {
		return 0, err
	}
	files := regularfile.New(regularfile.DefaultTimeout)
	read := func(device, name string) string {
		b, err := files.Read(ctx, filepath.Join(dir, device, name), maxPCIFile)
		if err != nil {
			return ""
		}
		return strings.ToLower(strings.TrimSpace(string(b)))
	}
	for _, e := range entries {
		if read(e.Name(), "vendor") != vendorNVIDIA {
			continue
		}
		if class := read(e.Name(), "class"); strings.HasPrefix(class, classVGA) || strings.HasPrefix(class, class3D) {
			n++
		}
	}
	return n, nil
}

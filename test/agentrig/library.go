// SPDX-License-Identifier: Apache-2.0

//go:build linux

package agentrig

import (
	"fmt"
	"os"
	"path/filepath"
)

// Library is one of the fake GPU libraries that make builds, with the file of its GPUs'
// state.
type Library struct {
	Backend string // nvml or dcgm
	path    string
	file    string
}

// NVML is the fake libnvidia-ml in the folder bin, driven by a file in dir.
func NVML(bin, dir string) *Library {
	return &Library{Backend: "nvml", path: filepath.Join(bin, "libnvidia-ml-fake.so"), file: filepath.Join(dir, "nvml.txt")}
}

// DCGM returns the fake libdcgm.
func DCGM(bin, dir string) *Library {
	return &Library{Backend: "dcgm", path: filepath.Join(bin, "libdcgm-fake.so"), file: filepath.Join(dir, "dcgm.txt")}
}

// Args returns the agent's flags that select the library.
func (l *Library) Args() []string {
	return []string{"--backend", l.Backend, "--" + l.Backend + "-library", l.path}
}

// Env returns the agent's environment with the path of the file.
func (l *Library) Env() []string {
	if l.Backend == "dcgm" {
		return []string{"GPUPILOT_FAKE_DCGM=" + l.file}
	}
	return []string{"GPUPILOT_FAKE_NVML=" + l.file}
}

// Set replaces the state of the simulated GPUs, in the file's format
// (test/fakes/nvml/README.md). The library looks at it in its next call.
func (l *Library) Set(text string) error {
	if err := os.WriteFile(l.file+".new", []byte(text), 0o600); err != nil {
		return err
	}
	return os.Rename(l.file+".new", l.file)
}

// NoValidation keeps dcgm-exporter from looking for libdcgm in the loader's cache, which has no fake.
const NoValidation = "DISABLE_STARTUP_VALIDATE=true"

// LinkLibraries makes a folder for LD_LIBRARY_PATH, in which programs find the fake libraries of the folder bin under the
// names that releases of dcgm-exporter have looked for.
func LinkLibraries(bin, folder string) error {
	if err := os.Mkdir(folder, 0o755); err != nil {
		return err
	}
	for name, from := range map[string]string{
		"libdcgm.so": "libdcgm-fake.so", "libdcgm.so.3": "libdcgm-fake.so", "libdcgm.so.4": "libdcgm-fake.so", "libnvidia-ml.so.1": "libnvidia-ml-fake.so",
	} {
		built, err := filepath.Abs(filepath.Join(bin, from))
		if err != nil {
			return err
		}
		if _, err := os.Stat(built); err != nil {
			return fmt.Errorf("a fake library, made by make fakes: %w", err)
		}
		if err := os.Symlink(built, filepath.Join(folder, name)); err != nil {
			return err
		}
	}
	return nil
}

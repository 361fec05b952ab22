// SPDX-License-Identifier: Apache-2.0

//go:build linux

package agentrig

import (
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

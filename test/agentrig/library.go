// SPDX-License-Identifier: Apache-2.0

//go:build linux

package agentrig

import (
	"os"
	"path/filepath"
)

// Library is one of make's fake GPU libraries and the file that says what its
// GPUs do.
type Library struct {
	Backend string // nvml or dcgm
	path    string
	file    string
}

// NVML is the fake libnvidia-ml in the folder bin, driven by a file in dir.
func NVML(bin, dir string) *Library {
	return &Library{Backend: "nvml", path: filepath.Join(bin, "libnvidia-ml-fake.so"), file: filepath.Join(dir, "nvml.txt")}
}

// DCGM is the fake libdcgm.
func DCGM(bin, dir string) *Library {
	return &Library{Backend: "dcgm", path: filepath.Join(bin, "libdcgm-fake.so"), file: filepath.Join(dir, "dcgm.txt")}
}

// Args are the agent's flags that choose the library.
func (l *Library) Args() []string {
	return []string{"--backend", l.Backend, "--" + l.Backend + "-library", l.path}
}

// Env is the agent's environment that names the file.
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

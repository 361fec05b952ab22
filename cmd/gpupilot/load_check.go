// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gpupilot/gpupilot/internal/loadgen/check"
	"github.com/gpupilot/gpupilot/internal/loadgen/cuda"
	"github.com/gpupilot/gpupilot/internal/loadgen/load"
)

const checkHelp = `source to compare with, may be repeated: the URL of an agent's or dcgm-exporter's page, nvml, dcgm, dcgm://HOST:PORT,
or dcgm:///SOCKET`

// checked runs a load, and compares the sources of --check with its steps.
func (f *loadFlags) checked(cmd *cobra.Command, sequences []load.Sequence, run func(took func(load.Step)) error) error {
	var sources []check.Source
	for _, text := range f.sources {
		s, err := f.sourceOf(text)
		if err != nil {
			return fmt.Errorf("--check: %w", err)
		}
		sources = append(sources, s)
	}
	return check.New(sources, f.args.Tolerance).Run(cmd.Context(), sequences, cmd.OutOrStdout(), f.output == "json", run)
}

// sourceOf reads a value of --check.
func (f *loadFlags) sourceOf(text string) (check.Source, error) {
	library := f.host.NVML
	if library == cuda.DefaultNVML {
		library = ""
	}
	if a, ok := check.NewAgent(text, library); ok {
		return a, nil
	}
	if strings.HasPrefix(text, "http://") || strings.HasPrefix(text, "https://") {
		return check.NewPage(text)
	}
	return nil, fmt.Errorf("%q: want http://HOST:PORT/metrics, nvml, dcgm, dcgm://HOST:PORT or dcgm:///SOCKET", text)
}

// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gpupilot/gpupilot/internal/gpu/check"
	"github.com/gpupilot/gpupilot/internal/gpu/load"
	"github.com/gpupilot/gpupilot/internal/promql/gpuquery"
)

const checkHelp = `source to compare with, may be repeated: the URL of an agent's or dcgm-exporter's page, or prom=URL?query=PROMQL`

// checked runs a load, and compares the sources of --check with its steps.
func (f *loadFlags) checked(cmd *cobra.Command, sequences []load.Sequence, run func(took func(load.Step)) error) error {
	var sources []check.Source
	for _, text := range f.sources {
		s, err := sourceOf(text)
		if err != nil {
			return fmt.Errorf("--check: %w", err)
		}
		sources = append(sources, s)
	}
	return check.New(sources, f.args.Tolerance).Run(cmd.Context(), sequences, cmd.OutOrStdout(), f.output == "json", run)
}

// sourceOf reads a value of --check.
func sourceOf(text string) (check.Source, error) {
	kind, rest, _ := strings.Cut(text, "=")
	switch {
	case kind == "prom":
		return gpuquery.New(rest, "gpupilot/"+version)
	case strings.HasPrefix(text, "http://"), strings.HasPrefix(text, "https://"):
		return check.NewPage(text)
	}
	return nil, fmt.Errorf("%q is not supported: want http://HOST:PORT/metrics or prom=URL?query=PROMQL. "+
		"For NVML or a DCGM host engine, give the page of an agent that reads it", text)
}

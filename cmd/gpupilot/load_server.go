// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/gpupilot/gpupilot/internal/loadgen/check"
	"github.com/gpupilot/gpupilot/internal/scale/policy"
)

// loadServerCommand loads an inference server.
func loadServerCommand() *cobra.Command {
	gauges := policy.Gauges(true)
	f := check.ServerFlags{Server: check.Server{IsRunning: func(metric string) bool {
		q, ok := gauges[metric]
		return ok && q == policy.RunningRequests
	}}}
	cmd := &cobra.Command{
		Use:   "server --url URL --check SOURCE",
		Short: "Measure the SM activity of an inference server over its batch",
		Long: `Keep 1, 2, 4 and more requests in flight at a server with OpenAI's API, such as vLLM, and show what its GPUs do
meanwhile. gpupilot backtest --calibration reads the file of --calibrate. Nobody else should use the server.`,
		Example: `  gpupilot load server --url http://127.0.0.1:8000 --check http://127.0.0.1:9400 --calibrate llama.json`,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if f.Source, err = (&loadFlags{}).sourceOf(f.Check); err != nil {
				return fmt.Errorf("--check: %w", err)
			}
			return f.Run(cmd.Context(), cmd.OutOrStdout())
		},
	}
	f.Define(cmd.Flags())
	return cmd
}

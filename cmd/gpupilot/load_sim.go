// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"os"

	"github.com/spf13/cobra"

	"github.com/gpupilot/gpupilot/internal/loadgen/load"
)

// loadSimCommand loads simulated GPUs.
func loadSimCommand() *cobra.Command {
	f := &loadFlags{}
	s := load.Simulated{}
	cmd := &cobra.Command{
		Use:   "sim --agent URL -t LOAD",
		Short: "Load the simulated GPUs of agents",
		Long: `Load simulated GPUs, so that dashboards, alerts and autoscalers can be tried without a GPU: those of an agent that runs with
--backend sim --sim-push, or with --file those of all agents that run with --backend sim --sim-state FILE. Loads, shapes and
steps are those of load gpu. At the end the GPUs are idle.`,
		Example: `  gpupilot load sim --agent http://127.0.0.1:9400 -t tensor --sine 0.2:0.9:60s -d 600 --check http://127.0.0.1:9400`,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			sequences, out, err := f.begin(cmd)
			if err != nil {
				return err
			}
			if s.GPUs, err = load.ParseIndexes(f.gpus); err != nil {
				return err
			}
			host, _ := os.Hostname()
			s.Node = cmp.Or(s.Node, os.Getenv("NODE_NAME"), host)
			return f.checked(cmd, sequences, func(took func(load.Step)) error {
				defer out.Close()
				err := s.Run(cmd.Context(), sequences, func(step load.Step) error {
					took(step)
					return out.Step(step)
				})
				if err != nil && cmd.Context().Err() != nil {
					return interrupted("interrupted: the simulated GPUs are idle")
				}
				return err
			})
		},
	}
	p := cmd.Flags()
	p.StringVar(&s.Agent, "agent", "", "URL of an agent")
	p.StringVar(&s.File, "file", "", "file that agents follow")
	p.StringVar(&s.Node, "node-name", "", "with --file, the agent's node name, which its GPUs' UUIDs are made from (default: $NODE_NAME, or the hostname)")
	p.StringVar(&f.gpus, "gpu", "0", "indexes of GPUs; the others are idle")
	f.defineShared(p)
	cmd.MarkFlagsOneRequired("agent", "file")
	cmd.MarkFlagsMutuallyExclusive("agent", "file")
	return cmd
}

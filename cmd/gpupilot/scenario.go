// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/gpupilot/gpupilot/internal/replay/scenario"
)

// scenarioCommand runs scenario files.
func scenarioCommand() *cobra.Command {
	var update, all bool
	cmd := &cobra.Command{
		Use:   "scenario FILE…",
		Short: "Run scenarios and print the decisions of a GPUAutoscaler",
		Long: `Run scenarios: text files with a GPUAutoscaler, a timeline of observations, promises and expected decisions.
The command fails if a promise is broken or a decision differs from the expected one. See docs/scenarios.md.`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			failed := 0
			for _, path := range args {
				ok, err := scenario.Play(cmd.OutOrStdout(), path, update, all)
				if err != nil {
					return err
				}
				if !ok {
					failed++
				}
			}
			if failed > 0 {
				return fmt.Errorf("%d of %d scenarios failed", failed, len(args))
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&update, "update", false, "write the decisions into the files; promises stay as they are")
	cmd.Flags().BoolVar(&all, "all", false, "print the decision at every line of the timeline, changed or not")
	return cmd
}

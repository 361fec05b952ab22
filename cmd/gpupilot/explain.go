// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpupilot/gpupilot/internal/terminal/remote"
)

// explainCommand prints the last decision of a GPUAutoscaler from its status, which
// needs only the user's own credentials.
func explainCommand() *cobra.Command {
	var where remote.Cluster
	cmd := &cobra.Command{
		Use:   "explain [NAMESPACE/]NAME",
		Short: "Print the last decision for a GPUAutoscaler, its reasons, and what would change it",
		Long: `Print the last decision for a GPUAutoscaler, its reasons and values, and what would change it. For the last
part the decision engine is run again with changed signals, from the state in the object's status.
Without a name, all GPUAutoscalers of the namespace are printed.`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			namespace, name, err := where.Object(args)
			if err != nil {
				return err
			}
			c, err := where.API()
			if err != nil {
				return err
			}
			all, err := c.Autoscalers(cmd.Context(), namespace, name)
			if err != nil {
				return err
			}
			for i := range all {
				if i > 0 {
					fmt.Fprintln(cmd.OutOrStdout())
				}
				all[i].Explain(cmd.OutOrStdout(), time.Now())
			}
			return nil
		},
	}
	where.Flags(cmd.Flags())
	return cmd
}

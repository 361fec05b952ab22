// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpupilot/gpupilot/internal/terminal/doctor"
	"github.com/gpupilot/gpupilot/internal/terminal/mcp"
	"github.com/gpupilot/gpupilot/internal/terminal/top"
)

// mcpCommand lets agents ask about the fleet.
func mcpCommand() *cobra.Command {
	var o doctorOptions
	var prices string
	cmd := &cobra.Command{
		Use:   "mcp",
		Short: "Let an agent ask about the fleet: a read-only MCP server on standard input and output",
		Long: `Serve the Model Context Protocol on standard input and output, for agents: what get, explain and doctor print. It only reads,
with the rights of the kubeconfig, as these do. Each answer has at most 8 kB and says what was left out.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			list, err := parsePrices(prices)
			if err != nil {
				return err
			}
			o.controller.Cluster, o.controller.Named = &o.where, cmd.Flags().Changed("controller")
			o.namespace = "gpupilot-system"
			if namespace, _, ok := strings.Cut(o.controller.Address, "/"); ok && !strings.Contains(o.controller.Address, "://") {
				o.namespace = namespace
			}
			return mcp.Serve(cmd.Context(), mcp.Deps{
				Fleet: &top.Controller{API: &o.controller}, Explain: o.explain, Prices: list, Version: version,
				Doctor: func(ctx context.Context, s *doctor.Selection) (*doctor.Report, error) {
					r, _, err := o.report(ctx, s)
					return r, err
				},
			}, cmd.InOrStdin(), cmd.OutOrStdout())
		},
	}
	o.where.ConnectionFlags(cmd.Flags())
	o.controller.Flags(cmd.Flags())
	cmd.Flags().StringVar(&prices, "gpu-price", "", pricesUsage)
	return cmd
}

// explain writes what gpupilot explain prints.
func (o *doctorOptions) explain(ctx context.Context, namespace, name string, out io.Writer) error {
	api, err := o.where.API()
	if err != nil {
		return err
	}
	all, err := api.Autoscalers(ctx, namespace, name)
	if err != nil {
		return err
	}
	all[0].Explain(out, time.Now())
	return nil
}

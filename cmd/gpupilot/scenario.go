// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpupilot/gpupilot/internal/replay/scenario"
)

// scenarioOptions are the flags of scenario.
type scenarioOptions struct {
	update, all bool
	recorded    controllerHistory
	around      string
}

// scenarioCommand runs scenario files.
func scenarioCommand() *cobra.Command {
	var o scenarioOptions
	cmd := &cobra.Command{
		Use:   "scenario FILE…",
		Short: "Run scenarios and print the decisions of a GPUAutoscaler, or export one from what was recorded",
		Long: `Run scenarios: text files with a GPUAutoscaler, a timeline of observations, promises and expected decisions.
The command fails if a promise is broken or a decision differs from the expected one. See docs/scenarios.md.

With --from-cluster it writes a scenario instead: what the controller has recorded of a GPUAutoscaler around a time.`,
		Example: `  gpupilot scenario incident.txtar
  gpupilot scenario --from-cluster llm/chat --around 14:05 > incident.txtar`,
		RunE: func(cmd *cobra.Command, args []string) error {
			o.recorded.controller.Named = cmd.Flags().Changed("controller")
			switch {
			case o.recorded.object != "" && len(args) > 0:
				return errors.New("--from-cluster writes a scenario to standard output: leave out the files")
			case o.recorded.object != "":
				return o.export(cmd.Context(), cmd.OutOrStdout(), time.Now())
			case len(args) == 0:
				return errors.New("give at least one file, or --from-cluster [NAMESPACE/]NAME")
			}
			return o.play(cmd.OutOrStdout(), args)
		},
	}
	f := cmd.Flags()
	f.BoolVar(&o.update, "update", false, "write the decisions into the files; promises stay as they are")
	f.BoolVar(&o.all, "all", false, "print the decision at every line of the timeline, changed or not")
	f.StringVar(&o.recorded.object, "from-cluster", "", "write a scenario of a GPUAutoscaler, [NAMESPACE/]NAME, to standard output")
	f.StringVar(&o.around, "around", "", "with --from-cluster: the middle of the scenario, such as 14:05, \"2026-01-31 14:05\" or 2026-01-31T14:05:00Z (default: it ends now)")
	f.DurationVar(&o.recorded.length, "length", 30*time.Minute, "with --from-cluster: length of the scenario, up to 48h. What lies within the last 10 minutes is exported in seconds, the rest of 14 days in minutes")
	o.recorded.controller.Flags(f)
	o.recorded.where.Flags(f)
	return cmd
}

func (o *scenarioOptions) play(out io.Writer, files []string) error {
	failed := 0
	for _, path := range files {
		ok, err := scenario.Play(out, path, o.update, o.all)
		if err != nil {
			return err
		}
		if !ok {
			failed++
		}
	}
	if failed > 0 {
		return fmt.Errorf("%d of %d scenarios failed", failed, len(files))
	}
	return nil
}

// export writes what was recorded as a scenario.
func (o *scenarioOptions) export(ctx context.Context, out io.Writer, now time.Time) error {
	if o.recorded.length < time.Minute || o.recorded.length > 48*time.Hour {
		return fmt.Errorf("--length %v: want 1m to 48h", o.recorded.length)
	}
	to := now
	if o.around != "" {
		at, err := scenario.ParseAround(o.around, now)
		if err != nil {
			return fmt.Errorf("--around: %w", err)
		}
		to = at.Add(o.recorded.length / 2)
	}
	w, err := o.recorded.workload(ctx)
	if err != nil {
		return err
	}
	r := scenario.Record{
		Namespace: w.namespace, Name: w.history.Name, Object: w.object, Policy: w.history.Policy, Startup: w.startup, From: to.Add(-o.recorded.length), To: to,
	}
	if err := r.Read(now, o.recorded.get(ctx)); err != nil {
		return fmt.Errorf("ask the controller (--controller %s): %w", o.recorded.controller.Address, err)
	}
	text, err := r.Export()
	if err != nil {
		return err
	}
	_, err = out.Write(text)
	return err
}

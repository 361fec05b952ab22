// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpupilot/gpupilot/internal/terminal/doctor"
	"github.com/gpupilot/gpupilot/internal/terminal/remote"
	"github.com/gpupilot/gpupilot/internal/window/view"
)

// doctorOptions are the flags of doctor.
type doctorOptions struct {
	where      remote.Cluster
	controller remote.Controller
	namespace  string
	checks     doctor.Selection
	format     string
	strict     bool
	bundle     string
}

// exitWith is an error with the exit code of the program.
type exitWith struct {
	code int
	text string
}

func (e *exitWith) Error() string { return e.text }

// doctorCommand looks for what is wrong.
func doctorCommand() *cobra.Command {
	var o doctorOptions
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Look for what is wrong in the cluster, say what it breaks and what to do",
		Long: `Check the installation, the nodes, what is scraped, and the workloads that are scaled. Each check has a code that does not
change. A check that cannot run, such as without the right to read something, says so and does not count as passed.
Exit code: 0 nothing is wrong, 1 warnings with --strict, 2 errors, 3 a check could not run.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o.controller.Named = cmd.Flags().Changed("controller")
			return o.run(cmd.Context(), cmd.OutOrStdout())
		},
	}
	f := cmd.Flags()
	o.where.ConnectionFlags(f)
	f.StringVarP(&o.namespace, "namespace", "n", "gpupilot-system", "namespace of the controller")
	o.controller.Flags(f)
	f.BoolVar(&o.checks.Pre, "pre", false, "only the checks before an installation")
	f.StringSliceVar(&o.checks.Only, "only", nil, "only these groups or codes, such as scaling,GP301")
	f.StringSliceVar(&o.checks.Skip, "skip", nil, "without these groups or codes")
	f.StringVarP(&o.format, "output", "o", "text", "format: text, json")
	f.BoolVar(&o.strict, "strict", false, "warnings are failures, too")
	f.StringVar(&o.bundle, "bundle", "", "file to write an archive to, for a bug report: the report and the objects that it is about, without secrets")
	return cmd
}

func (o *doctorOptions) run(ctx context.Context, out io.Writer) error {
	if o.format != "text" && o.format != "json" {
		return fmt.Errorf("--output is %q: want text or json", o.format)
	}
	if !o.controller.Named && o.namespace != "gpupilot-system" {
		o.controller.Address = strings.Replace(o.controller.Address, "gpupilot-system/", o.namespace+"/", 1)
	}
	o.controller.Cluster = &o.where
	report, facts, err := o.report(ctx, &o.checks)
	if err != nil {
		return err
	}
	if o.bundle != "" {
		if err := doctor.WriteBundle(o.bundle, report, facts); err != nil {
			return fmt.Errorf("--bundle: %w", err)
		}
	}
	write := report.Text
	if o.format == "json" {
		write = report.JSON
	}
	if err := write(out); err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	if code := doctor.ExitCode(report.Checks, o.strict); code != 0 {
		return &exitWith{code, fmt.Sprintf("doctor: %d errors, %d warnings, %d checks could not run", report.Errors, report.Warnings, report.Unknown)}
	}
	return nil
}

// report runs the checks.
func (o *doctorOptions) report(ctx context.Context, selection *doctor.Selection) (*doctor.Report, *doctor.Facts, error) {
	checks, err := selection.Select()
	if err != nil {
		return nil, nil, err
	}
	api, err := o.where.API()
	if err != nil {
		return nil, nil, err
	}
	w := doctor.Where{API: api, Namespace: o.namespace, Now: time.Now, Controller: func(ctx context.Context, v *view.View) error {
		return o.controller.Get(ctx, "api/v1/view", nil, v)
	}}
	report, facts := w.Report(ctx, checks, selection.Pre, version, o.where.Host())
	return report, facts, nil
}

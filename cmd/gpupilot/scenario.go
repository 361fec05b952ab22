// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"os"

	"github.com/rogpeppe/go-internal/diff"
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
				ok, err := playScenario(cmd.OutOrStdout(), path, update, all)
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

// playScenario runs one file and prints the decisions. ok is false if a promise is
// broken or a decision differs. With or without all, only changes are compared and
// written.
func playScenario(out io.Writer, path string, update, all bool) (ok bool, err error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return false, err
	}
	s, err := scenario.Parse(path, data)
	if err != nil {
		return false, err
	}
	moments, err := s.Run(nil)
	if err != nil {
		return false, fmt.Errorf("%s: %w", path, err)
	}
	got := scenario.Decisions(moments)
	shown := got
	if all {
		shown = scenario.AllDecisions(moments)
	}
	fmt.Fprintf(out, "%s: %s\n%s\n", path, s.Title, shown)
	broken := s.Broken(moments)
	for _, err := range broken {
		fmt.Fprintf(out, "broken: %v\n", err)
	}
	switch {
	case update:
		if err := os.WriteFile(path, s.WithDecisions(got), 0o644); err != nil {
			return false, err
		}
	case s.Recorded() != "" && s.Recorded() != got:
		fmt.Fprintf(out, "%s\n", diff.Diff("recorded", []byte(s.Recorded()), "now", []byte(got)))
		return false, nil
	}
	return len(broken) == 0, nil
}

// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"runtime"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpupilot/gpupilot/internal/replay/arena"
	"github.com/gpupilot/gpupilot/internal/replay/contender"
)

// arenaFlags are the flags of gpupilot arena.
type arenaFlags struct {
	mooncake, output string
	policies         []string
	startups, scrape []time.Duration
	stretch          float64
	seeds            int
}

// arenaCommand repeats NVIDIA's Planner Gym.
func arenaCommand() *cobra.Command {
	var f arenaFlags
	cmd := &cobra.Command{
		Use:   "arena",
		Short: "Repeat NVIDIA's Planner Gym with GPUPilot and other autoscalers for LLM servers, and extend it",
		Long: `Repeats the public part of NVIDIA's Planner Gym: its generated traces of 180 s, its workers, its metric
(good requests per GPU-second) and its ranks, with other autoscalers for LLM servers and GPUPilot beside
the published ones. Then it extends the match: longer loads and starts, the age of scraped metrics, floors
of the share of good requests, and the front of good rate and GPUs. See docs/arena.md.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return f.run(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	fl := cmd.Flags()
	fl.StringVar(&f.mooncake, "mooncake", "", "file of Mooncake's trace, .jsonl as published or a CSV of requests: the eighth load (default: seven loads)")
	fl.StringSliceVar(&f.policies, "policy", nil, "GPUAutoscaler, HorizontalPodAutoscaler or ScaledObject as YAML, instead of GPUPilot's default policies; may be repeated")
	fl.DurationSliceVar(&f.startups, "startup", []time.Duration{30 * time.Second, 2 * time.Minute, 5 * time.Minute}, "starts of a worker in the extended match")
	fl.DurationSliceVar(&f.scrape, "scrape", []time.Duration{0, 15 * time.Second}, "intervals of Prometheus in the extended match, for the autoscalers that read it; 0: no lag")
	fl.Float64Var(&f.stretch, "stretch", 20, "length of the loads in the extended match, as a multiple of 180 s; 0: only the published match")
	fl.IntVar(&f.seeds, "seeds", 3, "replays of each load, with different random numbers")
	fl.StringVarP(&f.output, "output", "o", "table", "table or json")
	return cmd
}

func (f *arenaFlags) run(ctx context.Context, stdout, stderr io.Writer) error {
	if f.output != "table" && f.output != "json" {
		return fmt.Errorf("-o %s: want table or json", f.output)
	}
	if f.seeds < 1 || f.seeds > 1000 {
		return fmt.Errorf("--seeds %d: want 1 to 1000", f.seeds)
	}
	settings, err := arena.Settings(f.startups, f.scrape, f.stretch)
	if err != nil {
		return err
	}
	match := arena.Match{Loads: arena.Loads(), Seeds: f.seeds, Workers: runtime.NumCPU()}
	if match.Contenders, err = f.contenders(); err != nil {
		return err
	}
	if f.mooncake != "" {
		l, err := arena.Open(f.mooncake)
		if err != nil {
			return fmt.Errorf("--mooncake: %w", err)
		}
		match.Loads = append(match.Loads, l)
	}
	report := arena.Report{Version: version}
	for i, set := range settings {
		fmt.Fprintf(stderr, "%d of %d: %s\n", i+1, len(settings), set.Title())
		t, err := match.Play(ctx, set)
		if errors.Is(err, context.Canceled) {
			return interrupted("interrupted")
		}
		if err != nil {
			return err
		}
		report.Tables = append(report.Tables, t)
	}
	if f.output == "json" {
		e := json.NewEncoder(stdout)
		e.SetIndent("", " ")
		return e.Encode(&report)
	}
	return report.Write(stdout)
}

// contenders are those of the arena, with the policies of the files if there are any.
func (f *arenaFlags) contenders() ([]contender.Entry, error) {
	if len(f.policies) == 0 {
		ours, err := arena.DefaultPolicies()
		return append(arena.Rivals(), ours...), err
	}
	policies, given, err := (&backtestFlags{policies: f.policies}).readPolicies(nil)
	out := append(arena.Rivals(), given...)
	for i := range policies {
		out = append(out, contender.NewOurs(policies[i].Name, policies[i].Compiled))
	}
	return out, err
}

// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"context"
	"fmt"
	"io"
	"runtime"
	"time"

	"github.com/gpupilot/gpupilot/test/arena"
)

// benchArena repeats NVIDIA's Planner Gym and extends it (test/arena/RESULTS.md): a minute of CPU time.
func benchArena(ctx context.Context, cfg config, out io.Writer) ([]Row, error) {
	settings, err := arena.Settings([]time.Duration{30 * time.Second, 2 * time.Minute, 5 * time.Minute}, []time.Duration{0, 15 * time.Second}, 20)
	if err != nil {
		return nil, err
	}
	ours, err := arena.DefaultPolicies()
	if err != nil {
		return nil, err
	}
	match := arena.Match{Loads: arena.Loads(), Contenders: append(arena.Rivals(), ours...), Seeds: 3, Workers: runtime.NumCPU()}
	if cfg.mooncake != "" {
		l, err := arena.Open(cfg.mooncake)
		if err != nil {
			return nil, fmt.Errorf("-mooncake: %w", err)
		}
		match.Loads = append(match.Loads, l)
	}
	var report arena.Report
	var rows []Row
	for _, set := range settings {
		fmt.Fprintf(out, "arena: %s\n", set.Title())
		t, err := match.Play(ctx, set)
		if err != nil {
			return nil, err
		}
		report.Tables = append(report.Tables, t)
		for _, r := range t.Rows {
			if r.Ours {
				rows = append(rows, figure(r.Name+", "+set.Title(), r.GoodPerGPUSecond, "good/GPU-s"), figure("  good rate", 100*r.GoodRate, "%"), figure("  mean rank", r.MeanRank, ""))
			}
		}
	}
	return rows, report.Write(out)
}

// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"

	"github.com/gpupilot/gpupilot/internal/base/fair"
	"github.com/gpupilot/gpupilot/internal/promql/engine"
	"github.com/gpupilot/gpupilot/test/agentrig"
)

// promRuns is how many times each query runs.
const promRuns = 15

// benchPromQL measures instant queries over the windows of fleets of 8 GPUs per node, as
// the controller evaluates them. The bars are those of the largest fleet.
func benchPromQL(ctx context.Context, _ config, out io.Writer) ([]Row, error) {
	var rows []Row
	fleets := []int{100, 1000, 10000}
	for i, nodes := range fleets {
		fmt.Fprintf(out, "promql: %d series\n", nodes*gpus)
		f, err := newPromFleet(nodes, 50)
		if err != nil {
			return nil, err
		}
		engine := f.engine()
		for _, q := range promQueries() {
			p50, err := timeQuery(ctx, f, engine, q.promQL)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", q.promQL, err)
			}
			name := fmt.Sprintf("PromQL over %d series, %s, CPU", nodes*gpus, q.name)
			if i == len(fleets)-1 {
				rows = append(rows, calibrated(name, p50, "ms", q.bar))
			} else {
				rows = append(rows, figure(name, p50, "ms"))
			}
		}
	}
	return rows, nil
}

// timeQuery returns the median CPU time of a query, in ms, with the garbage collections
// that it causes. The first runs, which make indexes, do not count.
func timeQuery(ctx context.Context, f *promFleet, e *engine.Engine, query string) (float64, error) {
	var times []float64
	for run := range promRuns + 2 {
		before, err := agentrig.CPU(os.Getpid())
		if err != nil {
			return 0, err
		}
		if _, _, err := e.Instant(ctx, engine.Query{PromQL: query, Payer: fair.Namespace("bench")}, f.now); err != nil {
			return 0, err
		}
		after, err := agentrig.CPU(os.Getpid())
		if err != nil {
			return 0, err
		}
		if run >= 2 {
			times = append(times, ms(after-before))
		}
	}
	runtime.KeepAlive(f)
	slices.Sort(times)
	return quantile(times, 0.5), nil
}

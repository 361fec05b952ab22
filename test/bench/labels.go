// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/gpupilot/gpupilot/internal/promql/windows"
	"github.com/gpupilot/gpupilot/internal/window/page"
)

// labelsWindow is the window of the part labels. It is short, so that the part ends soon:
// labels take the same memory with any window.
const labelsWindow = 30 * time.Second

// benchLabels measures what the labels of series for PromQL cost the scraper and the
// store: with all series, and with those of one used metric, as a controller keeps them
// that has memory, and one whose windows are half full.
func benchLabels(ctx context.Context, cfg config, out io.Writer) ([]Row, error) {
	sizes, err := fleetSizes(cfg.targets)
	if err != nil {
		return nil, err
	}
	cfg.window = labelsWindow
	var rows []Row
	for _, n := range sizes {
		for _, keep := range []windows.Keep{windows.KeepUsed, windows.KeepAll} {
			cfg.labels = string(keep)
			fmt.Fprintf(out, "labels: %d targets, series=%s, window of %v, load average %s\n", n, keep, cfg.window, loadAverage())
			l, err := measureFleet(ctx, cfg, n)
			if err != nil {
				return nil, err
			}
			rows = append(rows,
				figure(fmt.Sprintf("scraper and store, %d targets, series=%s, RSS", n, keep), l.RSS, "MiB"),
				figure("  memory that the store accounts for", l.Memory, "MiB"),
				figure("  CPU", l.Cores, "cores"),
				figure("  missed", max(0, 100*(1-(l.Asked-l.Failed)/l.Expected)), "%"),
			)
		}
	}
	return rows, nil
}

// labelNames returns the names whose series have labels, for a value of -labels;
// empty: none have.
func labelNames(keep string) *page.Names {
	switch windows.Keep(keep) {
	case windows.KeepAll:
		return page.NewNames(true, nil, nil)
	case windows.KeepUsed:
		return page.NewNames(false, []string{"DCGM_FI_DEV_GPU_UTIL"}, nil)
	}
	return page.NewNames(false, nil, nil)
}

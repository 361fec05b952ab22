// SPDX-License-Identifier: Apache-2.0

// Command gpuworker is the part of gpupilot that loads a GPU, for programs without cgo: see internal/loadgen/load/worker. It
// is embedded in gpupilot.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/gpupilot/gpupilot/internal/loadgen/load"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := load.Serve(ctx, os.Stdin, os.Stdout)
	stop()
	if err != nil {
		os.Exit(1) // the failure was written to the output
	}
}

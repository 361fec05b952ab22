// SPDX-License-Identifier: Apache-2.0

// Command gpupilot is the command-line tool. It also works as kubectl gpupilot.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
)

// version is set by the linker.
var version = "unknown"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "gpupilot:", err)
		os.Exit(exitCode(err))
	}
}

// interrupted is the error of a command that the user interrupted.
type interrupted string

func (i interrupted) Error() string { return string(i) }

func (i interrupted) Unwrap() error { return context.Canceled }

// exitCode returns 130 after an interrupt, the shells' code for SIGINT.
func exitCode(err error) int {
	if errors.Is(err, context.Canceled) {
		return 130
	}
	return 1
}

// run executes the command line args and writes what it prints to out.
func run(ctx context.Context, args []string, out io.Writer) error {
	root := &cobra.Command{
		Use:           "gpupilot",
		Short:         "Explain scaling decisions, replay recorded load, and run scenarios",
		Version:       version,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.SetArgs(args)
	root.SetOut(out)
	root.AddCommand(explainCommand(), backtestCommand(), scenarioCommand())
	return root.ExecuteContext(ctx)
}

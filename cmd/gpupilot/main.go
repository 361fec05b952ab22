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
	"path/filepath"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/gpupilot/gpupilot/internal/base/buildinfo"
	"github.com/gpupilot/gpupilot/internal/loadgen/load"
	"github.com/gpupilot/gpupilot/internal/terminal/adopt"
	"github.com/gpupilot/gpupilot/internal/terminal/hold"
	"github.com/gpupilot/gpupilot/internal/terminal/termtext"
)

// version is what this program was built from.
var version = buildinfo.Read().Version

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(termtext.NewWriter(os.Stderr), "gpupilot:", err)
		os.Exit(exitCode(err))
	}
}

// interrupted is the error of a command that the user interrupted.
type interrupted string

func (i interrupted) Error() string { return string(i) }

func (i interrupted) Unwrap() error { return context.Canceled }

// exitCode returns 130 after an interrupt, the shells' code for SIGINT, and an error's own code if it has one.
func exitCode(err error) int {
	var failure *load.Failure
	var exit *exitWith
	switch {
	case errors.As(err, &exit):
		return exit.code
	case errors.As(err, &failure):
		return failure.Code
	case errors.Is(err, context.Canceled):
		return 130
	}
	return 1
}

// displayName is how the user calls this program, for help texts: kubectl starts a plugin by its file kubectl-gpupilot.
func displayName(program string) string {
	if strings.HasPrefix(filepath.Base(program), "kubectl-") {
		return "kubectl gpupilot"
	}
	return "gpupilot"
}

// versionCommand prints what --version prints.
func versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version, the commit, and what it was built with and for",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintln(cmd.OutOrStdout(), "gpupilot", buildinfo.Read())
			return err
		},
	}
}

// screen is where a command draws by itself.
func screen(cmd *cobra.Command) io.Writer {
	if w, ok := cmd.OutOrStdout().(*termtext.Writer); ok {
		return w.Screen()
	}
	return cmd.OutOrStdout()
}

// run executes the command line args and writes what it prints to out.
func run(ctx context.Context, args []string, out io.Writer) error {
	root := &cobra.Command{
		Use:           "gpupilot",
		Annotations:   map[string]string{cobra.CommandDisplayNameAnnotation: displayName(os.Args[0])},
		Short:         "Show what GPUPilot does, explain scaling decisions, replay recorded load, and load GPUs",
		Version:       buildinfo.Read().String(),
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	if len(args) > 0 && args[0] == "load" {
		args = load.SplitArguments(args)
	}
	root.SetArgs(args)
	root.SetOut(termtext.NewWriter(out))
	root.SetErr(termtext.NewWriter(os.Stderr))
	root.SetVersionTemplate("gpupilot {{.Version}}\n")
	root.AddCommand(demoCommand(), topCommand(), getCommand(), doctorCommand(), mcpCommand(), explainCommand(), backtestCommand(), scenarioCommand(), migrateCommand(), loadCommand(), versionCommand())
	root.AddCommand(hold.Commands()...)
	root.AddCommand(adopt.Commands(adoptConverter)...)
	return root.ExecuteContext(ctx)
}

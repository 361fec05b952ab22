// SPDX-License-Identifier: Apache-2.0

// Package command runs the commands of this module.
package command

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
)

// Main runs a command with the program's arguments until it ends or is interrupted. After
// an error it prints the command's name and the error, and ends the program with 1.
func Main(name string, run func(ctx context.Context, args []string, out io.Writer) error) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx, os.Args[1:], os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
		os.Exit(1)
	}
}

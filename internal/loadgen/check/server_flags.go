// SPDX-License-Identifier: Apache-2.0

package check

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/pflag"

	"github.com/gpupilot/gpupilot/internal/loadgen/calibration"
)

// ServerFlags are the flags of a measurement of a server.
type ServerFlags struct {
	Server
	Check string // the source, as on the command line

	batches   []int
	calibrate string
}

// Define defines the flags.
func (f *ServerFlags) Define(p *pflag.FlagSet) {
	p.StringVar(&f.URL, "url", "", "URL of the server")
	p.StringVar(&f.Model, "model", "", "model (default: the server's first)")
	p.StringVar(&f.Check, "check", "", "source that shows the server's GPUs, as of load gpu")
	p.StringSliceVar(&f.GPUs, "gpu", nil, "UUIDs of the server's GPUs (default: the only one that the source shows)")
	p.IntSliceVar(&f.batches, "batches", []int{1, 2, 4, 8, 16, 32, 64, 128}, "requests in flight, one after the other")
	p.DurationVar(&f.Hold, "hold", 20*time.Second, "how long each of them; the first third is not measured")
	p.StringVar(&f.calibrate, "calibrate", "", "FILE to write the table to")
}

// Run measures, prints the rows as they come, and writes the file.
func (f *ServerFlags) Run(ctx context.Context, out io.Writer) error {
	if least := 3 * time.Second; f.Hold < least {
		return fmt.Errorf("--hold %v: want at least %v", f.Hold, least)
	}
	defer Close(f.Source)
	var table calibration.Table
	fmt.Fprintf(out, calibration.BatchFormat, "BATCH", "SM", "TENSOR", "DRAM", "POWER")
	err := f.Batches(ctx, f.batches, func(b calibration.Batch) error {
		table.Batches = append(table.Batches, b)
		_, err := fmt.Fprintln(out, b)
		return err
	})
	table.Server = f.Model
	if err == nil && f.calibrate != "" {
		err = calibration.Write(f.calibrate, []calibration.Table{table})
	}
	return errors.Join(err, ctx.Err())
}

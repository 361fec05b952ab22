// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gpupilot/gpupilot/internal/base/listen"
	"github.com/gpupilot/gpupilot/internal/replay/demo"
	"github.com/gpupilot/gpupilot/internal/serve/webui/static"
)

// demoOptions are the flags of the demo.
type demoOptions struct {
	load   string
	speed  float64
	listen string
	seed   uint64
	price  string
}

// demoCommand shows GPUPilot beside other autoscalers, without a cluster.
func demoCommand() *cobra.Command {
	var o demoOptions
	var names []string
	for _, l := range demo.Loads() {
		names = append(names, l.Name)
	}
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Show GPUPilot beside the HPA and KEDA on an hour of load, without a cluster",
		Long: `Replay an hour of a chat service on a simulated inference service, live: GPUPilot with an objective, a
HorizontalPodAutoscaler on GPU utilisation and KEDA on waiting requests, each with the same requests.
The command prints the address of a page, a line each five minutes of the replay, and a summary. On a terminal the page
then stays until Ctrl-C. It needs no GPU, no cluster and no network.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return o.run(cmd.Context(), cmd.OutOrStdout(), isTerminal(cmd.InOrStdin()) && isTerminal(screen(cmd)))
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.load, "load", names[0], "the load: "+strings.Join(names, ", "))
	f.Float64Var(&o.speed, "speed", 60, "how many times as fast as real time; 0: as fast as this machine can")
	f.StringVar(&o.listen, "listen", "127.0.0.1:0", "the address of the page; port 0: a free one")
	f.Uint64Var(&o.seed, "seed", 1, "draws other requests of the same load")
	f.StringVar(&o.price, "gpu-price", "2", "USD of a GPU-hour for the costs, as the controller's flag: 2.5, or A100=2,H100=3. The demo's GPUs are A100")
	return cmd
}

// run shows the demo. With somebody who watches it, the page stays until they end the command.
func (o *demoOptions) run(ctx context.Context, out io.Writer, watched bool) error {
	load, err := demo.LoadNamed(o.load)
	if err != nil {
		return fmt.Errorf("--load: %w", err)
	}
	if !(o.speed >= 0) {
		return fmt.Errorf("--speed is %g: want 0 or more", o.speed)
	}
	prices, err := parsePrices(o.price)
	if err != nil {
		return err
	}
	d, err := demo.New(demo.Config{Load: load, Seed: o.seed, Prices: prices})
	if err != nil {
		return err
	}
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", o.listen)
	if err != nil {
		return fmt.Errorf("--listen: %w", err)
	}
	serving, stop := context.WithCancel(ctx)
	served := make(chan struct{})
	go func() {
		room := listen.New(listen.Limits{Connections: 128})
		_ = listen.Serve(serving, room.Of(l), static.WithFiles(d.Handler()), listen.Timeouts{}, slog.New(slog.DiscardHandler)) // the page ends with the demo
		close(served)
	}()
	defer func() {
		stop()
		<-served
	}()

	s := d.State(0)
	fmt.Fprintf(out, "%s\nLook at it on http://%s/\n\n%s\n", load.About, l.Addr(), s.Head())
	err = d.Run(ctx, o.speed, func(s *demo.State) {
		if s.Second/60%5 == 0 {
			fmt.Fprintln(out, s.Line())
		}
	})
	if err != nil && !errors.Is(err, context.Canceled) {
		return err
	}
	fmt.Fprintf(out, "\n%s", d.State(0).Summary())
	if err != nil {
		return interrupted("interrupted")
	}
	if watched {
		fmt.Fprintf(out, "\nThe page stays on http://%s/ until you press Ctrl-C.\n", l.Addr())
		<-ctx.Done()
	}
	return nil
}

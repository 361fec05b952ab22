// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/term"

	"github.com/gpupilot/gpupilot/internal/gpu/price"
	"github.com/gpupilot/gpupilot/internal/terminal/remote"
	"github.com/gpupilot/gpupilot/internal/terminal/top"
)

// fleetOptions are the flags of the commands that show the fleet.
type fleetOptions struct {
	where      remote.Cluster
	controller remote.Controller
	agent      string
	node       string
	all        bool
	labels     string
	sort       string
	format     string
	price      string
	prices     price.Table // of price
	ascii      bool
	headers    bool
}

func (o *fleetOptions) flags(f *pflag.FlagSet) {
	o.where.Flags(f)
	f.Lookup("namespace").Usage = "only what is in this namespace, and GPUs that its pods hold (default: all that you may see)"
	o.controller.Flags(f)
	f.StringVar(&o.agent, "agent", "", "HOST:PORT or URL of one node's agent, which is read instead of the controller")
	f.StringVar(&o.node, "node", "", "only the GPUs of this node")
	f.BoolVarP(&o.all, "all-namespaces", "A", false, "all namespaces that you may see, which is the default")
	f.StringVarP(&o.labels, "selector", "l", "", "only rows with these labels, KEY=VALUE,KEY!=VALUE: node, pool, model, state, namespace, pod, name, kind")
	f.StringVar(&o.sort, "sort", "", "column to sort by, such as utilization_percent; with a minus from the highest")
	f.StringVarP(&o.format, "output", "o", "table", "format: "+strings.Join(top.Formats, ", "))
	f.StringVar(&o.price, "gpu-price", "", pricesUsage)
	f.BoolVar(&o.ascii, "ascii", false, "only ASCII characters")
}

// pricesUsage is the usage of --gpu-price.
const pricesUsage = "USD of a GPU-hour for the costs, as the controller's flag: 2.5, or NVIDIA H200=4.1,L4=0.8,pool:spot=1.2,*=2 (default: the controller's)"

// parsePrices parses --gpu-price.
func parsePrices(text string) (price.Table, error) {
	t, err := price.Parse(text)
	if err != nil {
		return t, fmt.Errorf("--gpu-price is %.60s: %w", text, err)
	}
	return t, nil
}

// source returns what is read.
func (o *fleetOptions) source(cmd *cobra.Command) (top.Source, error) {
	if !slices.Contains(top.Formats, o.format) {
		return nil, fmt.Errorf("--output is %q: want %s", o.format, strings.Join(top.Formats, ", "))
	}
	var err error
	if o.prices, err = parsePrices(o.price); err != nil {
		return nil, err
	}
	if o.all {
		o.where.Namespace = ""
	}
	if o.agent != "" {
		a := &top.Agent{Address: o.agent, Client: http.DefaultClient}
		_, err := a.URL()
		return a, err
	}
	o.controller.Cluster, o.controller.Named = &o.where, cmd.Flags().Changed("controller")
	name := o.controller.Address
	if !strings.Contains(name, "://") {
		name = o.where.Host()
	}
	return &top.Controller{API: &o.controller, Name: name}, nil
}

// print reads once and writes a view.
func (o *fleetOptions) print(ctx context.Context, out io.Writer, from top.Source, name top.Name) error {
	f, err := top.ParseFilter("-l " + o.labels)
	if err != nil {
		return fmt.Errorf("--selector: %w", err)
	}
	fleet, err := from.Read(ctx, &top.Request{View: name, Node: o.node, Namespace: o.where.Namespace, Sort: o.sort, All: true})
	if err != nil {
		return o.failed(err)
	}
	look := &top.Look{ASCII: o.ascii, Prices: o.prices, Namespace: o.where.Namespace, Now: time.Now()}
	return fleet.Print(out, name, look, &top.Printing{Format: o.format, Sort: o.sort, Filter: f, Headers: o.headers})
}

func (o *fleetOptions) failed(err error) error {
	if o.agent != "" {
		return fmt.Errorf("read the agent: %w", err)
	}
	return fmt.Errorf("read the controller (--controller %s): %w", o.controller.Address, err)
}

// getCommand prints a list.
func getCommand() *cobra.Command {
	var o fleetOptions
	var plain bool
	names, lists := make([]string, len(top.Names)), map[string]top.Name{} // by each spelling
	for i, n := range top.Names {
		names[i], lists[string(n)], lists[strings.TrimSuffix(string(n), "s")] = string(n), n, n
	}
	cmd := &cobra.Command{
		Use:   "get " + strings.Join(names, "|"),
		Short: "Print GPUs, nodes, workloads, pods, idle-held GPUs or decisions",
		Long: `Print a list of what the controller knows: fleet (node pools), nodes, gpus, workloads, pods that hold GPUs, waste (pods
that hold idle GPUs) or decisions. JSON and YAML have the values of the controller's API.`,
		ValidArgs: names,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 1 && lists[args[0]] != "" {
				return nil
			}
			return fmt.Errorf("get %s: want one of %s", strings.Join(args, " "), strings.Join(names, ", "))
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			o.headers = !plain
			from, err := o.source(cmd)
			if err != nil {
				return err
			}
			return o.print(cmd.Context(), cmd.OutOrStdout(), from, lists[args[0]])
		},
	}
	o.flags(cmd.Flags())
	cmd.Flags().BoolVar(&plain, "no-headers", false, "without the line of the columns' names")
	return cmd
}

// topOptions are the flags of top.
type topOptions struct {
	fleetOptions
	once, noColor bool
	interval      time.Duration
	theme, first  string
}

// topCommand shows the fleet live.
func topCommand() *cobra.Command {
	o := topOptions{fleetOptions: fleetOptions{headers: true}}
	cmd := &cobra.Command{
		Use:   "top",
		Short: "Show GPUs, workloads and decisions live, of the cluster or of one node",
		Long: `Show the fleet live in a terminal: GPUs that are active, idle-held and free, nodes, workloads, pods and decisions. It reads
the controller through the API server with your own rights, or one agent (--agent), and writes nothing. ? shows the keys.
If the output is no terminal, it prints once, as with --once.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			from, err := o.source(cmd)
			if err != nil {
				return err
			}
			cfg, err := o.config(cmd.Flags())
			if err != nil {
				return err
			}
			if o.once || cmd.Flags().Changed("output") || !isTerminal(cmd.InOrStdin()) || !isTerminal(screen(cmd)) {
				return o.print(cmd.Context(), cmd.OutOrStdout(), from, cfg.View)
			}
			cfg.Source = from
			return top.Run(cmd.Context(), cfg, cmd.InOrStdin(), screen(cmd))
		},
	}
	o.flags(cmd.Flags())
	f := cmd.Flags()
	f.StringVar(&o.first, "view", string(top.Pools), "view at first: fleet, nodes, gpus, workloads, pods, waste, decisions")
	f.BoolVar(&o.once, "once", false, "print once, as get does")
	f.DurationVar(&o.interval, "interval", time.Second, "time between two reads, 1s to 1m")
	f.StringVar(&o.theme, "theme", string(top.Standard), "colours: standard, contrast, none")
	f.BoolVar(&o.noColor, "no-color", false, "as --theme none, and as the variable NO_COLOR")
	return cmd
}

// config is the saved set-up with the flags over it.
func (o *topOptions) config(f *pflag.FlagSet) (cfg top.Config, err error) {
	cfg = top.Config{Namespace: o.where.Namespace, Node: o.node}
	if path, err := top.SetupPath(); err == nil {
		if cfg.Setup, err = top.LoadSetup(path); err != nil {
			return cfg, fmt.Errorf("read the saved set-up: %w", err)
		}
		cfg.Save = func(s *top.Setup) (string, error) { return path, top.SaveSetup(path, s) }
	}
	if f.Changed("view") || cfg.View == "" {
		cfg.View = top.Name(o.first)
	}
	if cfg.View == top.Pools && o.agent != "" {
		cfg.View = top.GPUs
	}
	if !slices.Contains(top.Names, cfg.View) {
		return cfg, fmt.Errorf("--view is %q: want one of %v", o.first, top.Names)
	}
	if f.Changed("interval") || cfg.Interval == 0 {
		cfg.Interval = o.interval
	}
	if f.Changed("theme") || cfg.Theme == "" {
		if cfg.Theme, err = top.ParseTheme(o.theme); err != nil {
			return cfg, fmt.Errorf("--theme: %w", err)
		}
	}
	if o.noColor || os.Getenv("NO_COLOR") != "" {
		cfg.Theme = top.NoColor
	}
	if o.sort != "" {
		cfg.Sort = map[top.Name]string{cfg.View: o.sort}
	}
	if f.Changed("gpu-price") {
		cfg.Prices = o.prices
	}
	cfg.ASCII = cfg.ASCII || o.ascii
	if cfg.Filter, err = top.ParseFilter(strings.TrimSuffix("-l "+o.labels, "-l ")); err != nil {
		return cfg, fmt.Errorf("--selector: %w", err)
	}
	return cfg, nil
}

// isTerminal reports whether a stream is a terminal.
func isTerminal(stream any) bool {
	f, ok := stream.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

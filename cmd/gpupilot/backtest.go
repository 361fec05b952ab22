// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpupilot/gpupilot/internal/backtest"
)

// backtestFlags are the command line of gpupilot backtest.
type backtestFlags struct {
	traces, policies, models, untouched []string
	peers, replicas, output, out        string
	prices, cache                       string
	startups                            []time.Duration
	hours                               float64
	seeds, workers                      int
	quick, quiet                        bool
	patience                            time.Duration
	ttft, itl                           time.Duration
	history                             history
	seen                                seen
	live                                *live // of --from-cluster
	advise                              bool
	slo                                 float64
	set                                 func(flag string) bool // whether it was given
}

// backtestCommand replays recorded load against policies and their peers.
func backtestCommand() *cobra.Command {
	var f backtestFlags
	cmd := &cobra.Command{
		Use:   "backtest --trace FILE… [--policy FILE]",
		Short: "Replays recorded load against a GPUAutoscaler, HPA, KEDA and Knative, and says what each would have cost",
		Long: `Replays recorded load on a simulated inference service, once for each policy: the GPUAutoscaler that
would be applied, and a grid of settings of the HorizontalPodAutoscaler, KEDA and Knative. The grid's best
compromises between missed latency limits and GPU-hours are the front that ours is compared with:
a ratio below 1 means fewer violations for the same GPU-hours than any of them, or any mix of two.

Traces are CSV, plain or gzip, known by their header:
  t_ms,prompt_tokens,output_tokens                    single requests
  t_s,requests[,prompt_tokens,output_tokens]          counts
  t_s,rate_rps[,iat_cv_rate_weighted,…,gap]           windows
  client,t_s,rate_rps,iat_dist,p1,…                   windows of single clients
  t_s,count_in_5min                                   counts of five minutes`,
		Example: `  gpupilot backtest --trace requests.csv.gz --policy autoscaler.yaml
  gpupilot backtest --trace a.csv --trace b.csv --startup 30s,240s --replicas 5:40 --seeds 5 -o html --out report.html`,
		RunE: func(cmd *cobra.Command, args []string) error {
			f.traces, f.set = append(f.traces, args...), func(flag string) bool {
				x := cmd.Flags().Lookup(flag)
				return x.Changed && x.Value.String() != ""
			}
			return f.run(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	fl := cmd.Flags()
	fl.StringSliceVar(&f.traces, "trace", nil, "recorded load, a CSV file; may be repeated")
	fl.StringVar(&f.history.url, "prometheus", "", "replay your own load: the address of a Prometheus, Thanos, Mimir or VictoriaMetrics")
	fl.StringVar(&f.history.httpConfig, "prometheus-http-config", "", "file with Prometheus's own http_client_config for it: credentials, TLS, headers such as a tenant's")
	fl.StringVar(&f.history.query, "query", "", "PromQL for the requests/s of the service, one series, such as sum(rate(vllm:request_success_total[1m]))")
	fl.DurationVar(&f.history.length, "history", 14*24*time.Hour, "how far back --query goes")
	fl.DurationVar(&f.history.step, "history-step", time.Minute, "resolution of --query")
	fl.Float64Var(&f.history.prompt, "prompt-tokens", 0, "mean prompt tokens of --query's requests (default 1155)")
	fl.Float64Var(&f.history.output, "output-tokens", 0, "mean output tokens of --query's requests (default 211)")
	fl.StringVar(&f.seen.object, "from-cluster", "", "replay what the controller has seen of a GPUAutoscaler, [NAMESPACE/]NAME, with its own policy and start-up")
	fl.StringVar(&f.seen.controller.address, "controller", defaultController, "where --from-cluster finds the controller: NAMESPACE/SERVICE:PORT through the API server, or the URL of its page. Only a controller that is given here is shown the kubeconfig's own token")
	fl.StringVar(&f.seen.controller.viewer, "viewer-service-account", defaultViewer, "ServiceAccount, NAMESPACE/NAME, whose token for ten minutes the controller is shown, where you may ask for one")
	f.seen.where.flags(fl)
	fl.BoolVar(&f.advise, "advise", false, "try policies and print the one to begin with, with reasons, as YAML")
	fl.Float64Var(&f.slo, "slo", 1, "percent of the requests that may miss a limit, for --advise")
	fl.StringSliceVar(&f.policies, "policy", nil, "GPUAutoscaler as YAML; may be repeated (default: three, on requests with a latency to keep, on requests and on SM activity). Its minReplicas and maxReplicas count for a load as recorded, not with --replicas")
	fl.StringVar(&f.peers, "peers", "all", "peers to compare with: all, none, or some of hpa,keda,kpa")
	fl.DurationSliceVar(&f.startups, "startup", []time.Duration{2 * time.Minute}, "median time that a replica takes to serve; several are all tried")
	fl.StringVar(&f.replicas, "replicas", "0", "scale the load so that its peak asks for so many replicas: one number, or LOW:HIGH (LOW with the first seed, HIGH with the last or only one); 0: the load as recorded, within the policy's bounds")
	fl.IntVar(&f.seeds, "seeds", 5, "replays of each trace, each with other luck")
	fl.Float64Var(&f.hours, "hours", 0, "replay a stretch of so many hours, another with each seed; 0: all")
	fl.StringSliceVar(&f.models, "model", []string{"llama-8b"}, "inference server: llama-8b, llama-70b, llama-70b-bf16; several are all tried")
	fl.DurationVar(&f.ttft, "ttft", 0, "limit of the time to the first token (default: the policy's slo, else the model's)")
	fl.DurationVar(&f.itl, "itl", 0, "limit of the time between tokens (default: the policy's slo, else the model's)")
	fl.DurationVar(&f.patience, "patience", backtest.DefaultPatience*time.Second, "how long a client waits for its first token")
	fl.StringVar(&f.prices, "prices", "", "price list, a CSV with gpu_name and usd_per_gpu_hour: the lowest of the model's GPU is taken")
	fl.StringSliceVar(&f.untouched, "untouched", nil, "traces (parts of their names) to sum up apart")
	fl.BoolVar(&f.quick, "quick", false, quickHelp())
	fl.StringVar(&f.cache, "peers-cache", "", "file that keeps the peers' and the oracles' results between runs")
	fl.IntVar(&f.workers, "workers", min(runtime.NumCPU(), 8), "replays at a time")
	fl.BoolVarP(&f.quiet, "quiet", "q", false, "no progress and nothing about limits and bounds on standard error, and no table beside a file")
	fl.StringVarP(&f.output, "output", "o", "table", "table, json or html; where it is not given, what --out ends in")
	fl.StringVar(&f.out, "out", "", "file to write to (default: standard output); of json and html the table is printed as well")
	return cmd
}

func (f *backtestFlags) run(ctx context.Context, stdout, stderr io.Writer) error {
	f.output = f.format()
	f.seen.controller.named = f.set("controller")
	if err := f.check(); err != nil {
		return err
	}
	prices, err := f.readPrices()
	if err != nil {
		return err
	}
	study, err := f.study(ctx, stderr)
	if err != nil {
		return err
	}
	if f.advise {
		return f.recommend(ctx, study, stdout, stderr)
	}
	cache := peersCache{path: f.cache}
	if f.cache != "" {
		if err := cache.load(); err != nil {
			return err
		}
		study.Known, study.Learned = cache.known, cache.learned
	}
	cases, stopped := f.replay(ctx, study, stderr)
	stopped = errors.Join(stopped, cache.save())
	if len(cases) == 0 {
		return stopped
	}
	report := backtest.NewReport(study, cases, f.untouched)
	report.Quick = f.quick && len(study.Peers) > 0
	report.Prices, report.Version, report.Time = prices, version, time.Now()
	return errors.Join(f.publish(stdout, report), stopped)
}

// replay runs the study. Where it is interrupted, what was done comes with the
// error.
func (f *backtestFlags) replay(ctx context.Context, s *backtest.Study, stderr io.Writer) ([]backtest.Case, error) {
	start := time.Now()
	if !f.quiet {
		s.Progress = func(done, of int, c *backtest.Case) {
			fmt.Fprintf(stderr, "%d of %d after %v: %s, %s, start-up %gs, seed %d\n",
				done, of, time.Since(start).Round(time.Second), c.Trace, c.Model, c.Startup, c.Seed)
		}
	}
	cases, err := s.Run(ctx)
	if errors.Is(err, context.Canceled) {
		err = interrupted(fmt.Sprintf("interrupted after %d of %d replays; the results are of those", len(cases), s.Replays()))
		if len(cases) == 0 {
			err = interrupted(fmt.Sprintf("interrupted before the first of %d replays was done", s.Replays()))
		}
	}
	notes, none := hopeless(cases, s.Models)
	if none != nil {
		return nil, errors.Join(none, err)
	}
	for _, note := range notes { // quiet or not: results are without them
		fmt.Fprintln(stderr, note)
	}
	return cases, err
}

// say writes notes for a person, unless they asked for quiet.
func (f *backtestFlags) say(stderr io.Writer, notes []string) {
	if f.quiet {
		return
	}
	for _, note := range notes {
		fmt.Fprintln(stderr, note)
	}
}

// publish writes the report, and the table beside a file that is for others.
func (f *backtestFlags) publish(stdout io.Writer, r *backtest.Report) error {
	if err := f.write(stdout, r); err != nil || f.out == "" || f.output == "table" || f.quiet {
		return err
	}
	return r.Table(stdout)
}

func (f *backtestFlags) write(stdout io.Writer, r *backtest.Report) (err error) {
	w := stdout
	if f.out != "" {
		file, err := os.Create(f.out)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, file.Close()) }()
		w = file
	}
	switch f.output {
	case "json":
		e := json.NewEncoder(w)
		e.SetIndent("", " ")
		return e.Encode(r)
	case "html":
		return r.HTML(w)
	default:
		return r.Table(w)
	}
}

// study is the flags as a study. What it takes for granted it says.
func (f *backtestFlags) study(ctx context.Context, stderr io.Writer) (*backtest.Study, error) {
	s := &backtest.Study{
		Seeds: f.seeds, Hours: f.hours, Patience: f.patience.Seconds(), Workers: f.workers, Points: f.output != "table",
		Also: append(f.oracles(), backtest.Reactive(1, 300), backtest.Reactive(0.8, 300), backtest.Fixed(1)),
	}
	var err error
	if s.Low, s.High, err = replicaRange(f.replicas); err != nil {
		return nil, err
	}
	if s.Models, err = f.model(); err != nil {
		return nil, err
	}
	if f.seen.object != "" {
		if f.live, err = f.seen.read(ctx); err != nil {
			return nil, err
		}
	}
	given, err := f.given()
	if err != nil {
		return nil, err
	}
	limits, err := f.limits(s.Models, given)
	if err != nil {
		return nil, err
	}
	if err := f.load(ctx, s); err != nil {
		return nil, err
	}
	for _, d := range f.startups {
		if d <= 0 {
			return nil, fmt.Errorf("--startup %v: want a positive time", d)
		}
		s.Startups = append(s.Startups, d.Seconds())
	}
	f.say(stderr, limits)
	if f.advise {
		return s, nil // it has contenders of its own
	}
	f.say(stderr, f.boundsNote(s, given))
	return s, f.contenders(s, given)
}

// oracles are the schedules that the policies are compared with.
func (f *backtestFlags) oracles() []backtest.Contender {
	if f.peers == "none" {
		return backtest.FewOracles()
	}
	return backtest.Oracles()
}

// load is what is replayed.
func (f *backtestFlags) load(ctx context.Context, s *backtest.Study) error {
	if f.history.url != "" {
		t, err := f.history.trace(ctx, time.Now())
		if err != nil {
			return err
		}
		s.Traces = append(s.Traces, t)
	}
	for _, path := range f.traces {
		t, err := backtest.Open(path)
		if err != nil {
			return err
		}
		s.Traces = append(s.Traces, t)
	}
	if f.live != nil {
		if err := f.fromCluster(s); err != nil {
			return err
		}
	}
	for i, t := range s.Traces { // results go by the name
		name := t.Name
		for n := 2; slices.ContainsFunc(s.Traces[:i], func(x *backtest.Trace) bool { return x.Name == t.Name }); n++ {
			t.Name = fmt.Sprintf("%s (%d)", name, n)
		}
	}
	return f.checkUntouched(s.Traces)
}

// fromCluster takes load and start-up from a workload of a cluster. What flags
// say goes before.
func (f *backtestFlags) fromCluster(s *backtest.Study) error {
	t, err := f.live.trace(&s.Models[0], f.history.prompt, f.history.output)
	if err != nil {
		return err
	}
	s.Traces = append(s.Traces, t)
	if !f.set("startup") && f.live.startup > 0 {
		f.startups = []time.Duration{f.live.startup}
	}
	return nil
}

func (f *backtestFlags) model() (out []backtest.Model, err error) {
	for _, name := range f.models {
		m, err := backtest.Preset(name)
		if err != nil {
			return nil, fmt.Errorf("--model: %w", err)
		}
		out = append(out, m)
	}
	return out, nil
}

func (f *backtestFlags) readPrices() (backtest.Prices, error) {
	if f.prices == "" {
		return nil, nil
	}
	file, err := os.Open(f.prices)
	if err != nil {
		return nil, fmt.Errorf("--prices: %w", err)
	}
	defer func() { _ = file.Close() }() // only read from
	return backtest.ReadPrices(f.prices, file)
}

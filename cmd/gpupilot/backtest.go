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
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/gpupilot/gpupilot/internal/replay/backtest"
	"github.com/gpupilot/gpupilot/internal/replay/migrate"
	"github.com/gpupilot/gpupilot/internal/replay/trace"
)

// backtestFlags are the flags of gpupilot backtest.
type backtestFlags struct {
	traces, policies, models, untouched []string
	peers, replicas, output, out        string
	prices, cache, calibration          string
	startups                            []time.Duration
	hours                               float64
	seeds, workers                      int
	quick, quiet                        bool
	patience                            time.Duration
	limits                              backtest.Limits
	prometheus                          trace.Prometheus
	controller                          controllerHistory
	advise                              bool
	migrate                             migrate.Options        // of HPAs and ScaledObjects
	given                               *givenContenders       // instead of policies; may be nil
	allowedPercent                      float64                // --slo
	isSet                               func(flag string) bool // given and not empty
}

// backtestCommand replays recorded load against policies and their peers.
func backtestCommand() *cobra.Command {
	var f backtestFlags
	cmd := &cobra.Command{
		Use:   "backtest --trace FILE… [--policy FILE]",
		Short: "Replay recorded load against a GPUAutoscaler, HPA, KEDA and Knative, and compare cost and missed limits",
		Long: `Replays recorded load on a simulated inference service: once with each GPUAutoscaler, and once with
each setting of a grid of HorizontalPodAutoscaler, KEDA and Knative settings. The best settings of the
grid, by missed latency limits and GPU-hours, form the front. A ratio below 1 means that the
GPUAutoscaler misses fewer limits than the front at the same GPU-hours.

Traces are CSV, plain or gzip. The header tells the format:
  t_ms,prompt_tokens,output_tokens                    single requests
  t_s,requests[,prompt_tokens,output_tokens]          counts
  t_s,rate_rps[,iat_cv_rate_weighted,…,gap]           windows
  client,t_s,rate_rps,iat_dist,p1,…                   windows of single clients
  t_s,count_in_5min                                   counts of five minutes`,
		Example: `  gpupilot backtest --trace requests.csv.gz --policy autoscaler.yaml
  gpupilot backtest --trace requests.csv.gz --policy my-hpa.yaml
  gpupilot backtest --trace a.csv --trace b.csv --startup 30s,240s --replicas 5:40 --seeds 5 -o html --out report.html`,
		RunE: func(cmd *cobra.Command, args []string) error {
			f.traces, f.isSet = append(f.traces, args...), func(flag string) bool {
				x := cmd.Flags().Lookup(flag)
				return x.Changed && x.Value.String() != ""
			}
			return f.run(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	f.register(cmd.Flags())
	return cmd
}

// register is the table of flags.
func (f *backtestFlags) register(fl *pflag.FlagSet) {
	fl.StringSliceVar(&f.traces, "trace", nil, "recorded load, a CSV file; may be repeated")
	fl.StringVar(&f.prometheus.URL, "prometheus", "", "replay your own load: the URL of a Prometheus, Thanos, Mimir or VictoriaMetrics")
	fl.StringVar(&f.prometheus.HTTPConfig, "prometheus-http-config", "", "file with Prometheus's http_client_config for it: credentials, TLS, headers such as a tenant's")
	fl.StringVar(&f.prometheus.Query, "query", "", "PromQL for the service's requests/s as one series, such as sum(rate(vllm:request_success_total[1m]))")
	fl.DurationVar(&f.prometheus.Length, "history", 14*24*time.Hour, "how far back --query and --from-cluster go")
	fl.DurationVar(&f.prometheus.Step, "history-step", time.Minute, "resolution of --query")
	fl.Float64Var(&f.prometheus.Prompt, "prompt-tokens", 0, "mean prompt tokens of --query's requests (default 1155)")
	fl.Float64Var(&f.prometheus.Output, "output-tokens", 0, "mean output tokens of --query's requests (default 211)")
	fl.StringVar(&f.controller.object, "from-cluster", "", "replay what the controller has recorded of a GPUAutoscaler, [NAMESPACE/]NAME, with its own policy and start-up time: one-minute means of up to 14 days, or with --history 10m each second")
	f.controller.controller.Flags(fl)
	f.controller.where.Flags(fl)
	fl.BoolVar(&f.advise, "advise", false, "try policies and print the best one as YAML, with reasons")
	fl.Float64Var(&f.allowedPercent, "slo", 1, "percentage of the requests that may miss a limit, for --advise")
	fl.StringSliceVar(&f.policies, "policy", nil, "GPUAutoscaler, HorizontalPodAutoscaler or ScaledObject as YAML; may be repeated. Without a GPUAutoscaler, the equivalents of the others are replayed beside them (default: three policies, on requests with a latency limit, on requests and on SM activity). Its minReplicas and maxReplicas apply to a load as recorded, not with --replicas")
	fl.StringVar(&f.peers, "peers", "all", "peers to compare with: all, none, or some of hpa,keda,kpa; llm adds 13 autoscalers for LLM servers, each with one setting, published adds 15 settings from guides (docs/backtest.md)")
	fl.DurationSliceVar(&f.startups, "startup", []time.Duration{2 * time.Minute}, "median start-up time of a replica; several are all replayed")
	fl.StringVar(&f.replicas, "replicas", "0", "scale the load to a peak of this many replicas: one number, or LOW:HIGH (LOW with the first seed, HIGH with the last or only one); 0: the load as recorded, within the policy's bounds")
	fl.IntVar(&f.seeds, "seeds", 5, "replays of each trace, with different random numbers")
	fl.Float64Var(&f.hours, "hours", 0, "replay a part of this many hours, chosen by the seed; 0: all")
	fl.StringSliceVar(&f.models, "model", []string{"llama-8b"}, "inference server: llama-8b, llama-8b-h100, llama-70b, llama-70b-bf16; several are all replayed")
	fl.StringVar(&f.calibration, "calibration", "", "file of gpupilot load server --calibrate: the SM activity of your server over its batch, instead of the assumed curve")
	fl.DurationVar(&f.limits.TTFT, "ttft", 0, "limit of the time to the first token (default: the policy's slo, else the model's)")
	fl.DurationVar(&f.limits.ITL, "itl", 0, "limit of the time between tokens (default: the policy's slo, else the model's)")
	fl.DurationVar(&f.patience, "patience", backtest.DefaultPatience*time.Second, "how long a client waits for its first token")
	fl.StringVar(&f.prices, "prices", "", "price list, a CSV with gpu_name and usd_per_gpu_hour; the lowest price of the model's GPU is used")
	fl.StringSliceVar(&f.untouched, "untouched", nil, "traces to summarise separately, by parts of their names")
	fl.BoolVar(&f.quick, "quick", false, quickHelp)
	fl.StringVar(&f.cache, "peers-cache", "", "file that caches the results of the peers and oracles between runs")
	fl.IntVar(&f.workers, "workers", min(runtime.NumCPU(), 8), "concurrent replays")
	fl.BoolVarP(&f.quiet, "quiet", "q", false, "print no progress, limits and bounds on standard error, and no table beside a file")
	fl.StringVarP(&f.output, "output", "o", "table", "table, json or html (default: by the extension of --out)")
	fl.StringVar(&f.out, "out", "", "file to write to (default: standard output); with json and html the table is printed as well")
}

// quickHelp is the help of --quick, with the sizes of the grids. A constant: to make the grids takes longer than to start
// any command.
const quickHelp = "a first look: 211 of the peers' settings instead of 4200. The gaps between them flatter the policies; publish nothing from it"

func (f *backtestFlags) run(ctx context.Context, stdout, stderr io.Writer) error {
	f.output, f.prometheus.UserAgent = f.format(), "gpupilot/"+version
	f.controller.controller.Named = f.isSet("controller")
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
		return f.runAdvise(ctx, study, stdout, stderr)
	}
	save, err := f.useCache(study)
	if err != nil {
		return err
	}
	cases, stopped := f.replay(ctx, study, stderr)
	stopped = errors.Join(stopped, save())
	if len(cases) == 0 {
		return stopped
	}
	report := backtest.NewReport(study, cases, f.untouched)
	report.Quick = f.quick && len(study.Peers) > 0
	report.Prices, report.Version, report.Time = prices, version, time.Now()
	return errors.Join(f.publish(stdout, report), stopped)
}

// useCache connects the study to --peers-cache. The returned function saves the cache.
func (f *backtestFlags) useCache(s *backtest.Study) (save func() error, err error) {
	if f.cache == "" {
		return func() error { return nil }, nil
	}
	cache, err := backtest.OpenPeerCache(f.cache)
	if err != nil {
		return nil, fmt.Errorf("--peers-cache: %w", err)
	}
	s.LoadCached, s.StoreCached = cache.Get, cache.Put
	return func() error {
		if err := cache.Save(); err != nil {
			return fmt.Errorf("--peers-cache: %w", err)
		}
		return nil
	}, nil
}

// runAdvise prints a recommended policy.
func (f *backtestFlags) runAdvise(ctx context.Context, s *backtest.Study, stdout, stderr io.Writer) error {
	if f.output != "table" || f.out != "" {
		return errors.New("--advise prints YAML: leave out -o and --out")
	}
	search, err := backtest.NewSearch(s, f.allowedPercent)
	if err != nil {
		return err
	}
	cases, stopped := f.replay(ctx, s, stderr)
	if len(cases) == 0 {
		return stopped
	}
	text, err := search.Recommend(cases)
	if err != nil {
		return err
	}
	_, err = stdout.Write(text)
	return errors.Join(err, stopped)
}

// replay runs the study. If it is interrupted, it returns the complete replays with the
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
	notes, infeasible := backtest.InfeasibleNotes(cases, s.Models)
	if infeasible != nil {
		return nil, errors.Join(infeasible, err)
	}
	for _, note := range notes { // also with --quiet: they change the meaning of the results
		fmt.Fprintln(stderr, note)
	}
	return cases, err
}

// printNotes prints notes unless --quiet is set.
func (f *backtestFlags) printNotes(stderr io.Writer, notes ...string) {
	if f.quiet {
		return
	}
	for _, note := range notes {
		fmt.Fprintln(stderr, note)
	}
}

// publish writes the report. If it goes to a file in another format, publish also prints
// the table.
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

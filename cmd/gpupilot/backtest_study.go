// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/gpupilot/gpupilot/internal/replay/backtest"
	"github.com/gpupilot/gpupilot/internal/replay/contender"
	"github.com/gpupilot/gpupilot/internal/replay/migrate"
	"github.com/gpupilot/gpupilot/internal/replay/service"
	"github.com/gpupilot/gpupilot/internal/replay/trace"
	"github.com/gpupilot/gpupilot/internal/scale/policy"
)

// study returns the study that the flags describe. It prints the limits and bounds that it
// uses.
func (f *backtestFlags) study(ctx context.Context, stderr io.Writer) (*backtest.Study, error) {
	s := &backtest.Study{
		Seeds: f.seeds, Hours: f.hours, Patience: f.patience.Seconds(), Workers: f.workers, KeepMinutes: f.output != "table",
	}
	var err error
	if s.Low, s.High, err = replicaRange(f.replicas); err != nil {
		return nil, err
	}
	if s.Models, err = f.readModels(); err != nil {
		return nil, err
	}
	recorded, err := f.readController(ctx)
	if err != nil {
		return nil, err
	}
	policies, given, err := f.readPolicies(recorded)
	if err != nil {
		return nil, err
	}
	limits, err := f.limits.Apply(s.Models, policies)
	if err != nil {
		return nil, err
	}
	if err := f.addTraces(ctx, s, recorded); err != nil {
		return nil, err
	}
	if s.Startups, err = f.readStartups(recorded); err != nil {
		return nil, err
	}
	f.printNotes(stderr, limits...)
	if recorded != nil {
		f.printNotes(stderr, recorded.history.Note())
	}
	if f.advise {
		return s, nil // package advise sets the policies
	}
	if s.High > 0 && len(policies) > 0 {
		f.printNotes(stderr, f.boundsNote(policies))
	}
	grid := contender.FullGrid()
	if f.quick {
		grid = contender.QuickGrid()
	}
	return s, s.SetContenders(policies, given, f.peers, grid)
}

func (f *backtestFlags) readModels() (out []service.Model, err error) {
	curve, err := backtest.ReadCurve(f.calibration)
	if err != nil {
		return nil, err
	}
	for _, name := range f.models {
		m, err := service.Preset(name)
		if err != nil {
			return nil, fmt.Errorf("--model: %w", err)
		}
		m.SMActivity = curve
		out = append(out, m)
	}
	return out, nil
}

// readController reads the workload of --from-cluster; nil without the flag.
func (f *backtestFlags) readController(ctx context.Context) (*recordedWorkload, error) {
	if f.controller.object == "" {
		return nil, nil
	}
	f.controller.length = f.prometheus.Length
	return f.controller.read(ctx)
}

// givenContenders are an object and its equivalent.
type givenContenders struct {
	original   contender.Entry
	equivalent policy.Named
}

// readPolicies reads the policies of the cluster and of the files, in the order of the
// command line. Each gets a unique name. given are the HPAs and ScaledObjects of the files.
// Without a GPUAutoscaler, their equivalents are the policies.
func (f *backtestFlags) readPolicies(recorded *recordedWorkload) (out []policy.Named, given []contender.Entry, err error) {
	if g := f.given; g != nil {
		return []policy.Named{g.equivalent}, []contender.Entry{g.original}, nil
	}
	in := migrate.Files{Options: f.migrate}
	if recorded != nil {
		if err := in.Add(f.controller.object, recorded.object); err != nil {
			return nil, nil, err
		}
	}
	for i, path := range f.policies {
		if slices.Contains(f.policies[:i], path) {
			continue
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return nil, nil, fmt.Errorf("--policy: %w", err)
		}
		if err := in.Add(path, text); err != nil {
			return nil, nil, err
		}
	}
	return in.Contenders()
}

// addTraces adds the traces of --prometheus, --trace and --from-cluster.
func (f *backtestFlags) addTraces(ctx context.Context, s *backtest.Study, recorded *recordedWorkload) error {
	if f.prometheus.URL != "" {
		t, err := f.prometheus.Read(ctx, time.Now())
		if err != nil {
			return err
		}
		s.AddTrace(t)
	}
	for _, path := range f.traces {
		t, err := trace.Open(path)
		if err != nil {
			return err
		}
		s.AddTrace(t)
	}
	if recorded != nil {
		t, err := recorded.history.Trace(&s.Models[0], f.prometheus.Prompt, f.prometheus.Output)
		if err != nil {
			return err
		}
		s.AddTrace(t)
	}
	return f.checkUntouched(s.Traces)
}

// readStartups returns the start-up times in seconds. Without --startup, that of
// --from-cluster is used.
func (f *backtestFlags) readStartups(recorded *recordedWorkload) (out []float64, err error) {
	startups := f.startups
	if recorded != nil && !f.isSet("startup") && recorded.startup > 0 {
		startups = []time.Duration{recorded.startup}
	}
	for _, d := range startups {
		if d <= 0 {
			return nil, fmt.Errorf("--startup %v: want a positive time", d)
		}
		out = append(out, d.Seconds())
	}
	return out, nil
}

// boundsNote says that the policies' bounds are not applied to a scaled load.
func (f *backtestFlags) boundsNote(policies []policy.Named) string {
	var bounds []string
	for i := range policies {
		p := &policies[i]
		bounds = append(bounds, fmt.Sprintf("%s's %d to %d", p.Name, p.Policy.Min, p.Policy.Max))
	}
	return fmt.Sprintf("minReplicas and maxReplicas (%s) are not applied: --replicas %s scales the load; 0 replays it as recorded, within them",
		strings.Join(bounds, ", "), f.replicas)
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

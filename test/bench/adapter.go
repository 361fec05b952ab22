// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	k8slabels "k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/gpupilot/gpupilot/internal/base/fair"
	"github.com/gpupilot/gpupilot/internal/promql/adapter"
	"github.com/gpupilot/gpupilot/internal/promql/engine"
	"github.com/gpupilot/gpupilot/test/agentrig"
)

// The load of an adapter's file: each metric is read for all pods once per sync period of
// a HorizontalPodAutoscaler.
const (
	adapterRules  = 50
	adapterNodes  = 625 // of 8 pods
	adapterPeriod = 15 * time.Second
	adapterFor    = 2 * adapterPeriod

	barAdapterCPU = 0.1 // cores, on the reference machine
	barAdapterRSS = 300 // MB, of 10⁶ bytes
)

// benchAdapter measures a process that serves the rules of an adapter's file from the
// windows: without the scraper and the API server's library.
func benchAdapter(ctx context.Context, _ config, out io.Writer) ([]Row, error) {
	fmt.Fprintf(out, "adapter: %d rules over %d pods, for %v\n", adapterRules, adapterNodes*8, adapterFor)
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, self, "-serve-adapter")
	cmd.Stderr = os.Stderr
	b, err := cmd.Output()
	if err != nil {
		return nil, err
	}
	var rows []Row
	return rows, json.Unmarshal(b, &rows)
}

// serveAdapter is the process of benchAdapter. It writes its rows as JSON.
func serveAdapter(ctx context.Context, out io.Writer) error {
	f, err := newPromFleet(adapterNodes, 1)
	if err != nil {
		return err
	}
	s := adapter.New(adapter.ServerConfig{}, adapter.Deps{Backend: adapterBackend(f), Log: slog.New(slog.DiscardHandler)})
	if err := s.Load([]byte(adapterFile())); err != nil {
		return err
	}
	s.Discover(ctx)
	o := &adapter.Objects{Resource: schema.GroupResource{Resource: "pods"}, Namespace: "team-00", Names: f.names, Selector: k8slabels.Everything()}
	before, err := agentrig.CPU(os.Getpid())
	if err != nil {
		return err
	}
	began := time.Now()
	ticker := time.NewTicker(adapterPeriod / adapterRules)
	defer ticker.Stop()
	for i := 0; time.Since(began) < adapterFor; i++ {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ticker.C:
		}
		values, err := s.Values(ctx, fmt.Sprintf("busy_%d", i%adapterRules), o, f.now)
		if err == nil && len(values) != len(f.names) {
			err = fmt.Errorf("%d values for %d pods", len(values), len(f.names))
		}
		if err != nil {
			return err
		}
	}
	took := time.Since(began)
	after, err := agentrig.CPU(os.Getpid())
	rss, rssErr := agentrig.RSS(os.Getpid())
	if err := errors.Join(err, rssErr); err != nil {
		return err
	}
	name := fmt.Sprintf("adapter file, %d rules over %d pods, each read every %v: ", adapterRules, len(f.names), adapterPeriod)
	return json.NewEncoder(out).Encode([]Row{
		calibrated(name+"CPU", (after-before).Seconds()/took.Seconds(), "cores", barAdapterCPU),
		atMost(name+"RSS", float64(rss)/1e6, "MB", barAdapterRSS),
	})
}

// adapterFile returns a file whose rules have different queries.
func adapterFile() string {
	var b strings.Builder
	b.WriteString("rules:\n")
	for i := range adapterRules {
		fmt.Fprintf(&b, "- seriesQuery: 'DCGM_FI_DEV_GPU_UTIL{namespace!=\"\",pod!=\"\"}'\n  resources: {template: <<.Resource>>}\n  name: {as: busy_%d}\n"+
			"  metricsQuery: 'avg(<<.Series>>{<<.LabelMatchers>>}) by (<<.GroupBy>>) + %d'\n", i, i)
	}
	return b.String()
}

// adapterBackend are the functions that read the fleet's windows.
func adapterBackend(f *promFleet) adapter.Backend {
	e := f.engine()
	q := engine.Query{Payer: fair.Namespace("adapter rules"), Reserved: true}
	return adapter.Backend{
		Series: func(ctx context.Context, _ []*labels.Matcher, yield func(labels.Labels) bool) error {
			all, _, err := e.Series(ctx, q, engine.Selection{Match: []string{`DCGM_FI_DEV_GPU_UTIL{pod!=""}`}, From: f.now.Add(-time.Minute), To: f.now})
			for _, set := range all {
				if !yield(set) {
					break
				}
			}
			return err
		},
		Query: func(ctx context.Context, text string, _ time.Time) ([]adapter.Sample, error) {
			q := q
			q.PromQL = text
			v, _, err := e.Instant(ctx, q, f.now)
			if err != nil {
				return nil, err
			}
			vector, ok := v.(promql.Vector)
			if !ok {
				return nil, fmt.Errorf("%s: a %s", text, v.Type())
			}
			out := make([]adapter.Sample, len(vector))
			for i, s := range vector {
				out[i] = adapter.Sample{Labels: s.Metric, Value: s.F, At: time.UnixMilli(s.T)}
			}
			return out, nil
		},
	}
}

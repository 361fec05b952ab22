// SPDX-License-Identifier: Apache-2.0

// Package demo replays an hour of a chat service, live, on a simulated inference service:
// GPUPilot with an objective beside what people run today. It needs no cluster.
package demo

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/gpupilot/gpupilot/internal/gpu/price"
	"github.com/gpupilot/gpupilot/internal/replay/backtest"
	"github.com/gpupilot/gpupilot/internal/replay/contender"
	"github.com/gpupilot/gpupilot/internal/replay/service"
	"github.com/gpupilot/gpupilot/internal/scale"
	"github.com/gpupilot/gpupilot/internal/scale/peers"
	"github.com/gpupilot/gpupilot/internal/scale/policy"
)

// Config holds the settings of a demo.
type Config struct {
	Load   Load
	Seed   uint64
	Prices price.Table
}

// The service: what it promises, and how large it is.
const (
	objective    = 0.99
	firstLimit   = 2.0   // seconds until the first token
	tokenLimit   = 0.025 // mean seconds between the tokens of a request
	peakReplicas = 6     // that the load needs at its peak
	mostReplicas = 12
	startMedian  = 120 // seconds until a replica serves
	pointSeconds = 10  // between the points of the chart
	mostChanges  = 200 // that are kept
)

// object is the GPUAutoscaler of the demo, as a user writes it.
const object = `apiVersion: gpupilot.dev/v1alpha1
kind: GPUAutoscaler
metadata: {name: chat, namespace: llm}
spec:
  scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: chat}
  minReplicas: 1
  maxReplicas: 12
  signals:
  - preset: vllm
    slo: {objective: "99%", timeToFirstToken: 2s, interTokenLatency: 25ms}
`

// contestant is an autoscaler of the demo.
type contestant struct {
	name, how string
	entry     contender.Entry
}

// contestants returns GPUPilot, and what people run today with the defaults of its parts.
func contestants() ([]contestant, error) {
	policies, err := policy.Parse("the demo's GPUAutoscaler", []byte(object))
	if err != nil {
		return nil, err
	}
	lags := contender.DefaultLags()
	return []contestant{
		{
			"GPUPilot", "99 % of the requests within 2 s and 25 ms",
			contender.NewOurs("gpupilot", policies[0].Compiled),
		},
		{
			"HPA on GPU utilisation", "dcgm-exporter 30 s → Prometheus 15 s → rule 30 s → adapter → HPA 15 s, target 80 %",
			contender.NewHPA(contender.HPASettings{
				Kind: peers.ObjectValue, Signal: service.GPUUtil, Target: 80, Window: 300, Tolerance: 0.1, Lag: lags.GPURule,
			}),
		},
		{
			"KEDA on waiting requests", "vLLM → Prometheus 30 s → KEDA → HPA 15 s, 5 waiting requests per replica",
			contender.NewHPA(contender.HPASettings{
				Kind: peers.ExternalAverage, Signal: service.Waiting, Target: 5, Window: 300, Tolerance: 0.1, Lag: lags.Pod,
			}),
		},
	}, nil
}

// Demo is a replay under way. Its methods may be called concurrently with Run.
type Demo struct {
	cfg         Config
	contestants []contestant
	live        *backtest.Live
	price       float64 // USD of a GPU-hour; 0: not known

	mu      sync.Mutex
	second  int
	done    bool
	points  []Point
	changes []Change // oldest first
	last    scale.Decision
}

// New prepares a demo.
func New(cfg Config) (*Demo, error) {
	model, err := service.Preset("llama-8b")
	if err != nil {
		return nil, err
	}
	model.TTFTLimit, model.ITLLimit = firstLimit, tokenLimit
	load, err := cfg.Load.trace(cfg.Seed)
	if err != nil {
		return nil, err
	}
	d := &Demo{cfg: cfg}
	d.price, _ = cfg.Prices.Of("", model.GPU)
	if d.contestants, err = contestants(); err != nil {
		return nil, err
	}
	entries := make([]contender.Entry, len(d.contestants))
	for i := range entries {
		entries[i] = d.contestants[i].entry
	}
	d.live, err = backtest.NewLive(backtest.Config{
		Trace: load, Model: model, From: dayMinutes * 60, Seconds: hourMinutes * 60, Past: dayMinutes * 60,
		Peak: peakReplicas, Min: 1, Max: mostReplicas, Seed: cfg.Seed, Warmup: 1,
		Startup: service.Startup{Median: startMedian, Sigma: 0.25},
	}, entries)
	if err != nil {
		return nil, err
	}
	d.record()
	return d, nil
}

// Run replays the hour at a speed, in seconds of the replay per second; 0: as fast as it
// can. progress, if it is not nil, is called after each minute of the replay.
func (d *Demo) Run(ctx context.Context, speed float64, progress func(*State)) error {
	start := time.Now()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for minute := 0; ; {
		to := d.live.Seconds()
		if speed > 0 {
			to = min(to, int(time.Since(start).Seconds()*speed))
		}
		for !d.advance(to) {
			if ctx.Err() != nil {
				return fmt.Errorf("the demo: %w", context.Cause(ctx))
			}
			if s := d.State(0); progress != nil && s.Second/60 > minute {
				minute = s.Second / 60
				progress(s)
			}
		}
		if d.State(0).Done {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the demo: %w", context.Cause(ctx))
		case <-tick.C:
		}
	}
}

// advance simulates one second, if that is not after to. It reports whether there is
// nothing more to simulate.
func (d *Demo) advance(to int) (reached bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.second >= to {
		return true
	}
	d.second++
	d.live.Advance(d.second)
	d.record()
	d.done = d.second >= d.live.Seconds()
	return d.done
}

// record keeps what the page shows.
func (d *Demo) record() {
	if dec, ok := d.live.Decision(0); ok {
		if dec.Changes() {
			d.changes = append(d.changes, changeOf(d.second, &dec))
			d.changes = d.changes[max(0, len(d.changes)-mostChanges):]
		}
		d.last = dec
	}
	if d.second%pointSeconds != 0 {
		return
	}
	p := Point{Second: d.second, Need: d.live.Need(d.second)}
	for i := range d.contestants {
		s := d.live.Service(i)
		ended, missed, _ := s.Tally()
		p.Replicas, p.Serving = append(p.Replicas, s.Replicas()), append(p.Serving, s.Ready())
		p.Missed = append(p.Missed, percentOf(missed, ended))
	}
	d.points = append(d.points, p)
}

// State returns what the page shows, with the points from a second on.
func (d *Demo) State(from int) *State {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := &State{
		Load: d.cfg.Load.Name, About: d.cfg.Load.About, Start: int(d.cfg.Load.start * 3600), Second: d.second, Seconds: d.live.Seconds(), Done: d.done,
		Objective: 100 * objective, Price: d.price, Need: d.live.Need(d.second), Object: object, Points: []Point{},
	}
	i, _ := slices.BinarySearchFunc(d.points, from, func(p Point, at int) int { return p.Second - at })
	s.Points = append(s.Points, d.points[i:]...)
	for i := range d.contestants {
		s.Contestants = append(s.Contestants, d.contestant(i))
	}
	s.Changes = slices.Clone(d.changes)
	for _, step := range d.last.Steps {
		s.Steps = append(s.Steps, string(step.Rule)+": "+step.Sentence())
	}
	return s
}

func (d *Demo) contestant(i int) Contestant {
	svc := d.live.Service(i)
	_, starting := svc.Live()
	out := Contestant{
		Name: d.contestants[i].name, How: d.contestants[i].how,
		Replicas: svc.Replicas(), Serving: svc.Ready(), Starting: starting,
	}
	out.Ended, out.Missed, out.GPUHours = svc.Tally()
	out.MissedPercent = percentOf(out.Missed, out.Ended)
	out.Kept = out.MissedPercent <= 100*(1-objective)+1e-9
	if d.price > 0 {
		cost := out.GPUHours * d.price
		out.Cost = &cost
	}
	return out
}

func percentOf(part, all int) float64 {
	if all == 0 {
		return 0
	}
	return 100 * float64(part) / float64(all)
}

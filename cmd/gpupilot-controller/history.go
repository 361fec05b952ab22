// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/gpupilot/gpupilot/internal/autoscaler/controller"
	"github.com/gpupilot/gpupilot/internal/promql/client"
	"github.com/gpupilot/gpupilot/internal/window/history"
	"github.com/gpupilot/gpupilot/internal/window/usage"
	"github.com/gpupilot/gpupilot/internal/window/view"
)

// historyPerByte is the limit of --history-dir per byte of --history-memory. A segment is
// about as large as the memory of its rows.
const historyPerByte = 2

// historyKeeper keeps the one-minute aggregates of workloads.
type historyKeeper struct {
	store    *history.Store
	volume   *history.Volume // nil: none
	recorder *history.Recorder
	failed   bool          // --history-dir cannot be used
	pause    time.Duration // between two queries of Prometheus; 0: the default
}

// makeHistory makes the history, and takes its place on the volume. A volume that cannot
// be used is an error in the log and on /metrics: it must not stop the scaling.
func (p *program) makeHistory() {
	q := resource.MustParse(p.cfg.historyMemory) // was validated
	h := &historyKeeper{store: history.New(history.Config{MaxBytes: q.Value()})}
	if p.cfg.historyDir != "" {
		v, err := history.OpenVolume(history.VolumeConfig{Dir: p.cfg.historyDir, MaxBytes: historyPerByte * q.Value(), Log: p.log})
		if err != nil {
			h.failed = true
			p.log.Error("--history-dir cannot be used: the history is in memory only", "history-dir", p.cfg.historyDir, "err", err)
		} else {
			h.volume = v
		}
	}
	h.recorder = history.NewRecorder(h.store, h.volume, p.log)
	p.history = h
	p.registry.MustRegister(h)
}

// keepHistory reads the history of earlier programs, and records minutes. It releases the
// volume when ctx is done.
func (p *program) keepHistory(ctx context.Context) {
	h := p.history
	p.readVolume()
	var recording sync.WaitGroup
	recording.Go(func() { h.recorder.Run(ctx) })
	if p.cfg.prometheus != "" && h.store.Stats().Rows == 0 {
		p.backfillHistory(ctx)
	}
	recording.Wait()
	if h.volume != nil {
		if err := h.volume.Close(); err != nil {
			p.log.Warn("the history's volume cannot be closed", "err", err)
		}
	}
}

// readVolume reads the history of earlier programs from the volume. Minutes before that are
// not recorded, because the minutes of a workload are stored in their order.
func (p *program) readVolume() {
	h, begin := p.history, time.Now()
	if h.volume != nil {
		l := h.volume.Load(h.store, begin)
		p.log.Info("read the history from the volume", "dir", h.volume.Dir(), "segments", l.Segments, "rows", l.Rows, "damaged", l.Damaged, "took", time.Since(begin))
	}
}

// recorded are the metrics of which the history keeps minutes.
func recorded() []history.Family {
	return slices.Concat(controller.Recorded(), usage.Recorded())
}

// pageSource is the controller with the minutes of its history.
type pageSource struct {
	*controller.Controller
	minutes *history.Store
}

func (p *program) pageSource() pageSource { return pageSource{p.control, p.history.store} }

// Minutes implements webui.Source.
func (s pageSource) Minutes(namespace, name string, q *view.MinuteQuery) (view.Minutes, bool, error) {
	m, known, err := view.ReadMinutes(s.minutes, history.Workload{Namespace: namespace, Kind: q.Kind, Name: name}, q)
	if !known && q.Kind == history.KindAutoscaler {
		_, known = s.History(namespace, name)
	}
	return m, known, err
}

// The limits of reading the history from Prometheus.
const (
	backfillTimeout = time.Minute // of one query
	backfillAnswer  = 8 << 20     // bytes
)

// backfillHistory reads the history from Prometheus.
func (p *program) backfillHistory(ctx context.Context) {
	client, err := client.New(client.Config{
		URL: p.cfg.prometheus, HTTPConfig: p.cfg.prometheusHTTP, Timeout: backfillTimeout, MaxAnswer: backfillAnswer,
		UserAgent: "gpupilot-controller/" + version,
	})
	if err != nil {
		return // querier has returned the error
	}
	now := time.Now()
	oldest, err := history.Backfill(ctx, history.BackfillConfig{
		Families: recorded(), Store: p.history.store, Pause: p.history.pause,
		Query: func(ctx context.Context, query string, from, to time.Time) ([]history.Recorded, error) {
			return backfillQuery(ctx, client, query, from, to)
		},
	}, now)
	switch {
	case ctx.Err() != nil:
	case err != nil:
		p.log.Warn("the history before the start is incomplete", "since", oldest, "err", err)
	default:
		p.log.Info("read the history from Prometheus", "since", oldest, "rows", p.history.store.Stats().Rows, "took", time.Since(now))
	}
}

// backfillQuery evaluates a query each minute.
func backfillQuery(ctx context.Context, backend *client.Client, query string, from, to time.Time) ([]history.Recorded, error) {
	found, err := backend.Matrix(ctx, query, from, to, time.Minute)
	if client.IsTooMuch(err) {
		return nil, fmt.Errorf("%w: %w", history.ErrTooLong, err)
	}
	if err != nil {
		return nil, err
	}
	out := make([]history.Recorded, 0, len(found))
	for _, s := range found {
		r := history.Recorded{Labels: s.Labels, Points: make([]history.Point, 0, len(s.Samples))}
		for _, x := range s.Samples {
			r.Points = append(r.Points, history.Point{At: x.At, Value: x.Value})
		}
		out = append(out, r)
	}
	return out, nil
}

// maxNamed bounds how many namespaces are named on /metrics.
const maxNamed = 20

// Describe sends nothing, which makes this an unchecked collector.
func (h *historyKeeper) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (h *historyKeeper) Collect(ch chan<- prometheus.Metric) {
	to := sink(ch)
	s := h.store.Stats()
	to.gauge("gpupilot_history_workloads", "Workloads with one-minute aggregates in memory.", float64(s.Workloads))
	to.gauge("gpupilot_history_memory_bytes", "Memory that the one-minute aggregates take.", float64(s.Bytes))
	to.gauge("gpupilot_history_memory_limit_bytes", "Limit of that memory (--history-memory).", float64(s.Limit))
	to.counter("gpupilot_history_rows_total", "Minutes of workloads that were added, those that were read at the start included.", float64(s.Rows))
	to.counter("gpupilot_history_evicted_rows_total", "Minutes of workloads that were dropped because of the memory limit, before they were 14 days old.", float64(s.EvictedRows))
	to.counter("gpupilot_history_refused_values_total", "Values that were left out because their workload has too many metrics.", float64(s.RefusedMetrics))
	limited := h.store.Limited()
	for i := range limited[:min(len(limited), maxNamed)] {
		x := &limited[i]
		to.counter("gpupilot_history_namespace_evicted_rows_total", "Minutes of workloads that the memory limit cost a namespace; of the 20 largest.", float64(x.Evicted), "namespace", x.Namespace)
	}
	if h.volume == nil && !h.failed {
		return
	}
	var v history.VolumeStats // of no volume: not up
	if h.volume != nil {
		v = h.volume.Stats()
	}
	up := 0.0
	if v.Healthy {
		up = 1
	}
	to.gauge("gpupilot_history_volume_up", "Whether the last write to --history-dir succeeded.", up)
	to.gauge("gpupilot_history_volume_bytes", "Bytes of this replica's segments on the volume.", float64(v.Bytes))
	to.gauge("gpupilot_history_volume_limit_bytes", "Limit of these bytes: twice --history-memory.", float64(v.Limit))
	to.counter("gpupilot_history_volume_writes_total", "Writes to the volume, one a minute, by result.", float64(v.Writes), "result", "success")
	to.counter("gpupilot_history_volume_writes_total", "Writes to the volume, one a minute, by result.", float64(v.Failures), "result", "error")
	to.counter("gpupilot_history_damaged_segments_total", "Segments on the volume whose end could not be read at the start.", float64(v.Damaged))
}

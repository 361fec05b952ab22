// SPDX-License-Identifier: Apache-2.0

// Package backfill keeps the history of workloads from one program to the next: on a
// volume, or by reading it back from the Prometheus that scrapes the controller.
package backfill

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/gpupilot/gpupilot/internal/promql/client"
	"github.com/gpupilot/gpupilot/internal/window/history"
)

// historyPerByte is the limit of --history-dir per byte of --history-memory. A segment is
// about as large as the memory of its rows.
const historyPerByte = 2

// Config holds the settings of a Keeper.
type Config struct {
	MaxBytes int64            // of the history in memory
	Dir      string           // of the volume; empty: none
	Families []history.Family // the metrics that are read from Backend
	Backend  *client.Client   // with Timeout and MaxAnswer; nil: none
	Log      *slog.Logger
}

// Keeper keeps the one-minute aggregates of workloads.
type Keeper struct {
	Store    *history.Store
	Recorder *history.Recorder

	cfg    Config
	volume *history.Volume // nil: none
	failed bool            // the volume cannot be used
	pause  time.Duration   // between two queries of Backend; 0: the default
}

// New makes the history, and takes its place on the volume. A volume that cannot be used
// is an error in the log and on /metrics: it must not stop the scaling.
func New(cfg Config) *Keeper {
	k := &Keeper{cfg: cfg, Store: history.New(history.Config{MaxBytes: cfg.MaxBytes})}
	if cfg.Dir != "" {
		v, err := history.OpenVolume(history.VolumeConfig{Dir: cfg.Dir, MaxBytes: historyPerByte * cfg.MaxBytes, Log: cfg.Log})
		if err != nil {
			k.failed = true
			cfg.Log.Error("--history-dir cannot be used: the history is in memory only", "history-dir", cfg.Dir, "err", err)
		} else {
			k.volume = v
		}
	}
	k.Recorder = history.NewRecorder(k.Store, k.volume, cfg.Log)
	return k
}

// Run reads the history of earlier programs, and records minutes. It releases the volume
// when ctx is done.
func (k *Keeper) Run(ctx context.Context) {
	k.readVolume()
	var recording sync.WaitGroup
	recording.Go(func() { k.Recorder.Run(ctx) })
	if k.cfg.Backend != nil && k.Store.Stats().Rows == 0 {
		k.backfill(ctx)
	}
	recording.Wait()
	if k.volume != nil {
		if err := k.volume.Close(); err != nil {
			k.cfg.Log.Warn("the history's volume cannot be closed", "err", err)
		}
	}
}

// readVolume reads the history of earlier programs from the volume. Minutes before that are
// not recorded, because the minutes of a workload are stored in their order.
func (k *Keeper) readVolume() {
	begin := time.Now()
	if k.volume != nil {
		l := k.volume.Load(k.Store, begin)
		k.cfg.Log.Info("read the history from the volume", "dir", k.volume.Dir(), "segments", l.Segments, "rows", l.Rows, "damaged", l.Damaged, "took", time.Since(begin))
	}
}

// The limits of the client that reads the history.
const (
	Timeout   = time.Minute // of one query
	MaxAnswer = 8 << 20     // bytes
)

// backfill reads the history from Prometheus.
func (k *Keeper) backfill(ctx context.Context) {
	now := time.Now()
	oldest, err := history.Backfill(ctx, history.BackfillConfig{
		Families: k.cfg.Families, Store: k.Store, Pause: k.pause,
		Query: func(ctx context.Context, query string, from, to time.Time) ([]history.Recorded, error) {
			return minutesOf(ctx, k.cfg.Backend, query, from, to)
		},
	}, now)
	switch {
	case ctx.Err() != nil:
	case err != nil:
		k.cfg.Log.Warn("the history before the start is incomplete", "since", oldest, "err", err)
	default:
		k.cfg.Log.Info("read the history from Prometheus", "since", oldest, "rows", k.Store.Stats().Rows, "took", time.Since(now))
	}
}

// minutesOf evaluates a query each minute.
func minutesOf(ctx context.Context, backend *client.Client, query string, from, to time.Time) ([]history.Recorded, error) {
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

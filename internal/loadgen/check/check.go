// SPDX-License-Identifier: Apache-2.0

// Package check asks sources of GPU metrics while a load runs, and says which of them are right.
package check

import (
	"context"
	"errors"
	"io"
	"math"
	"strings"
	"sync"
	"time"

	"github.com/gpupilot/gpupilot/internal/base/excerpt"
	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/loadgen/load"
	"github.com/gpupilot/gpupilot/internal/loadgen/verdict"
)

// Source has current values of GPUs. An answer without a wanted value is no error.
type Source interface {
	Name() string
	Read(ctx context.Context, want func(gpu.FieldID) bool) (Values, error)
}

// Key names a value.
type Key struct {
	UUID  string
	Field gpu.FieldID
}

// Values are values in the units of the Field table.
type Values map[Key]float64

// Limits of what is kept of a source.
const (
	MaxGPUs    = 256
	maxUUID    = 100          // bytes; longer ones are left out
	maxKeys    = 16 * MaxGPUs // of one answer, and of all
	maxAnswers = 86_400       // a day of seconds
	maxPoints  = 2_000_000    // values of all answers: 8 GPUs for more than a day, 32 MB
)

// every is the time between two questions to a source.
const every = time.Second

// Result is the verdict on one source for one load on one GPU.
type Result struct {
	Source   string `json:"source"`
	Sequence int    `json:"sequence"`
	Load     string `json:"load"`
	GPU      string `json:"gpu"`              // UUID
	Field    string `json:"field"`            // that was compared
	Failed   int    `json:"failed,omitempty"` // questions without an answer
	verdict.Verdict
}

// Check compares. Start it before the load.
type Check struct {
	watches   []*watch
	tolerance float64

	mu    sync.Mutex
	steps []load.Step
}

// New returns a check. The tolerance is a share of the whole load; 0: the defaults of package verdict.
func New(sources []Source, tolerance float64) *Check {
	c := &Check{tolerance: tolerance}
	for _, s := range sources {
		c.watches = append(c.watches, &watch{source: s, values: map[Key][]point{}})
	}
	return c
}

// Watch asks the sources for the fields of the sequences until stop is called, which waits for the last answers.
func (c *Check) Watch(ctx context.Context, sequences []load.Sequence) (stop func()) {
	fields := map[gpu.FieldID]bool{}
	for _, q := range sequences {
		for _, name := range q.Kinds {
			k, _ := load.KindOf(name)
			fields[k.Field] = true
		}
	}
	fields[gpu.GPUUtil] = fields[gpu.GREngineActive]
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	for _, w := range c.watches {
		running.Go(func() { w.run(ctx, func(f gpu.FieldID) bool { return fields[f] }) })
	}
	return func() {
		cancel()
		running.Wait()
		for _, w := range c.watches {
			Close(w.source)
		}
	}
}

// Close ends what a source has started.
func Close(s Source) {
	if closer, ok := s.(io.Closer); ok {
		_ = closer.Close() // the load has ended; nothing depends on it
	}
}

// Step takes a step of the load.
func (c *Check) Step(s load.Step) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.steps = append(c.steps, s)
}

// watch is a source and what it answered.
type watch struct {
	source Source

	mu      sync.Mutex
	answers []time.Time
	values  map[Key][]point
	points  int
	failed  int
	err     error // the last one
}

// point is a value of an answer.
type point struct {
	answer int32 // index
	value  float64
}

func (w *watch) run(ctx context.Context, want func(gpu.FieldID) bool) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		w.ask(ctx, want)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// ask asks a source once. The value was shown when the question was sent, at the latest.
func (w *watch) ask(ctx context.Context, want func(gpu.FieldID) bool) {
	at := time.Now()
	values, err := w.source.Read(ctx, want)
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case ctx.Err() != nil, len(w.answers) >= maxAnswers, w.points >= maxPoints: // a part of an answer looks like a missing value
	case err != nil && !errors.Is(err, errNoValues):
		w.failed++
		w.err = err
	default:
		w.keep(at, values)
	}
}

// keep keeps an answer.
func (w *watch) keep(at time.Time, values Values) {
	index := int32(len(w.answers))
	w.answers = append(w.answers, at)
	for key, v := range values {
		list, known := w.values[key]
		if !known && (len(w.values) >= maxKeys || len(key.UUID) > maxUUID) {
			continue
		}
		if !known {
			key.UUID = strings.Clone(key.UUID) // it may be a part of a page
		}
		w.values[key] = append(list, point{index, v})
		w.points++
	}
}

// has reports whether the source ever had a value of the field.
func (w *watch) has(field gpu.FieldID) bool {
	for key := range w.values {
		if key.Field == field {
			return true
		}
	}
	return false
}

// samples are the answers of a time, with the values of a key times a factor; NaN where there is none.
func (w *watch) samples(key Key, factor float64, from, to time.Time) (out []verdict.Sample) {
	values := w.values[key]
	for i, at := range w.answers {
		s := verdict.Sample{At: at, Value: math.NaN()}
		if len(values) > 0 && int(values[0].answer) == i {
			s.Value, values = values[0].value*factor, values[1:]
		}
		if !at.Before(from) && !at.After(to) {
			out = append(out, s)
		}
	}
	return out
}

// part is one load on one GPU.
type part struct {
	sequence  int
	load      load.Kind
	uuid      string
	start     time.Time
	end       time.Time
	generated []verdict.Generated
}

// Results judges all sources. Call it when the load has ended.
func (c *Check) Results() (out []Result) {
	parts, loaded := c.parts()
	for _, w := range c.watches {
		w.mu.Lock()
		for _, p := range parts {
			out = append(out, w.judge(p, loaded, c.tolerance))
		}
		w.mu.Unlock()
	}
	return out
}

// parts sorts the steps by load and GPU, in the order of their first step.
func (c *Check) parts() (out []*part, loaded map[string]bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	type id struct {
		sequence   int
		load, uuid string
	}
	index := map[id]*part{}
	loaded = map[string]bool{}
	for _, s := range c.steps {
		key := id{s.Sequence, s.Load, s.GPU.UUID}
		p := index[key]
		if p == nil {
			kind, _ := load.KindOf(s.Load)
			p = &part{sequence: s.Sequence, load: kind, uuid: s.GPU.UUID, start: s.Start}
			index[key] = p
			out = append(out, p)
		}
		loaded[s.GPU.UUID] = true
		p.end = s.End
		if s.Generated != nil {
			p.generated = append(p.generated, verdict.Generated{Start: s.Start, End: s.End, Value: *s.Generated, Error: s.Error})
		}
	}
	return out, loaded
}

// judge judges the source on a part. The mutex is held.
func (w *watch) judge(p *part, loaded map[string]bool, tolerance float64) Result {
	field, factor := p.load.Field, 1.0
	if field == gpu.GREngineActive && !w.has(field) { // NVML's utilisation measures the same
		field, factor = gpu.GPUUtil, 0.01
	}
	f, _ := gpu.Lookup(field)
	r := Result{Source: w.source.Name(), Sequence: p.sequence, Load: p.load.Name, GPU: p.uuid, Field: f.Name, Failed: w.failed}
	own := Key{p.uuid, field}
	if why := w.unclear(own); why != "" {
		r.Verdict = verdict.Verdict{Finding: verdict.Unmeasured, Detail: why}
		return r
	}
	from := p.start.Add(-time.Minute) // what was shown before tells for how long a value has been
	in := verdict.Input{
		Generated: p.generated, Samples: w.samples(own, factor, from, p.end), Others: map[string][]verdict.Sample{},
		IsRatio: p.load.IsRatio(), Tolerance: tolerance,
	}
	for key := range w.values {
		if key.Field == field && key != own && !loaded[key.UUID] {
			in.Others[key.UUID] = w.samples(key, factor, from, p.end)
		}
	}
	r.Verdict = verdict.Judge(in)
	if len(in.Samples) == 0 && w.err != nil {
		r.Detail = excerpt.Of(w.err.Error(), 200)
	}
	return r
}

// unclear says why a source's values cannot be matched with the GPU that is loaded, if so.
func (w *watch) unclear(own Key) string {
	if !strings.HasPrefix(own.UUID, "MIG-") || len(w.values[own]) > 0 {
		return ""
	}
	for key := range w.values {
		if key.Field == own.Field && strings.Contains(key.UUID, "/") {
			return "the source has numbers of MIG instances (GPU_I_ID), and no UUIDs of them"
		}
	}
	return ""
}

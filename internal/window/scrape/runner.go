// SPDX-License-Identifier: Apache-2.0

package scrape

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/window/page"
	"github.com/gpupilot/gpupilot/internal/window/series"
)

// The time for which an agent is asked for the learned names only, before the next
// request for the whole page: learnAgainFull if all fields in use were found.
const (
	learnAgain     = time.Minute
	learnAgainFull = 10 * time.Minute
)

// runner scrapes one target. Only a turn uses its fields, except want, gone, conn,
// turns and state.
type runner struct {
	s      *Scraper
	cancel context.CancelFunc
	done   chan struct{}
	want   atomic.Pointer[Target]
	gone   atomic.Bool // not in the list any more, or of another pod there: drop the samples too

	have      *Target      // the target that the fields below are for; want may be newer
	names     *page.Names  // as have
	fields    gpu.FieldSet // to keep: those of have and of names; empty: all
	series    *series.Target
	page      *page.Reader
	batch     series.Batch
	shrunk    time.Time // when the limit of what page remembers last changed
	phase     phase
	clock     clock
	intervals page.IntervalEstimate

	conn            connection
	protocol        protocol
	asksCertificate bool    // the server asked for one in the last handshake
	buffer          *buffer // while a page is read and stored
	turns           turns

	req       *request
	learn     time.Time // when to request the whole page; zero: now
	namesOnly bool      // req asks for the learned names only

	changed   bool      // lines of the pages have changed since the last page that was used
	ownersDue bool      // the store refused some owners of the last page
	lines     int       // sample lines of the last whole page of an exporter
	exposeDue time.Time // when to list the series again, because the store refused some; zero: when the page changes

	mu    sync.Mutex
	state State
}

// run starts scraping and returns. Scraping begins after the runner before, if any,
// is done. After ctx ends, run calls ended.
func (r *runner) run(ctx context.Context, before *runner, ended func()) {
	r.turns.do = func() time.Time { return r.scrape(ctx) }
	r.turns.ended = func() {
		r.conn.shut()
		r.hasLines(0)
		if r.gone.Load() {
			r.s.deps.Store.Drop(r.want.Load().Name)
		}
		close(r.done)
		ended()
	}
	begin := func() { r.turns.start(r.phase.spread(time.Now())) }
	if before == nil || before.isDone() {
		begin()
		return
	}
	go func() { // returns before ended is called
		<-before.done
		begin()
	}()
}

// stop cancels the current scrape and all later ones.
func (r *runner) stop() {
	r.cancel()
	r.conn.shut()
	r.turns.stop()
}

func (r *runner) isDone() bool {
	select {
	case <-r.done:
		return true
	default:
		return false
	}
}

// scrape scrapes once and returns the time of the next scrape.
func (r *runner) scrape(ctx context.Context) (next time.Time) {
	defer r.release()
	started := time.Now()
	if err := r.prepare(started); errors.Is(err, series.ErrNoMemory) {
		r.s.failures[NoMemory].Add(1)
		return r.failed(fail(NoMemory, "%w: raise --window-memory or scrape fewer targets", err))
	} else if err != nil {
		return r.failed(fail(Internal, "%w", err))
	}
	f := r.s.fetch(ctx, r)
	arrived := time.Now()
	if f != nil {
		if ctx.Err() != nil {
			return time.Time{} // the scrape was cancelled: no failure of the target
		}
		r.s.count(f, arrived.Sub(started))
		r.account()
		return r.paced(r.failed(f))
	}
	r.s.count(nil, arrived.Sub(started))
	if ctx.Err() != nil {
		return time.Time{} // the target was removed: do not store its page
	}
	return r.paced(r.store(started, arrived))
}

// paced delays the next scrape of a pod with a long page. Exporters are not delayed.
func (r *runner) paced(next time.Time) time.Time {
	if r.have == nil || r.have.Kind != Pod {
		return next
	}
	return r.phase.paced(next, r.page.Bytes, time.Now())
}

// prepare applies a new want, and builds the request if it has changed.
func (r *runner) prepare(now time.Time) error {
	names := r.s.names.Load()
	if want := r.want.Load(); want != r.have || names != r.names {
		r.series = r.s.deps.Store.Target(want.Name, want.Labels)
		if !r.series.Account(r.s.targetBytes(want)) {
			return series.ErrNoMemory
		}
		fields := names.FieldsOf(want.Fields)
		if r.have == nil || names != r.names || fields != r.fields || want.Labels != r.have.Labels || !slices.Equal(want.Metrics, r.have.Metrics) {
			if !names.Covers(r.names) {
				r.series.ForgetEnded()
			}
			r.names, r.fields = names, fields
			r.begin(want)
		} else if r.page.SetNamed(want.Named); r.page.IsOvergrown() {
			r.forget()
		}
		r.have = want
	}
	whole := r.have.Kind != Agent || !r.names.AskedByName() || r.fields.Empty() || !now.Before(r.learn)
	if r.req != nil && whole == !r.namesOnly {
		return nil
	}
	var asked []string
	if !whole {
		asked = append(append(r.page.Found(), "gpupilot_collection_duration_seconds"), r.names.Asked(r.page.Spaces())...)
	}
	req, err := r.s.newRequest(r.have, asked)
	if err != nil {
		return err
	}
	r.req, r.namesOnly = req, !whole
	return nil
}

func (r *runner) begin(want *Target) {
	r.req, r.learn = nil, time.Time{}
	cfg := page.Config{
		Target: r.series, Labels: want.Labels, Names: r.names,
		Fields: r.fields, Named: want.Named, Watch: want.Kind == DCGM, Metrics: want.Metrics,
	}
	switch want.Kind {
	case Pod:
		r.series.SetInterval(0)
		cfg.Learn = r.s.described.Learner(want.Labels.Namespace)
		r.page = page.NewPod(cfg)
		return
	case DCGM:
		cfg.Learn = r.s.described.Learner("")
	}
	r.page = page.NewExporter(cfg)
}

// outcome is what became of a page that was parsed.
type outcome int

const (
	garbage   outcome = iota // it is none
	old                      // it was there before, or is older than the last one
	unchanged                // all its values are those of the last one
	full                     // the memory limit refused its series
	dropped                  // the store no longer has the target
	stored
)

// parsed is a page with what became of it.
type parsed struct {
	outcome          outcome
	err              error
	started, arrived time.Time
	at, raw          time.Time // see collectedAt
	fresh            page.Freshness
	unknown          int // lines that were remembered for a series that the store no longer has
}

// effects are what follows from an outcome. They return the time of the next scrape.
var effects = [...]func(*runner, *parsed) time.Time{
	garbage: (*runner).refuse,
	old:     func(r *runner, p *parsed) time.Time { return r.repeated(p.raw, p.arrived) },
	unchanged: func(r *runner, p *parsed) time.Time {
		return r.unchanged(&p.fresh, p.started, p.arrived)
	},
	full: func(r *runner, p *parsed) time.Time {
		r.have = nil // reserve memory again at the next scrape
		return r.failed(fail(NoMemory, "%w: raise --window-memory or scrape fewer targets", p.err))
	},
	dropped: func(r *runner, p *parsed) time.Time {
		r.have = nil // create it again
		return r.failed(fail(Internal, "%w", p.err))
	},
	stored: (*runner).deliver,
}

// store stores the page that was parsed.
func (r *runner) store(started, arrived time.Time) (next time.Time) {
	defer r.account()
	p := parsed{started: started, arrived: arrived}
	r.classify(&p)
	if p.outcome != garbage && (p.unknown > 0 || r.page.IsOvergrown()) {
		r.forget()
	}
	return effects[p.outcome](r, &p)
}

// classify puts a page's values into the store, and finds the outcome.
func (r *runner) classify(p *parsed) {
	if p.err = r.page.End(); p.err != nil {
		p.outcome = garbage
		return
	}
	isPod := r.have.Kind == Pod
	r.s.badLines.Add(uint64(r.page.Bad))
	if !isPod && !r.namesOnly {
		r.hasLines(r.page.Lines)
	}
	r.changed = r.changed || r.page.Changed
	var isNew bool
	p.at, p.raw, isNew = r.collectedAt(p.started, p.arrived)
	if !isPod {
		p.fresh = r.freshness(p.at, !p.raw.IsZero())
	}
	if !isNew || isPod && r.page.IsOld() {
		p.outcome = old
		return
	}
	r.batch.Reset()
	if !p.fresh.IsOld() {
		r.expose(p.at, p.arrived)
		if !isPod && (r.changed || r.ownersDue) {
			r.ownersDue = !r.series.SetOwners(p.at, r.page.Owners())
		}
		r.changed = false
	}
	if p.fresh.Unchanged > 0 && p.fresh.Fresh == 0 {
		p.outcome = unchanged
		return
	}
	if !isPod {
		r.learned(p.arrived)
	}
	r.page.Fill(&r.batch, p.arrived.Sub(p.started))
	r.s.countOutOfRange(r.page.OutOfRange)
	p.unknown, p.err = r.series.Append(p.at, &r.batch)
	switch {
	case errors.Is(p.err, series.ErrRepeated):
		p.outcome = old
	case errors.Is(p.err, series.ErrNoMemory):
		p.outcome = full
	case p.err != nil:
		p.outcome = dropped
	default:
		p.outcome = stored
	}
}

// refuse counts a page that is none.
func (r *runner) refuse(p *parsed) (next time.Time) {
	f := fail(Garbage, "%w", p.err)
	f.detail = r.page.BadText
	if _, ok := errors.AsType[page.TooLargeError](p.err); ok {
		f.reason = TooLarge
	}
	r.s.failures[f.reason].Add(1)
	return r.failed(f)
}

// deliver tells of values that were stored.
func (r *runner) deliver(p *parsed) (next time.Time) {
	r.s.samples.Add(uint64(len(r.batch.Points)))
	r.succeeded(p.at, p.started, p.arrived)
	if deliver := r.s.deps.Deliver; deliver != nil {
		deliver(r.have.Name, p.at)
	}
	if m := r.page.Meta; m.Collected > 0 && m.Interval > 0 {
		return r.phase.afterTick(p.at, m, time.Now())
	}
	return r.phase.success(time.Now())
}

// hasLines counts the lines of an exporter's whole page.
func (r *runner) hasLines(n int) {
	r.s.lines.Add(int64(n - r.lines))
	r.lines = n
}

// expose lists the page's series in the store, if they have changed.
func (r *runner) expose(at, now time.Time) {
	if !r.changed && (r.exposeDue.IsZero() || now.Before(r.exposeDue)) {
		return
	}
	r.exposeDue = time.Time{}
	if !r.series.Expose(at, r.page.Exposed()) {
		r.exposeDue = now.Add(learnAgain)
	}
}

// account charges the target for the runner's memory. If the memory limit refuses
// that, the runner remembers less of its pages.
func (r *runner) account() {
	r.page.TakeRefused(r.series.Refuse)
	if r.series.Account(r.size()) {
		if time.Since(r.shrunk) > learnAgain && r.page.Grow() {
			r.shrunk = time.Now()
		}
		return
	}
	r.page.Shrink()
	r.shrunk = time.Now()
	r.forget()
	r.series.Account(r.size())
}

func (r *runner) size() int64 {
	return r.s.targetBytes(r.want.Load()) + r.page.Size()
}

// collectedAt returns the time of a page's samples in our clock: raw, the agent's time
// or else the newest timestamp of a line, as the clock converts it. Without both, raw is
// zero, and the time is the start of the scrape. isNew is false if the page must not be
// used.
func (r *runner) collectedAt(started, arrived time.Time) (at, raw time.Time, isNew bool) {
	m := page.Meta{}
	if t, ok := r.page.CollectedAt(); ok {
		raw, m = t, r.page.Meta
	} else if ms := r.page.NewestLine(); ms > 0 {
		raw = time.UnixMilli(ms)
	} else {
		return started, raw, true
	}
	at, isNew = r.clock.local(raw, arrived, m)
	return at, raw, isNew
}

// freshness determines which of a page's devices have new values. It sets the
// target's interval in the store, if it is known.
func (r *runner) freshness(at time.Time, stamped bool) page.Freshness {
	f := r.page.Freshness(at, stamped, &r.intervals)
	interval := time.Duration(0)
	if stamped {
		// A short interval does not reduce the age up to which values count.
		if d := seconds(r.page.Meta.Interval); r.page.Meta.Collected > 0 && d <= page.SlowestInterval && gpu.MaxAge(d) > gpu.MaxAge(0) {
			interval = d
		}
	} else if d, ok := r.intervals.Interval(); ok && f.Fresh+f.Unchanged > 0 {
		interval = d
	}
	r.series.SetInterval(interval)
	r.mu.Lock()
	defer r.mu.Unlock()
	st := &r.state
	switch {
	case f.Frozen > 0 && st.Frozen == 0:
		r.s.deps.Log.Warn("values of devices do not change", "target", st.Name, "url", st.URL, "devices", f.Frozen)
	case f.Frozen == 0 && st.Frozen > 0:
		r.s.deps.Log.Info("values of devices change again", "target", st.Name, "url", st.URL)
	}
	st.Freshness, st.Frozen, st.Waiting = f.Method, f.Frozen, f.Unchanged > 0 && f.Fresh == 0 && f.Waits
	if !stamped {
		st.Interval = interval
	}
	return f
}

// unchanged handles a page with the values of the last one: the exporter has not
// collected again yet, or it hangs.
func (r *runner) unchanged(f *page.Freshness, started, arrived time.Time) (next time.Time) {
	r.s.repeated.Add(1)
	if f.Frozen == f.Unchanged {
		stale := fail(Stale, "values have not changed since %s", f.Since.UTC().Format(time.RFC3339))
		r.s.failures[stale.reason].Add(1)
		r.note(stale, arrived)
		return r.phase.success(time.Now())
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.recovered(arrived)
	r.state.Took = arrived.Sub(started)
	if !f.Waits {
		r.state.LastSuccess = arrived
	}
	return r.phase.success(time.Now())
}

// recovered clears the last failure. The caller holds r.mu.
func (r *runner) recovered(arrived time.Time) {
	st := &r.state
	if st.Err != nil {
		r.s.deps.Log.Info("scrape recovered", "target", st.Name, "url", st.URL, "after", arrived.Sub(st.ErrSince).Round(time.Millisecond))
	}
	st.Err, st.ErrSince, st.Failures = nil, time.Time{}, 0
}

// learned decides after a page whether the next request may be limited to the names
// that were found.
func (r *runner) learned(now time.Time) {
	switch {
	case r.namesOnly && !r.page.HasValues():
		r.learn = time.Time{} // the agent may have new names
	case !r.namesOnly && r.page.HasFound():
		r.learn = now.Add(learnAgain)
		if r.page.FoundAll() {
			r.learn = now.Add(learnAgainFull)
		}
	}
}

// forget drops what is remembered of the target's lines: the next page is parsed
// from scratch.
func (r *runner) forget() {
	r.page.Forget()
	if r.want.Load().Kind != Pod {
		r.req, r.learn = nil, time.Time{}
	}
}

func (r *runner) succeeded(at, started, arrived time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	st := &r.state
	r.recovered(arrived)
	st.LastSuccess, st.Collected = arrived, at
	st.Lag, st.Skew = arrived.Sub(at), -r.clock.offset
	st.Took, st.Samples = arrived.Sub(started), len(r.batch.Points)
	if r.page.Meta.Interval > 0 {
		st.Interval = seconds(r.page.Meta.Interval)
	}
	st.BadLines, st.BadLine, st.OutOfRange = r.page.Bad, "", r.page.OutOfRange.Total()
	if r.page.BadLine != nil {
		st.BadLine = r.page.BadLine.Error()
		r.s.deps.Log.Debug("malformed lines skipped", "target", st.Name, "lines", r.page.Bad, "first", st.BadLine, "text", r.page.BadText)
	}
}

// repeated handles a page that is not new: the scrape was too early, a cache answered,
// or the target's clock was set. It is a failure only if the newest page is older than
// gpu.MaxAge.
func (r *runner) repeated(raw, arrived time.Time) (next time.Time) {
	r.s.repeated.Add(1)
	m, again := r.page.Meta, !raw.IsZero() && raw.Equal(r.clock.newest)
	if next = r.phase.success(time.Now()); again {
		next = r.phase.tooEarly(m, arrived)
	}
	// The interval of lines with timestamps is unknown.
	if age := arrived.Sub(r.clock.at); !raw.IsZero() && age > gpu.MaxAge(seconds(m.Interval)) && (m.Interval > 0 || !again) {
		f := fail(Stale, "%s", r.clock.describe(raw))
		r.s.failures[f.reason].Add(1)
		r.note(f, arrived)
	}
	return next
}

func (r *runner) failed(f *failure) (next time.Time) {
	now := time.Now()
	if r.series != nil {
		r.series.Fail(now)
	}
	r.note(f, now)
	return r.phase.failure(now)
}

// note records a failure in the state, and logs the first of consecutive ones.
func (r *runner) note(f *failure, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	st := &r.state
	first := st.Err == nil
	st.Err = fmt.Errorf("scrape %s (%s): %w", st.Name, st.URL, f)
	st.Failures++
	if first {
		st.ErrSince = now
		r.s.deps.Log.Warn("scrape failed", "target", st.Name, "url", st.URL, "reason", f.reason.String(), "err", f.err)
		r.s.deps.Log.Debug("scrape failed: untrusted text from the target", "target", st.Name, "text", f.detail)
	}
}

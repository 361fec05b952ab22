// SPDX-License-Identifier: Apache-2.0

package trace

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Trace is a recorded load: either single requests, or time windows that each have an
// arrival rate.
type Trace struct {
	Name     string
	Kind     Kind
	Duration float64   // seconds
	Start    time.Time // when it was recorded; zero: unknown

	requests []Request
	windows  []window // sorted by start; the rates of windows with one start (clients) add up
}

// Request is one request of a load.
type Request struct {
	At             float64 // seconds since the start of the load
	Prompt, Output float64 // tokens, at least 1
}

// Kind is a file format. The header of a file tells its format.
type Kind string

// The formats, each with its columns.
const (
	Requests Kind = "requests" // t_ms,prompt_tokens,output_tokens: one row per request
	Counts   Kind = "counts"   // t_s,requests[,prompt_tokens,output_tokens]: sums over the time of a row
	Windows  Kind = "windows"  // t_s,rate_rps,iat_cv_rate_weighted,prompt_tokens_mean,output_tokens_mean,gap
	Clients  Kind = "clients"  // client,t_s,rate_rps,iat_dist,p1,p2,prompt_tokens_mean,output_tokens_mean
	Coarse   Kind = "coarse"   // t_s,count_in_5min
)

// distribution is the distribution of interarrival times.
type distribution uint8

const (
	exponential distribution = iota // a Poisson process
	uniform                         // uniform over the window: only the count of the window is known
	gammaDistribution
	weibull
)

// window is a time window in which requests arrive at one mean rate.
type window struct {
	start, width   float64 // seconds
	rate           float64 // requests/s
	interarrival   distribution
	shape          float64 // of Gamma and Weibull; the scale follows from the rate
	prompt, output float64 // mean tokens
	gap            bool    // no data: the window is filled with a copy of the one before
}

// The mean tokens of a request in traces without tokens. They are the means of the Azure
// LLM inference trace 2023 (conversation).
const (
	DefaultPrompt = 1155
	DefaultOutput = 211
)

const (
	maxTokens = 10_000_000 // per request
	maxRate   = 1e7        // requests/s
	maxCount  = 1e9        // requests per row
	// maxSpread is the longest time over which requests with one timestamp are spread.
	// The Mooncake trace records timestamps in steps of 3 s.
	maxSpread = 3
)

// Open reads a trace from a CSV file, plain or gzip. Its name is the file's name without
// the extension.
func Open(path string) (*Trace, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("trace: %w", err)
	}
	defer func() { _ = f.Close() }() // only read from
	t, err := Read(path, f)
	if err != nil {
		return nil, err
	}
	base := filepath.Base(path)
	t.Name = strings.TrimSuffix(strings.TrimSuffix(base, ".gz"), ".csv")
	return t, nil
}

// Read reads a trace, plain or gzip, in the format that its header tells. Errors begin
// with the name. Errors of a cell also give its line and column.
func Read(name string, r io.Reader) (t *Trace, err error) {
	err = readCSV(name, r, func(in *Table) error {
		t, err = readTable(name, in)
		return err
	})
	return t, err
}

func readTable(name string, in *Table) (*Trace, error) {
	out := &Trace{Name: name}
	var readRow func(*Table) error
	switch {
	case in.Has("t_ms", "prompt_tokens", "output_tokens"):
		out.Kind, readRow = Requests, out.readRequest
	case in.Has("client", "t_s", "rate_rps", "iat_dist", "p1", "prompt_tokens_mean", "output_tokens_mean"):
		out.Kind, readRow = Clients, out.readClient
	case in.Has("t_s", "rate_rps"):
		out.Kind, readRow = Windows, out.readWindow
	case in.Has("t_s", "count_in_5min"):
		out.Kind, readRow = Coarse, out.readCoarse
	case in.Has("t_s", "requests"):
		out.Kind, readRow = Counts, out.readCount
	default:
		return nil, fmt.Errorf("%s:1: no trace has the columns %s; want t_ms,prompt_tokens,output_tokens or t_s with requests, count_in_5min or rate_rps",
			name, in.Columns())
	}
	for {
		ok, err := in.Next()
		if err != nil {
			return nil, err
		}
		if !ok {
			break
		}
		if err := readRow(in); err != nil {
			return nil, err
		}
	}
	if err := out.finish(); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return out, nil
}

// finish sorts the rows, sets the widths of the windows and fills gaps.
func (t *Trace) finish() error {
	if t.Kind == Requests {
		return t.finishRequests()
	}
	if len(t.windows) < 2 {
		return fmt.Errorf("%d rows: want at least 2", len(t.windows))
	}
	slices.SortStableFunc(t.windows, func(a, b window) int { return cmp.Compare(a.start, b.start) })
	first, last := t.windows[0].start, t.windows[len(t.windows)-1].start
	if last <= first {
		return errors.New("column \"t_s\": all rows have the same time")
	}
	width := smallestStep(t.windows)
	if t.Kind == Counts {
		t.setCountWidths(width)
	} else { // windows all have one width; time without a window is unknown
		for i := range t.windows {
			t.windows[i].width = width
		}
	}
	for i := range t.windows {
		t.windows[i].start -= first
	}
	t.Duration = last - first + t.windows[len(t.windows)-1].width
	if err := t.checkDuration("t_s"); err != nil {
		return err
	}
	return t.fillGaps()
}

func (t *Trace) finishRequests() error {
	if len(t.requests) < 2 {
		return fmt.Errorf("%d requests: want at least 2", len(t.requests))
	}
	slices.SortStableFunc(t.requests, func(a, b Request) int { return cmp.Compare(a.At, b.At) })
	first := t.requests[0].At
	for i := range t.requests {
		t.requests[i].At -= first
	}
	spread(t.requests)
	t.Duration = t.requests[len(t.requests)-1].At + 1e-3
	return t.checkDuration("t_ms")
}

// checkDuration refuses traces over ten years. Usually such a column mixes two kinds of
// timestamps.
func (t *Trace) checkDuration(column string) error {
	if t.Duration > maxDuration {
		return fmt.Errorf("column %q: the rows cover %.1f years, want ten at most", column, t.Duration/(maxDuration/10))
	}
	return nil
}

// setCountWidths sets the width of each row to the time until the next row, and divides
// its count by it.
func (t *Trace) setCountWidths(last float64) {
	for i := range t.windows {
		w := &t.windows[i]
		w.width = last
		if i+1 < len(t.windows) {
			w.width = t.windows[i+1].start - w.start
		}
		w.rate /= w.width
	}
}

// smallestStep returns the shortest time between two different starts.
func smallestStep(w []window) float64 {
	least := math.Inf(1)
	for i := 1; i < len(w); i++ {
		if d := w[i].start - w[i-1].start; d > 0 {
			least = min(least, d)
		}
	}
	return least
}

// fillGaps copies the last window with data into each gap, because missing data does not
// mean zero load. Gaps at the start get the first window with data.
func (t *Trace) fillGaps() error {
	known := slices.IndexFunc(t.windows, func(w window) bool { return !w.gap })
	if known < 0 {
		return errors.New("every row is a gap: there is no data")
	}
	last := t.windows[known]
	for i := range t.windows {
		w := &t.windows[i]
		if w.gap {
			start := w.start
			*w = last
			w.start, w.gap = start, true
			continue
		}
		last = *w
	}
	return nil
}

// spread moves requests with equal timestamps apart, evenly until the next timestamp. It
// does so only if at least half of the requests share one: the recorder's clock was coarse.
func spread(q []Request) {
	shared := 0
	for i := 1; i < len(q); i++ {
		if q[i].At == q[i-1].At {
			shared++
		}
	}
	if shared*2 < len(q) {
		return
	}
	for i := 0; i < len(q); {
		k := i
		for k < len(q) && q[k].At == q[i].At {
			k++
		}
		over := float64(maxSpread)
		if k < len(q) {
			over = min(over, q[k].At-q[i].At)
		}
		for n := i; n < k; n++ {
			q[n].At += over * float64(n-i) / float64(k-i)
		}
		i = k
	}
}

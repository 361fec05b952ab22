// SPDX-License-Identifier: Apache-2.0

package backtest

import (
	"bufio"
	"cmp"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Trace is a recorded load: single requests, or windows of time with a rate
// each.
type Trace struct {
	Name     string
	Kind     Kind
	Duration float64 // seconds

	requests []Request
	windows  []window // by start; several with the same start (clients) add up
}

// Kind is a file format, known by its header.
type Kind string

// The kinds of traces, and the columns that tell them.
const (
	Requests Kind = "requests" // t_ms,prompt_tokens,output_tokens: one row a request
	Counts   Kind = "counts"   // t_s,requests[,prompt_tokens,output_tokens]: sums over each row's time
	Windows  Kind = "windows"  // t_s,rate_rps,iat_cv_rate_weighted,prompt_tokens_mean,output_tokens_mean,gap
	Clients  Kind = "clients"  // client,t_s,rate_rps,iat_dist,p1,p2,prompt_tokens_mean,output_tokens_mean
	Coarse   Kind = "coarse"   // t_s,count_in_5min
)

// law is how the times between arrivals are distributed.
type law uint8

const (
	exponential law = iota // a Poisson process
	uniform                // anywhere in the window: a count of which only the total is known
	gammaLaw
	weibull
)

// window is a stretch of time in which requests arrive at one rate.
type window struct {
	start, width   float64 // seconds
	rate           float64 // requests/s
	law            law
	shape          float64 // of gammaLaw and weibull; the scale follows from the rate
	prompt, output float64 // mean tokens
	gap            bool    // nothing is known: filled with what was before
}

// The tokens of a request where a trace does not tell: the means of the Azure
// LLM inference trace 2023 (conversation).
const (
	DefaultPrompt = 1155
	DefaultOutput = 211
)

const (
	maxRows   = 40_000_000
	maxTokens = 10_000_000
	// maxSpread is how far the requests that share a stamp are spread: Mooncake's
	// stamps come in batches of 3 s.
	maxSpread = 3
)

// Open reads a trace from a CSV file, plain or gzip.
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

// Read reads a trace, plain or gzip, in the format that its header tells. Errors
// begin with the name; those of a cell say its line and column, too.
func Read(name string, r io.Reader) (*Trace, error) {
	plain := bufio.NewReader(r)
	if !isGzip(plain) {
		return readText(name, plain)
	}
	z, err := newGzipFile(plain)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, z.explain(err))
	}
	t, err := readText(name, bufio.NewReader(z))
	if err != nil {
		if bad := z.explain(err); bad != err { //nolint:errorlint // the very error means that the file is whole
			return nil, fmt.Errorf("%s: %w", name, bad)
		}
	}
	return t, err
}

// readText reads a trace of plain CSV.
func readText(name string, plain *bufio.Reader) (*Trace, error) {
	// What the reader says of a shorter file it says again to what reads on.
	if head, _ := plain.Peek(headLength); slices.ContainsFunc(head, inNoText) {
		return nil, fmt.Errorf("%s: this is no CSV but a binary file: want text in UTF-8, plain or gzip", name)
	}
	t := &table{name: name, in: csv.NewReader(plain)}
	t.in.ReuseRecord = true
	if err := t.header(); err != nil {
		return nil, err
	}
	return t.read()
}

// headLength is how much of a file is looked at for what no text has.
const headLength = 512

// inNoText says whether a byte is in no text: archives, Parquet and UTF-16 are full
// of them.
func inNoText(c byte) bool { return c < ' ' && c != '\t' && c != '\n' && c != '\r' }

// table is a CSV with a header.
type table struct {
	name   string
	in     *csv.Reader
	column map[string]int
	record []string
	rows   int
}

func (t *table) header() error {
	head, err := t.in.Read()
	if errors.Is(err, io.EOF) {
		return fmt.Errorf("%s: the file is empty", t.name)
	}
	if err != nil {
		return fmt.Errorf("%s: header: %w", t.name, err)
	}
	t.column = make(map[string]int, len(head))
	for i, h := range head {
		if i == 0 {
			h = strings.TrimPrefix(h, "\ufeff") // a spreadsheet's byte order mark
		}
		t.column[strings.TrimSpace(h)] = i
	}
	return nil
}

func (t *table) has(columns ...string) bool {
	return !slices.ContainsFunc(columns, func(c string) bool { _, ok := t.column[c]; return !ok })
}

// read finds the format by the header.
func (t *table) read() (*Trace, error) {
	out := &Trace{Name: t.name}
	var row func(*Trace) error
	switch {
	case t.has("t_ms", "prompt_tokens", "output_tokens"):
		out.Kind, row = Requests, t.requestRow
	case t.has("client", "t_s", "rate_rps", "iat_dist", "p1", "prompt_tokens_mean", "output_tokens_mean"):
		out.Kind, row = Clients, t.clientRow
	case t.has("t_s", "rate_rps"):
		out.Kind, row = Windows, t.windowRow
	case t.has("t_s", "count_in_5min"):
		out.Kind, row = Coarse, t.coarseRow
	case t.has("t_s", "requests"):
		out.Kind, row = Counts, t.countRow
	default:
		names := make([]string, 0, len(t.column))
		for c := range t.column {
			names = append(names, c)
		}
		slices.Sort(names)
		return nil, fmt.Errorf("%s:1: no trace has the columns %s; want t_ms,prompt_tokens,output_tokens or t_s with requests, count_in_5min or rate_rps",
			t.name, clip(strings.Join(names, ",")))
	}
	for {
		record, err := t.in.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", t.name, err)
		}
		t.record = record
		if t.rows++; t.rows > maxRows {
			return nil, fmt.Errorf("%s: more than %d rows", t.name, maxRows)
		}
		if err := row(out); err != nil {
			return nil, err
		}
	}
	if err := out.finish(); err != nil {
		return nil, fmt.Errorf("%s: %w", t.name, err)
	}
	return out, nil
}

// number reads a cell between 0 and most. An absent column or an empty cell is
// none.
func (t *table) number(column string, most, none float64) (float64, error) {
	i, ok := t.column[column]
	if !ok {
		return none, nil
	}
	cell := strings.TrimSpace(t.record[i])
	if cell == "" {
		return none, nil
	}
	x, err := strconv.ParseFloat(cell, 64)
	if err != nil || !(x >= 0 && x <= most) {
		return 0, t.fault(column, fmt.Sprintf("%q is not a number from 0 to %g", clip(cell), most))
	}
	return x, nil
}

// time reads the cell of t_s, in seconds: counted from anywhere, the Unix epoch
// too, or a time stamp. Only what lies between two of them matters.
func (t *table) time() (float64, error) {
	cell := strings.TrimSpace(t.record[t.column["t_s"]])
	if x, err := strconv.ParseFloat(cell, 64); err == nil && x >= 0 && x <= lastTime {
		return x, nil
	}
	if at, err := time.Parse(time.RFC3339, cell); err == nil {
		return float64(at.Unix()) + float64(at.Nanosecond())/1e9, nil
	}
	return 0, t.fault("t_s", fmt.Sprintf("%q is no time: want seconds, from the first row or from 1970 on, or a stamp such as 2026-01-02T15:04:05Z", clip(cell)))
}

// later reads the time of a row that must come after the row before it.
func (t *table) later(out *Trace) (at float64, err error) {
	if at, err = t.time(); err != nil || len(out.windows) == 0 {
		return at, err
	}
	cell := strings.TrimSpace(t.record[t.column["t_s"]])
	switch before := out.windows[len(out.windows)-1].start; {
	case at == before:
		return 0, t.fault("t_s", fmt.Sprintf("%q stands twice: want one row for each time, with the sum of what came", clip(cell)))
	case at < before:
		return 0, t.fault("t_s", fmt.Sprintf("%q is before the row above it, and a row holds until the next one: sort the rows by t_s", clip(cell)))
	}
	return at, nil
}

// numbers reads several cells that must be there.
func (t *table) numbers(most float64, into map[string]*float64) error {
	for _, column := range sortedKeys(into) {
		x, err := t.number(column, most, math.NaN())
		if err == nil && math.IsNaN(x) {
			err = t.fault(column, "is empty")
		}
		if err != nil {
			return err
		}
		*into[column] = x
	}
	return nil
}

func (t *table) fault(column, what string) error {
	line, col := t.in.FieldPos(t.column[column])
	return fmt.Errorf("%s:%d:%d: column %q: %s", t.name, line, col, column, what)
}

// finish sorts, and gives each window its width and each gap its filling.
func (t *Trace) finish() error {
	if t.Kind == Requests {
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
		return t.tooLong("t_ms")
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
	if t.Kind != Counts { // windows have one width; what is not there is not known
		for i := range t.windows {
			t.windows[i].width = width
		}
	} else {
		t.widths(width)
	}
	for i := range t.windows {
		t.windows[i].start -= first
	}
	t.Duration = last - first + t.windows[len(t.windows)-1].width
	if err := t.tooLong("t_s"); err != nil {
		return err
	}
	return t.fillGaps()
}

// tooLong refuses times of two kinds in one column, and what nobody replays.
func (t *Trace) tooLong(column string) error {
	if t.Duration > maxTime {
		return fmt.Errorf("column %q: the rows cover %.1f years, want ten at most", column, t.Duration/(maxTime/10))
	}
	return nil
}

// widths gives each count the time to the next row.
func (t *Trace) widths(last float64) {
	for i := range t.windows {
		w := &t.windows[i]
		w.width = last
		if i+1 < len(t.windows) {
			w.width = t.windows[i+1].start - w.start
		}
		w.rate /= w.width
	}
}

// smallestStep is the least time between two starts.
func smallestStep(w []window) float64 {
	least := math.Inf(1)
	for i := 1; i < len(w); i++ {
		if d := w[i].start - w[i-1].start; d > 0 {
			least = min(least, d)
		}
	}
	return least
}

// fillGaps repeats the last known window where nothing is known: no data is
// not no load.
func (t *Trace) fillGaps() error {
	known := slices.IndexFunc(t.windows, func(w window) bool { return !w.gap })
	if known < 0 {
		return errors.New("every row is a gap: nothing is known")
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

// spread takes apart the requests that share a stamp, evenly over the time to
// the next stamp, where most do: then the recorder's clock was coarse.
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

func sortedKeys(m map[string]*float64) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// clip shortens what an error quotes.
func clip(s string) string {
	if len(s) > 80 {
		return s[:77] + "..."
	}
	return s
}

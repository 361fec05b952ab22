// SPDX-License-Identifier: Apache-2.0

package load

import (
	"bufio"
	"cmp"
	"compress/gzip"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"sort"
	"strconv"
	"strings"
	"time"
)

// TimeColumn is the column of a counts CSV with the seconds since the start of the
// recording; DefaultColumn is the column of the counts.
const (
	TimeColumn    = "t_s"
	DefaultColumn = "requests"
)

// maxRows bounds the rows of a counts CSV: more than a year of seconds is a mistake.
const maxRows = 40_000_000

// ReplayConfig holds the settings of a replay.
type ReplayConfig struct {
	// Column is the header of the column of counts; empty: requests.
	Column string
	// Speed is the number of seconds of the recording per second of the replay; 0: 1.
	// The rates stay those of the recording: only time is compressed.
	Speed float64
	// Peak is the highest load of the replay, to which it is scaled; 0: not scaled.
	Peak float64
	// Smooth is the time of the replay over which the load is averaged, so that a faster
	// replay keeps all requests; 0: one second.
	Smooth time.Duration
}

// Replay is a recorded load. Its rows are counts over the time to the next row.
type Replay struct {
	at    []float64 // seconds of the recording at which row i begins; one more for the end
	total []float64 // requests before at[i]
	cfg   ReplayConfig
	scale float64
}

// Open reads a counts CSV, plain or gzip, from a file.
func Open(path string, cfg ReplayConfig) (*Replay, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("load: %w", err)
	}
	defer func() { _ = f.Close() }() // only read from
	return Read(path, f, cfg)
}

// Read reads a counts CSV, plain or gzip. It has a header line with the columns t_s
// (increasing seconds) and the counts, and at least two rows; other columns are
// ignored. Errors name file, line and column.
func Read(name string, r io.Reader, cfg ReplayConfig) (*Replay, error) {
	cfg.Column = cmp.Or(cfg.Column, DefaultColumn)
	cfg.Speed = cmp.Or(cfg.Speed, 1)
	cfg.Smooth = cmp.Or(cfg.Smooth, time.Second)
	if !(cfg.Speed > 0) || math.IsInf(cfg.Speed, 0) || !(cfg.Peak >= 0) || math.IsInf(cfg.Peak, 0) || cfg.Smooth < 0 {
		return nil, fmt.Errorf("load: speed %v, peak %v, smooth %v: want positive numbers", cfg.Speed, cfg.Peak, cfg.Smooth)
	}
	plain, err := plainText(r)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	p := &Replay{cfg: cfg, scale: 1}
	if err := p.parse(name, plain); err != nil {
		return nil, err
	}
	if cfg.Peak > 0 {
		high := p.peakLoad()
		if high == 0 {
			return nil, fmt.Errorf("%s: column %q: all counts are 0 and cannot be scaled to a peak of %v", name, cfg.Column, cfg.Peak)
		}
		p.scale = cfg.Peak / high
	}
	return p, nil
}

// plainText decompresses gzip, which it detects by the first bytes.
func plainText(r io.Reader) (io.Reader, error) {
	b := bufio.NewReader(r)
	if magic, err := b.Peek(2); err != nil || magic[0] != 0x1f || magic[1] != 0x8b {
		return b, nil //nolint:nilerr // too short for gzip; the parser reports the error
	}
	return gzip.NewReader(b)
}

func (p *Replay) parse(name string, r io.Reader) error {
	in := csv.NewReader(r)
	in.ReuseRecord = true
	header, err := in.Read()
	if err != nil {
		return fmt.Errorf("%s: header: %w", name, csvError(err))
	}
	tCol, err := columnIndex(header, TimeColumn)
	if err != nil {
		return fmt.Errorf("%s:1: %w", name, err)
	}
	nCol, err := columnIndex(header, p.cfg.Column)
	if err != nil {
		return fmt.Errorf("%s:1: %w", name, err)
	}
	var counts []float64
	cell := func(record []string, i int, head string) (float64, error) {
		x, err := strconv.ParseFloat(strings.TrimSpace(record[i]), 64)
		if err != nil || math.IsNaN(x) || x < 0 || x > 1e12 {
			line, col := in.FieldPos(i)
			return 0, fmt.Errorf("%s:%d:%d: column %q: %q is not a number from 0 to 1e12", name, line, col, head, clip(record[i]))
		}
		return x, nil
	}
	for {
		record, err := in.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return fmt.Errorf("%s: %w", name, csvError(err))
		}
		t, err := cell(record, tCol, TimeColumn)
		if err != nil {
			return err
		}
		n, err := cell(record, nCol, p.cfg.Column)
		if err != nil {
			return err
		}
		if k := len(p.at); k > 0 && t <= p.at[k-1] {
			line, col := in.FieldPos(tCol)
			return fmt.Errorf("%s:%d:%d: column %q: %v is not greater than the previous %v", name, line, col, TimeColumn, t, p.at[k-1])
		}
		if len(p.at) == maxRows {
			return fmt.Errorf("%s: more than %d rows", name, maxRows)
		}
		p.at, counts = append(p.at, t), append(counts, n)
	}
	if len(p.at) < 2 {
		return fmt.Errorf("%s: %d rows of counts: want at least 2", name, len(p.at))
	}
	p.accumulate(counts)
	return nil
}

// accumulate converts the counts to running totals. The last row has no successor, and
// lasts as long as the one before it.
func (p *Replay) accumulate(counts []float64) {
	k := len(p.at)
	p.at = append(p.at, 2*p.at[k-1]-p.at[k-2])
	p.total = make([]float64, k+1)
	for i, n := range counts {
		p.total[i+1] = p.total[i] + n
	}
	for i := range slices.Backward(p.at) {
		p.at[i] -= p.at[0]
	}
}

// At returns the mean load over the Smooth before t; at the start, over the first
// Smooth.
func (p *Replay) At(t time.Duration) float64 {
	end := p.at[len(p.at)-1]
	width := min(p.cfg.Smooth.Seconds()*p.cfg.Speed, end)
	to := min(max(t.Seconds()*p.cfg.Speed, width), end)
	return max(0, p.scale*(p.countBefore(to)-p.countBefore(to-width))/width) // rounding must not make it negative
}

// Duration returns the recording's duration divided by the speed, at most that of a
// time.Duration.
func (p *Replay) Duration() time.Duration {
	s := p.at[len(p.at)-1] / p.cfg.Speed
	return time.Duration(min(s*float64(time.Second), math.MaxInt64/2))
}

// countBefore returns the number of requests before second s of the recording.
func (p *Replay) countBefore(s float64) float64 {
	i := sort.SearchFloat64s(p.at, s)
	if i == 0 {
		return 0
	}
	if i == len(p.at) {
		return p.total[i-1]
	}
	part := (s - p.at[i-1]) / (p.at[i] - p.at[i-1])
	return p.total[i-1] + part*(p.total[i]-p.total[i-1])
}

// peakLoad returns the maximum of At. It checks the starts of all rows, and the ends of
// the windows that start there: in between, the mean is linear.
func (p *Replay) peakLoad() float64 {
	high := 0.0
	for _, s := range p.at {
		t := s / p.cfg.Speed
		for _, x := range []float64{t, t + p.cfg.Smooth.Seconds()} {
			high = max(high, p.At(time.Duration(min(x*float64(time.Second), math.MaxInt64/2))))
		}
	}
	return high
}

func columnIndex(header []string, name string) (int, error) {
	// A spreadsheet's byte order mark is not part of the first column's name.
	header[0] = strings.TrimPrefix(header[0], "\ufeff")
	i := slices.IndexFunc(header, func(h string) bool { return strings.TrimSpace(h) == name })
	if i < 0 {
		return 0, fmt.Errorf("no column %q among %q", name, clip(strings.Join(header, ",")))
	}
	return i, nil
}

// csvError replaces the error of an empty file by a readable one.
func csvError(err error) error {
	if errors.Is(err, io.EOF) {
		return errors.New("the file is empty")
	}
	return err
}

// clip shortens a value for an error.
func clip(s string) string {
	if len(s) > 80 {
		return s[:77] + "..."
	}
	return s
}

// SPDX-License-Identifier: Apache-2.0

package arena

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/gpupilot/gpupilot/internal/replay/trace"
)

// Open reads recorded requests: a trace of package trace with one row per request, or a file
// .jsonl in Mooncake's format.
func Open(path string) (Load, error) {
	if strings.HasSuffix(path, ".jsonl") {
		f, err := os.Open(path)
		if err != nil {
			return Load{}, err
		}
		defer func() { _ = f.Close() }() // only read from
		return readMooncake(path, f)
	}
	t, err := trace.Open(path)
	if err != nil {
		return Load{}, err
	}
	if t.Kind != trace.Requests {
		return Load{}, fmt.Errorf("%s: has no single requests: want the columns t_ms,prompt_tokens,output_tokens, or Mooncake's .jsonl", path)
	}
	out := Load{Name: "mooncake"}
	arrivals := trace.NewArrivals(t, 0, t.Duration, 0)
	for {
		q, _, ok := arrivals.Next()
		if !ok {
			return out, out.check(path)
		}
		out.recorded = append(out.recorded, q...)
	}
}

func (l *Load) check(path string) error {
	if len(l.recorded) == 0 {
		return fmt.Errorf("%s: has no requests", path)
	}
	return nil
}

// The limits of a .jsonl file.
const (
	maxLine    = 1 << 20 // bytes
	maxRows    = 1_000_000
	maxTokens  = 10_000_000
	maxSeconds = 24 * 3600
)

// mooncakeRow is a row of Mooncake's format. Each hash is of a block of 512 prompt tokens with
// all of the blocks before it.
type mooncakeRow struct {
	Timestamp float64 `json:"timestamp"` // milliseconds
	Input     float64 `json:"input_length"`
	Output    float64 `json:"output_length"`
	Hashes    []int64 `json:"hash_ids"`
}

// readMooncake reads Mooncake's format. A block that an earlier request had is in the prefix
// cache of each worker.
func readMooncake(name string, r io.Reader) (Load, error) {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, maxLine)
	var rows []mooncakeRow
	for n := 1; lines.Scan(); n++ {
		if strings.TrimSpace(lines.Text()) == "" {
			continue
		}
		var row mooncakeRow
		if err := json.Unmarshal(lines.Bytes(), &row); err != nil {
			return Load{}, fmt.Errorf("%s: line %d: %w", name, n, err)
		}
		if !(row.Timestamp >= 0 && row.Timestamp <= maxSeconds*1000 && row.Input >= 1 && row.Input <= maxTokens && row.Output >= 1 && row.Output <= maxTokens) {
			return Load{}, fmt.Errorf("%s: line %d: want a timestamp in ms within a day, and lengths of 1 to %d tokens", name, n, maxTokens)
		}
		if rows = append(rows, row); len(rows) > maxRows {
			return Load{}, fmt.Errorf("%s: more than %d requests", name, maxRows)
		}
	}
	if err := lines.Err(); errors.Is(err, bufio.ErrTooLong) {
		return Load{}, fmt.Errorf("%s: line %d is longer than %d bytes", name, len(rows)+1, maxLine)
	} else if err != nil {
		return Load{}, fmt.Errorf("%s: %w", name, err)
	}
	slices.SortStableFunc(rows, func(a, b mooncakeRow) int { return cmp.Compare(a.Timestamp, b.Timestamp) })
	out, seen := Load{Name: "mooncake"}, map[int64]bool{}
	for i := range rows {
		row := &rows[i]
		known := 0
		for known < len(row.Hashes) && seen[row.Hashes[known]] {
			known++
		}
		for _, h := range row.Hashes[known:] {
			seen[h] = true
		}
		prompt := max(1, row.Input-float64(known*blockTokens))
		out.recorded = append(out.recorded, trace.Request{At: (row.Timestamp - rows[0].Timestamp) / 1000, Prompt: prompt, Output: row.Output})
	}
	return out, out.check(name)
}

// SPDX-License-Identifier: Apache-2.0

// Package price says what GPUs cost: USD of a GPU-hour by model and by node pool.
package price

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Table is a price list. The zero value has no price. A GPU without a price has no cost:
// missing is not zero.
type Table struct {
	Entries []Entry // in the order in which they were given
	text    string
}

// Entry is a price.
type Entry struct {
	Model string  // as it was given; empty with Pool, and for all GPUs that no other entry names
	Pool  string  // a node pool; empty: any
	USD   float64 // of a GPU-hour

	words []string // of Model
}

const (
	poolPrefix = "pool:"
	others     = "*"

	maxEntries = 256
	maxUSD     = 1e6
	maxText    = 16 << 10
)

// Parse parses a price for all GPUs, such as 2.5, or prices by model and by node pool:
//
//	NVIDIA H200=4.1,L4=0.8,pool:spot=1.2,*=2
//
// An empty text and 0 are the table without a price.
func Parse(s string) (t Table, err error) {
	t.text = strings.TrimSpace(s)
	if t.text == "" {
		return t, nil
	}
	if len(s) > maxText {
		return Table{}, fmt.Errorf("the price list has %d bytes, at most %d are read", len(s), maxText)
	}
	if usd, err := strconv.ParseFloat(t.text, 64); err == nil {
		switch {
		case usd == 0:
			return Table{}, nil
		case !(usd > 0 && usd <= maxUSD):
			return Table{}, fmt.Errorf("want a value from 0 to %g, or MODEL=USD, such as NVIDIA H200=4.1", maxUSD)
		}
		t.text = others + "=" + t.text
	}
	seen := map[string]bool{}
	for part := range strings.SplitSeq(t.text, ",") {
		e, err := parseEntry(strings.TrimSpace(part))
		if err != nil {
			return Table{}, err
		}
		key := e.Pool + "/" + strings.Join(e.words, " ")
		switch {
		case seen[key]:
			return Table{}, fmt.Errorf("%.60q is there twice", e.name())
		case len(t.Entries) >= maxEntries:
			return Table{}, fmt.Errorf("more than %d prices", maxEntries)
		}
		seen[key] = true
		t.Entries = append(t.Entries, e)
	}
	return t, nil
}

func parseEntry(s string) (e Entry, err error) {
	at := strings.LastIndexByte(s, '=')
	name, value := "", s
	if at >= 0 {
		name, value = strings.TrimSpace(s[:at]), strings.TrimSpace(s[at+1:])
	} else if _, err := strconv.ParseFloat(s, 64); err == nil {
		name = others
	}
	if name == "" {
		return e, fmt.Errorf("%.60q: want MODEL=USD, such as NVIDIA H200=4.1, pool:NAME=USD, or *=USD for the others", s)
	}
	if e.USD, err = strconv.ParseFloat(value, 64); err != nil || !(e.USD > 0 && e.USD <= maxUSD) {
		return e, fmt.Errorf("%.60q: want USD of a GPU-hour above 0 and up to %g; leave out what has no known price", s, maxUSD)
	}
	if pool, ok := strings.CutPrefix(name, poolPrefix); ok {
		if e.Pool = strings.TrimSpace(pool); e.Pool == "" {
			return e, fmt.Errorf("%.60q: want the name of a node pool", s)
		}
		return e, nil
	}
	if name == others {
		return e, nil
	}
	e.Model, e.words = name, words(name)
	if len(e.words) == 0 {
		return e, fmt.Errorf("%.60q: want the name of a model, such as NVIDIA H200", s)
	}
	return e, nil
}

func (e *Entry) name() string {
	switch {
	case e.Pool != "":
		return poolPrefix + e.Pool
	case e.Model != "":
		return e.Model
	}
	return others
}

// words are the words of a model's name, without those of its vendor: drivers, node labels
// and people write NVIDIA H200, NVIDIA-H200 and h200.
func words(model string) []string {
	list := strings.FieldsFunc(strings.ToLower(model), func(r rune) bool { return r == ' ' || r == '-' || r == '_' })
	for len(list) > 0 && slices.Contains([]string{"nvidia", "tesla", "amd", "instinct"}, list[0]) {
		list = list[1:]
	}
	return list
}

// Has reports whether there is any price.
func (t *Table) Has() bool { return len(t.Entries) > 0 }

// All returns the price of all GPUs, if there is one for all and no other.
func (t *Table) All() (usd float64, ok bool) {
	if len(t.Entries) != 1 || t.Entries[0].name() != others {
		return 0, false
	}
	return t.Entries[0].USD, true
}

// Of returns the USD of an hour of a whole GPU: the price of its node pool, else of the entry
// whose words its model begins with, the longest first, else that of all others.
func (t *Table) Of(pool, model string) (usd float64, ok bool) {
	has, best := words(model), -1
	for i := range t.Entries {
		e := &t.Entries[i]
		n := len(e.words)
		switch {
		case e.Pool != "":
			if e.Pool == pool {
				return e.USD, true
			}
		case n > best && n <= len(has) && slices.Equal(e.words, has[:n]):
			usd, ok, best = e.USD, true, n
		}
	}
	return usd, ok
}

// String returns the table as Parse reads it.
func (t *Table) String() string { return t.text }

// Into returns the check of a flag's value, which parses it into a table.
func Into(value *string, t *Table) func() error {
	return func() (err error) {
		*t, err = Parse(*value)
		return err
	}
}

// MarshalJSON writes the table as Parse reads it.
func (t Table) MarshalJSON() ([]byte, error) { return json.Marshal(t.text) }

// UnmarshalJSON reads a table, or a number: the price of all GPUs.
func (t *Table) UnmarshalJSON(b []byte) error {
	var s string
	var n float64
	switch {
	case json.Unmarshal(b, &s) == nil:
	case json.Unmarshal(b, &n) == nil:
		s = string(b)
	default:
		return errors.New("prices are a text or a number")
	}
	parsed, err := Parse(s)
	if err == nil {
		*t = parsed
	}
	return err
}

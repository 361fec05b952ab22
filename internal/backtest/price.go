// SPDX-License-Identifier: Apache-2.0

package backtest

import (
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"strings"
)

// Price is what an hour of one GPU costs.
type Price struct {
	Provider, Instance, GPU string
	USD                     float64 // per GPU and hour
}

// Prices is a price list.
type Prices []Price

// ReadPrices reads a CSV with the columns gpu_name and usd_per_gpu_hour, and if
// there are provider and instance_type. Errors say name, line and column.
func ReadPrices(name string, r io.Reader) (Prices, error) {
	t := &table{name: name, in: csv.NewReader(r)}
	t.in.ReuseRecord = true
	if err := t.header(); err != nil {
		return nil, err
	}
	if !t.has("gpu_name", "usd_per_gpu_hour") {
		return nil, fmt.Errorf("%s:1: want the columns gpu_name and usd_per_gpu_hour", name)
	}
	text := func(column string) string {
		if i, ok := t.column[column]; ok {
			return strings.Clone(strings.TrimSpace(t.record[i]))
		}
		return ""
	}
	var out Prices
	for {
		record, err := t.in.Read()
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		t.record = record
		p := Price{Provider: text("provider"), Instance: text("instance_type"), GPU: text("gpu_name")}
		if err := t.numbers(1e6, map[string]*float64{"usd_per_gpu_hour": &p.USD}); err != nil {
			return nil, err
		}
		out = append(out, p)
	}
}

// Of is the lowest price for a GPU; ok is false where the list has none.
func (p Prices) Of(gpu string) (best Price, ok bool) {
	for _, x := range p {
		if strings.EqualFold(x.GPU, gpu) && (!ok || x.USD < best.USD) {
			best, ok = x, true
		}
	}
	return best, ok
}

// SPDX-License-Identifier: Apache-2.0

package backtest

import (
	"fmt"
	"io"
	"strings"

	"github.com/gpupilot/gpupilot/internal/replay/trace"
)

// Price is the price of one GPU.
type Price struct {
	Provider, Instance, GPU string
	USD                     float64 // per GPU-hour
}

// Prices is a price list.
type Prices []Price

// ReadPrices reads a CSV with the columns gpu_name and usd_per_gpu_hour. The columns
// provider and instance_type are optional. Errors give name, line and column.
func ReadPrices(name string, r io.Reader) (out Prices, err error) {
	in, err := trace.NewTable(name, r)
	if err != nil {
		return nil, err
	}
	if !in.Has("gpu_name", "usd_per_gpu_hour") {
		return nil, fmt.Errorf("%s:1: want the columns gpu_name and usd_per_gpu_hour", name)
	}
	for {
		ok, err := in.Next()
		if err != nil {
			return nil, err
		}
		if !ok {
			return out, nil
		}
		p := Price{Provider: in.Text("provider"), Instance: in.Text("instance_type"), GPU: in.Text("gpu_name")}
		if p.USD, err = in.Required("usd_per_gpu_hour", 1e6); err != nil {
			return nil, err
		}
		out = append(out, p)
	}
}

// Of returns the lowest price of a GPU; ok is false if the list does not have it.
func (p Prices) Of(gpu string) (best Price, ok bool) {
	for _, x := range p {
		if strings.EqualFold(x.GPU, gpu) && (!ok || x.USD < best.USD) {
			best, ok = x, true
		}
	}
	return best, ok
}

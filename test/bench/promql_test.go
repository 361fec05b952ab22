// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"context"
	"fmt"
	"runtime"
	"testing"

	"github.com/gpupilot/gpupilot/internal/base/fair"
	"github.com/gpupilot/gpupilot/internal/promql/engine"
)

// BenchmarkPromQL evaluates instant queries as the controller does.
func BenchmarkPromQL(b *testing.B) {
	for _, nodes := range []int{100, 1000, 10000} {
		f, err := newPromFleet(nodes, 50)
		if err != nil {
			b.Fatal(err)
		}
		queries := f.engine()
		for _, q := range promQueries() {
			b.Run(fmt.Sprintf("%s/%d", q.name, nodes*gpus), func(b *testing.B) {
				b.ReportAllocs()
				run := func() {
					if _, _, err := queries.Instant(context.Background(), engine.Query{PromQL: q.promQL, Payer: fair.Namespace("bench")}, f.now); err != nil {
						b.Fatal(err)
					}
				}
				run() // makes the indexes
				for b.Loop() {
					run()
				}
			})
		}
		runtime.KeepAlive(f)
	}
}

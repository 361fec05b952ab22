// SPDX-License-Identifier: Apache-2.0

package promfleet

import (
	"context"
	"fmt"
	"runtime"
	"testing"

	"github.com/gpupilot/gpupilot/internal/promql/engine"
)

// BenchmarkPromQL evaluates instant queries as the controller does.
func BenchmarkPromQL(b *testing.B) {
	for _, nodes := range []int{100, 1000, 10000} {
		f, err := New(nodes, 50)
		if err != nil {
			b.Fatal(err)
		}
		queries := f.Engine()
		for _, q := range Queries() {
			b.Run(fmt.Sprintf("%s/%d", q.Name, nodes*GPUs), func(b *testing.B) {
				b.ReportAllocs()
				run := func() {
					if _, _, err := queries.Instant(context.Background(), engine.Query{PromQL: q.PromQL, Payer: "bench"}, f.Now); err != nil {
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

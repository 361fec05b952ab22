// SPDX-License-Identifier: Apache-2.0

package gputest

import (
	"testing"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

func topology(t *testing.T, b *bench) {
	r, ok := b.Reader.(gpu.TopologyReader)
	if !ok {
		t.Skip("the backend does not know the topology")
	}
	gpus := b.gpus(t)
	got, err := r.Topology()
	if err != nil {
		t.Fatal(err)
	}
	if len(got.GPUs) != len(gpus) || len(got.Pairs) != len(gpus)*(len(gpus)-1)/2 {
		t.Fatalf("%d GPUs and %d pairs of %d GPUs", len(got.GPUs), len(got.Pairs), len(gpus))
	}
	seen := map[[2]string]bool{}
	for i, g := range got.GPUs {
		if g.UUID != gpus[i].UUID || g.NVLinks < -1 {
			t.Errorf("GPU %d: %+v", i, g)
		}
		for _, h := range got.GPUs[i+1:] {
			seen[[2]string{g.UUID, h.UUID}] = false
		}
	}
	for _, p := range got.Pairs {
		key := [2]string{p.A, p.B}
		if done, known := seen[key]; done || !known || p.NVLinks < -1 {
			t.Errorf("pair %+v", p)
		}
		seen[key] = true
	}
}

// SPDX-License-Identifier: Apache-2.0

package series

import (
	"fmt"
	"testing"
	"time"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

// A namespace pays for the series of exporters that only its objects name: from its share of the memory, not from
// that of the exporter.
func TestANamespacePaysForTheSeriesThatItNames(t *testing.T) {
	s := New(Config{Span: time.Minute, MaxBytes: 8 << 20})
	exporter := s.Target("exporter", TargetLabels{Node: "n"})
	name := func(payer string, n int) (got int) {
		for i := range n {
			if _, ok := exporter.Ref(Key{Device: fmt.Sprint("GPU-", payer, i%40), Field: gpu.Fields()[i/40].ID, PaidBy: payer}); ok {
				got++
			}
		}
		return got
	}
	var page Batch
	for i := range 60 {
		exporter.Append(sec(float64(i)), &page)
	}
	before, own := s.Stats().Memory, exporter.account.group.Bytes()
	if got := name("modest", 80); got != 80 {
		t.Fatalf("%d of 80 series are kept", got)
	}
	paid := s.groups["modest"].Bytes()
	if grown := s.Stats().Memory - before; paid < grown/4 || paid > grown {
		t.Errorf("the namespace pays %d of %d bytes", paid, grown)
	}
	if exporter.account.group.Bytes()+paid != s.Stats().Memory || exporter.account.group.Bytes() < own {
		t.Errorf("the exporter pays %d, the namespace %d of %d bytes", exporter.account.group.Bytes(), paid, s.Stats().Memory)
	}
	checkLedger(t, s)

	// The pods of a greedy namespace take its share: little is left for what it names.
	for i := range 400 {
		pod := fmt.Sprint("p", i)
		a := s.Target("greedy/"+pod, TargetLabels{Namespace: "greedy", Pod: pod, Node: "n"})
		var b Batch
		for m := range 200 {
			if r, ok := a.Ref(Key{Metric: fmt.Sprint("m", m)}); ok {
				b.Add(r, 1)
			}
		}
		a.Append(sec(100), &b)
	}
	if got := name("greedy", 4000); got > 3000 {
		t.Errorf("%d of 4000 series are kept for a namespace without room", got)
	}
	if got := name("small", 80); got != 80 {
		t.Errorf("%d of 80 series are kept for a namespace with room", got)
	}
	checkLedger(t, s)
	exporter.shrink(0)
	s.Drop("exporter")
	if s.groups["modest"] != nil || s.groups["small"] != nil || s.groups["greedy"] == nil {
		t.Errorf("after the exporter was dropped, %d groups are left", len(s.groups))
	}
	checkLedger(t, s)
}

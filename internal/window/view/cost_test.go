// SPDX-License-Identifier: Apache-2.0

package view

import (
	"fmt"
	"testing"
	"time"

	"github.com/gpupilot/gpupilot/internal/gpu/price"
)

// A GPU costs what the reader's own list says or, without one, what the controller says; a MIG instance its share.
func TestPriceBy(t *testing.T) {
	four := 4.0
	f := func(list string, g GPU, model, want string) {
		t.Helper()
		own, err := price.Parse(list)
		if err != nil {
			t.Fatal(err)
		}
		got := "none"
		if usd := PriceBy(&own, "spot", model)(&g); usd != nil {
			got = fmt.Sprintf("%.4g", *usd)
		}
		if got != want {
			t.Errorf("%s of %s by %q costs %s, want %s", g.UUID, model, list, got, want)
		}
	}
	f("", GPU{UUID: "GPU-1", USDPerHour: &four}, "H200", "4")
	f("", GPU{UUID: "GPU-1"}, "H200", "none")
	f("L4=1", GPU{UUID: "GPU-1", USDPerHour: &four}, "H200", "none")
	f("H200=7", GPU{UUID: "GPU-1", USDPerHour: &four}, "H200", "7")
	f("H200=7,pool:spot=2", GPU{UUID: "GPU-1"}, "H200", "2")
	f("7", GPU{UUID: "GPU-1/gi2", Share: 2.0 / 7}, "H200", "2")
	f("7", GPU{UUID: "MIG-2"}, "A100-MIG-1g.5gb", "1")
	f("7", GPU{UUID: "MIG-2"}, "A100", "none")
}

// What was added up in parts is what was added up at once, and says what it lacks.
func TestIdleCost(t *testing.T) {
	two := 2.0
	var a, b, all IdleCost
	if c := a.Sum(); c.Cost != nil || c.SinceIdle != nil {
		t.Errorf("nothing costs %+v", c)
	}
	a.Add(&two, 0.5, 3*time.Hour, false)
	b.Add(&two, 1, -1, true)
	b.Add(nil, 1, time.Hour, false)
	if c := b.Sum(); *c.Cost != 2 || c.Unpriced != 1 || c.SinceIdle != nil || c.AtLeast {
		t.Errorf("%+v", c)
	}
	all.AddAll(&a)
	all.AddAll(&b)
	if c := all.Sum(); *c.Cost != 3 || c.Unpriced != 1 || *c.SinceIdle != 3 || !c.AtLeast {
		t.Errorf("%+v", c)
	}
}

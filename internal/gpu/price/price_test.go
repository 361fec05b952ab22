// SPDX-License-Identifier: Apache-2.0

package price

import (
	"encoding/json"
	"math"
	"strings"
	"testing"
)

func parse(t *testing.T, s string) *Table {
	t.Helper()
	p, err := Parse(s)
	if err != nil {
		t.Fatal(err)
	}
	return &p
}

func TestPrices(t *testing.T) {
	list := parse(t, " NVIDIA H200=4.1, L4=0.8,A100=2,A100-SXM4-80GB=3,pool:spot=1.2 , *=0.5")
	f := func(pool, model string, want float64) {
		t.Helper()
		if got, ok := list.Of(pool, model); !ok || got != want {
			t.Errorf("%s in %q costs %g, %v; want %g", model, pool, got, ok, want)
		}
	}
	f("", "NVIDIA H200", 4.1)
	f("", "NVIDIA-H200", 4.1)
	f("", "NVIDIA-H200-MIG-1g.18gb", 4.1) // of the whole GPU
	f("big", "nvidia l4", 0.8)
	f("", "NVIDIA L40S", 0.5) // not an L4
	f("", "NVIDIA-A100-SXM4-40GB", 2)
	f("", "NVIDIA-A100-SXM4-80GB", 3)
	f("", "NVIDIA A10", 0.5)
	f("", "", 0.5)
	f("spot", "NVIDIA H200", 1.2)
	if usd, ok := list.All(); ok {
		t.Errorf("all GPUs cost %g", usd)
	}

	list = parse(t, "L4=0.8")
	if usd, ok := list.Of("", "NVIDIA H200"); ok {
		t.Errorf("a model without a price costs %g", usd)
	}
	list = parse(t, "2.5")
	f("any", "any", 2.5)
	if usd, ok := list.All(); !ok || usd != 2.5 {
		t.Errorf("all GPUs cost %g, %v", usd, ok)
	}
	for _, none := range []string{"", " ", "0", "0.0"} {
		if p := parse(t, none); p.Has() {
			t.Errorf("%q is %+v", none, p)
		}
	}
}

// An error names the entry.
func TestBadPrices(t *testing.T) {
	f := func(text string, want ...string) {
		t.Helper()
		_, err := Parse(text)
		for _, w := range want {
			if err == nil || !strings.Contains(err.Error(), w) {
				t.Errorf("%q: %v, want %s", text, err, w)
			}
		}
	}
	f("NaN", "want a value from 0")
	f("-1", "want a value from 0")
	f("H200=4,L4=zero", `"L4=zero"`)
	f("H200=4,L4=0", `"L4=0"`, "leave out")
	f("H200=4,L4", `"L4"`, "MODEL=USD")
	f("H200=4,=2", `"=2"`)
	f("H200=4,", `""`)
	f("H200=Inf", `"H200=Inf"`)
	f("NVIDIA=4", `"NVIDIA=4"`, "model")
	f("pool:=4", `"pool:=4"`, "node pool")
	f("H200=4,NVIDIA-H200=5", `"NVIDIA-H200"`, "twice")
	f("2,*=3", `"*"`, "twice")
	f(strings.Repeat("x", 1<<20), "bytes")
}

// MIG instances pay their share.
func TestShares(t *testing.T) {
	f := func(profile, model string, want float64) {
		t.Helper()
		n, ok := Slices(profile)
		if got := Share(n, model); math.Abs(got-want) > 1e-9 || ok != (want > 0) {
			t.Errorf("%s of %s is %g, %v; want %g", profile, model, got, ok, want)
		}
	}
	f("1g.10gb", "NVIDIA H100", 1./7)
	f("3g.20gb", "NVIDIA A100", 3./7)
	f("1g.10gb.me", "NVIDIA H100", 1./7)
	f("1c.3g.20gb", "NVIDIA A100", 3./7)
	f("2g.12gb", "NVIDIA A30", 0.5)
	f("4g.24gb", "NVIDIA-A30", 1)
	f("1g.24gb", "NVIDIA RTX PRO 6000 Blackwell Server Edition", 0.25)
	f("7g.80gb", "", 1)
	for _, bad := range []string{"", "g.", "9g.10gb", "0g.10gb", "small", "1g", "xc.1g.5gb"} {
		f(bad, "NVIDIA H100", 0)
	}
	if got, ok := ModelShare("NVIDIA-A100-SXM4-40GB-MIG-2g.10gb"); !ok || math.Abs(got-2./7) > 1e-9 {
		t.Errorf("the model's instances are %g, %v", got, ok)
	}
	if got, ok := ModelShare("NVIDIA-A100-SXM4-40GB"); ok {
		t.Errorf("a model without MIG has the share %g", got)
	}
	if !IsInstance("GPU-1/gi3") || !IsInstance("MIG-1") || IsInstance("GPU-1") {
		t.Error("IsInstance")
	}
}

// A saved table is a text; the number of older versions is the price of all GPUs.
func TestPricesAsJSON(t *testing.T) {
	f := func(body, want string) {
		t.Helper()
		var list Table
		err := json.Unmarshal([]byte(body), &list)
		again, err2 := json.Marshal(list)
		if err != nil || err2 != nil || string(again) != want {
			t.Errorf("%s: %s, %v, %v; want %s", body, again, err, err2, want)
		}
	}
	f(`2.5`, `"*=2.5"`)
	f(`"L4=0.8,*=2"`, `"L4=0.8,*=2"`)
	f(`""`, `""`)
	var list Table
	if json.Unmarshal([]byte(`{}`), &list) == nil || json.Unmarshal([]byte(`"L4"`), &list) == nil {
		t.Error("a bad table is accepted")
	}
}

// What was parsed has prices above 0, is read again as it is written, and answers for any model.
func FuzzParse(f *testing.F) {
	for _, s := range []string{"2.5", "NVIDIA H200=4.1,L4=0.8,*=2", "pool:a=1,b-c_d=2", "=", ",", "a=b=3", "1e400", "*"} {
		f.Add(s, "NVIDIA L4", "pool")
	}
	f.Fuzz(func(t *testing.T, text, model, pool string) {
		list, err := Parse(text)
		if err != nil {
			if list.Has() {
				t.Errorf("%q is refused and has prices", text)
			}
			return
		}
		for _, e := range list.Entries {
			if !(e.USD > 0 && e.USD <= maxUSD) {
				t.Errorf("%q has the price %g", text, e.USD)
			}
		}
		again, err := Parse(list.String())
		if err != nil || len(again.Entries) != len(list.Entries) {
			t.Errorf("%q is written as %q: %v", text, list.String(), err)
		}
		a, okA := list.Of(pool, model)
		b, okB := again.Of(pool, model)
		if a != b || okA != okB || okA && !list.Has() {
			t.Errorf("%q: %s costs %g, %v, and %g, %v when read again", text, model, a, okA, b, okB)
		}
		if n, ok := Slices(text); ok && !(n > 0 && Share(n, model) > 0 && Share(n, model) <= 1) {
			t.Errorf("%q has %d slices, %g of a GPU", text, n, Share(n, model))
		}
	})
}

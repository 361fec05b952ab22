// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
)

// One of two series of namespace a is absent.
func TestAnIncompleteQueryHasNoNumber(t *testing.T) {
	store := &memory{}
	store.add(t, `agg{namespace="a",name="x",stat="avg"}`, 5)
	store.add(t, `agg{namespace="b",name="x",stat="avg"}`, 7)
	e := New(Config{Incomplete: func() []Incomplete {
		return []Incomplete{{Metric: "agg", Labels: labels.FromStrings("namespace", "a", "name", "y"), Why: "2 of its GPUs"}}
	}}, store)
	f := func(text string, namespaces []string, want float64, incomplete bool) {
		t.Helper()
		s, err := e.Number(t.Context(), Query{PromQL: text, Namespaces: namespaces}, now)
		says := `agg{name="y", namespace="a"} is absent, because it could look like less load: 2 of its GPUs`
		if n, ok := err.(*NumberError); incomplete && (!ok || n.Reason() != "incomplete" || n.Public() != says || !n.Answered()) { // as it is returned
			t.Errorf("%s: %v, %v; want %s", text, s, err, says)
		} else if !incomplete && (err != nil || s.Value != want) {
			t.Errorf("%s: %v, %v; want %v", text, s, err, want)
		}
	}
	f(`avg(agg{namespace="a"})`, nil, 0, true)
	f(`avg(agg)`, nil, 0, true)
	f(`avg(agg)`, []string{"a"}, 0, true)
	f(`avg(agg)`, []string{"b"}, 7, false)
	f(`avg(agg{namespace="b"})`, nil, 7, false)
	f(`agg{namespace="a",name="x"}`, nil, 5, false)
	f(`agg{namespace="a",name="y"}`, nil, 0, true)
	f(`agg{namespace="a",stat="sum"}`, nil, 0, true)
	f(`avg({__name__=~"a.*",namespace="a"})`, nil, 0, true)
	f(`scalar(agg{namespace="a",name="x"}) + scalar(sum(agg{namespace="a"}))`, nil, 0, true)
	f(`sum(agg{namespace="a"}) or vector(0)`, nil, 0, true)
	f(`sum(avg_over_time(agg{namespace="a"}[1m]))`, nil, 0, true)
	f(`vector(3)`, nil, 3, false)

	// A dashboard gets what there is, with a warning.
	v, notes, err := e.Instant(t.Context(), Query{PromQL: "sum by (namespace) (agg)"}, now)
	if err != nil || len(v.(promql.Vector)) != 2 || len(IncompleteIn(notes)) != 1 {
		t.Errorf("%v, %v, %v", v, notes, err)
	}
	if v, why := Complete(v, notes); why == nil || len(v.(promql.Vector)) != 1 || v.(promql.Vector)[0].F != 7 {
		t.Errorf("%v, %v: want that of b", v, why)
	}
}

// What a query makes of a part of the series is dropped, or is not below what it would make
// of all of them.
func TestCompleteIsNeverLower(t *testing.T) {
	kept, dropped := 0, 0
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 1))
		whole, part := &memory{}, &memory{}
		var absent []Incomplete
		for _, ns := range []string{"a", "b", "c"} {
			for i := range 1 + r.IntN(3) {
				l := fmt.Sprintf(`namespace="%s",kind="Deployment",name="w%d"`, ns, i)
				gone := r.IntN(5) == 0
				for _, stat := range []string{"avg", "max"} {
					metric, v := fmt.Sprintf(`agg{%s,stat="%s"}`, l, stat), float64(r.IntN(101))
					if whole.add(t, metric, v); !gone {
						part.add(t, metric, v)
					}
				}
				if gone {
					absent = append(absent, Incomplete{Metric: "agg", Labels: labels.FromStrings("namespace", ns, "kind", "Deployment", "name", fmt.Sprintf("w%d", i))})
				}
			}
		}
		read := func(m *memory, text string, namespaces []string, absent []Incomplete) map[string]float64 {
			e := New(Config{Incomplete: func() []Incomplete { return absent }}, m)
			v, notes, err := e.Instant(t.Context(), Query{PromQL: text, Namespaces: namespaces}, now)
			if err != nil {
				t.Fatal(err)
			}
			v, _ = Complete(v, notes)
			out := map[string]float64{}
			for _, s := range v.(promql.Vector) {
				out[s.Metric.String()] = s.F
			}
			return out
		}
		pick := func(list ...string) string { return list[r.IntN(len(list))] }
		for range 10 {
			text := fmt.Sprintf("%s by (%s) (agg{%s})", pick("sum", "avg", "max", "count", "quantile"),
				pick("", "namespace", "name", "namespace,name", "stat", "namespace,stat"),
				pick("", `namespace="a"`, `namespace=~"a|b"`, `name="w0"`, `name!="w1"`, `stat="avg"`, `namespace="b",stat="max"`))
			text = strings.Replace(text, "(agg", pick("(agg", "(2*agg", "(avg by (namespace,name) (agg"), 1)
			text += strings.Repeat(")", strings.Count(text, "(")-strings.Count(text, ")"))
			if strings.HasPrefix(text, "quantile") {
				at := strings.Index(text, ") (") + 3
				text = text[:at] + "0.5, " + text[at:]
			}
			var namespaces []string
			if r.IntN(3) == 0 {
				namespaces = []string{pick("a", "b")}
			}
			all, some := read(whole, text, namespaces, nil), read(part, text, namespaces, absent)
			for l, v := range all {
				got, ok := some[l]
				if ok && got < v-1e-9 {
					t.Errorf("seed %d: %s of %v: %s %v, with everything it is %v; absent %+v", seed, text, namespaces, l, got, v, absent)
				}
				if ok {
					kept++
				} else {
					dropped++
				}
			}
		}
	}
	if kept < 1000 || dropped < 1000 {
		t.Errorf("%d kept, %d dropped: too few to say anything", kept, dropped)
	}
}

// SPDX-License-Identifier: Apache-2.0

//go:build linux

package engine

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"

	"github.com/gpupilot/gpupilot/internal/promql/scope"
	"github.com/gpupilot/gpupilot/test/weighttest"
)

var dear = flag.Int("dear", 80, "dear queries to make")

// dearQuery makes a query that costs as much as its text can.
func dearQuery(r *rand.Rand) string {
	pattern := func() string { return strconv.Quote(weighttest.Regexp(r, 1<<r.IntN(13))) }
	repeat := func(s string, most int) string { return strings.Repeat(s, 1+r.IntN(most)) }
	long := func() string { return `label_replace(up,"x","` + repeat("a", 3000) + `","","")` }
	var expr func(depth int) string
	expr = func(depth int) string {
		if depth == 0 {
			return []string{"up", `up{pod=~` + pattern() + `}`, "vector(1e300)", "time()", `{__name__=~` + pattern() + `}`, long()}[r.IntN(6)]
		}
		x := expr(depth - 1)
		switch r.IntN(14) {
		case 0:
			return fmt.Sprintf("sum_over_time((%s)[%s:%s])", x, []string{"1m", "1h", "100d", "10s"}[r.IntN(4)], []string{"1s", "1ms", "1m", ""}[r.IntN(4)])
		case 1:
			return fmt.Sprintf(`label_replace(%s,"y",%q,"%s",%s)`, x, repeat("$1", 50), []string{"x", "namespace", "y"}[r.IntN(3)], pattern())
		case 2:
			return fmt.Sprintf(`label_join(%s,"x","%s",%s"x")`, x, repeat("-", 100), repeat(`"x",`, 50))
		case 3:
			return "sum by (" + repeat("pod,", 200) + "x) (" + x + ")"
		case 4:
			return repeat("(", 40) + x + repeat(")", 40)
		case 5:
			return repeat("-", 200) + x
		case 6:
			return x + repeat(" + "+x, 12)
		case 7:
			return x + repeat(" or "+x, 12)
		case 8:
			return `count_values("x", ` + x + ")"
		case 9:
			return "topk(1e9, " + x + ")"
		case 10:
			return "(" + x + ") * on(pod) group_left(" + repeat("x,", 100) + "y) (" + expr(depth-1) + ")"
		case 11:
			return "sort_by_label(" + x + repeat(`,"x"`, 100) + ")"
		case 12:
			return "quantile_over_time(0.5, (" + x + ")[1h:])"
		default:
			return "absent_over_time((" + x + ")[1d:1s])"
		}
	}
	return expr(r.IntN(5))
}

// No query of a tenant costs much before it is refused, or when it runs: whatever nests, repeats or expands.
func TestDearQueriesAreRefused(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	e := New(Config{}, tenants(t))
	limit, err := scope.New(scope.Config{})
	if err != nil {
		t.Fatal(err)
	}
	ran := 0
	for range *dear {
		q := dearQuery(r)
		weighttest.Check(t, "a query of a user: "+q, func() {
			if _, _, err := e.Instant(t.Context(), Query{PromQL: q, Namespaces: []string{"team-a"}}, now); err == nil {
				ran++
			}
		})
		weighttest.Check(t, "a query of an object: "+q, func() { _, _, _ = limit.Limit("team-a", q) })
		match := []string{"up{x=~" + strconv.Quote(weighttest.Regexp(r, 1<<r.IntN(14))) + "}"}
		weighttest.Check(t, "selectors: "+match[0], func() {
			_, _, _ = e.Series(t.Context(), Query{Namespaces: []string{"team-a"}}, Selection{Match: match, From: now, To: now})
		})
	}
	if ran < *dear/20 {
		t.Errorf("%d of %d queries ran: the test makes too few that are allowed", ran, *dear)
	}
}

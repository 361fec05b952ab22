// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpupilot/gpupilot/internal/base/fair"
	"github.com/prometheus/prometheus/util/annotations"
)

// Series, names and values are those of the viewer's namespaces, and of the selectors.
func TestBrowse(t *testing.T) {
	e := New(Config{}, tenants(t))
	f := func(namespaces []string, match []string, limit int, want string) {
		t.Helper()
		q, s := Query{Namespaces: namespaces}, Selection{Match: match, From: now.Add(-time.Hour), To: now, Limit: limit}
		var got []string
		add := func(what string, list any, notes annotations.Annotations, err error) {
			if err != nil {
				t.Errorf("%s of %v, %v: %v", what, namespaces, match, err)
			}
			if warnings, _ := notes.AsStrings("", 0, 0); len(warnings) > 0 {
				what += "(" + strings.Join(warnings, ",") + ")"
			}
			got = append(got, fmt.Sprint(what, list))
		}
		if len(match) > 0 {
			series, notes, err := e.Series(t.Context(), q, s)
			add("", series, notes, err)
		}
		names, notes, err := e.LabelNames(t.Context(), q, s)
		add("", names, notes, err)
		values, notes, err := e.LabelValues(t.Context(), q, "pod", s)
		add("", values, notes, err)
		if text := strings.Join(got, " "); text != want {
			t.Errorf("%v, %v:\n got %s\nwant %s", namespaces, match, text, want)
		}
	}
	const a0, a1, b0 = `{__name__="up", namespace="team-a", pod="a-0"}`, `{__name__="up", namespace="team-a", pod="a-1"}`, `{__name__="up", namespace="team-b", pod="b-0"}`
	f(nil, nil, 0, `[__name__ namespace node pod] [ a-0 a-1 b-0]`)
	f([]string{}, nil, 0, `[] []`)
	f([]string{""}, nil, 0, `[] []`)
	f([]string{"team-a"}, nil, 0, `[__name__ namespace pod] [a-0 a-1]`)
	f([]string{"team-a", "team-b"}, nil, 0, `[__name__ namespace pod] [a-0 a-1 b-0]`)
	f([]string{"team-a"}, []string{`up`}, 0, `[`+a0+` `+a1+`] [__name__ namespace pod] [a-0 a-1]`)
	f([]string{}, []string{`up`}, 0, `[] [] []`)
	f([]string{"team-b"}, []string{`up{namespace="team-a"}`}, 0, `[] [] []`)
	f(nil, []string{`up{pod="b-0"}`, `up{pod=~"a-.|b-."}`, `up{pod="a-1"}`}, 0, `[`+a0+` `+a1+` `+b0+`] [__name__ namespace pod] [a-0 a-1 b-0]`)
	const cut = `(results truncated due to limit)`
	f(nil, []string{`up{pod!=""}`}, 1, cut+`[`+a0+`] `+cut+`[__name__] `+cut+`[a-0]`)
	f(nil, []string{`up{pod!=""}`}, 3, `[`+a0+` `+a1+` `+b0+`] [__name__ namespace pod] [a-0 a-1 b-0]`)
}

// Selectors have the limits of a query.
func TestLimitsOfSelectors(t *testing.T) {
	e := New(Config{MaxLength: 1000, MaxSeries: 3}, tenants(t))
	f := func(what string, match []string, limit Limit, syntax bool) {
		t.Helper()
		_, _, err := e.Series(t.Context(), Query{Payer: fair.Namespace("p")}, Selection{Match: match, From: now, To: now})
		_, isSyntax := err.(*SyntaxError) // as it is returned
		if limitOf(err) != limit || isSyntax != syntax || limit == "" && !syntax && err != nil {
			t.Errorf("%s: %v; want the limit %q", what, err, limit)
		}
	}
	f("the most selectors", slices.Repeat([]string{"x"}, maxSelectors), "", false)
	f("more selectors", slices.Repeat([]string{"x"}, maxSelectors+1), LimitLength, false)
	f("the most bytes", []string{strings.Repeat("x", 500), strings.Repeat("y", 500)}, "", false)
	f("more bytes", []string{strings.Repeat("x", 500), strings.Repeat("y", 501)}, LimitLength, false)
	f("too large expressions", slices.Repeat([]string{`x{a=~"a{900}"}`}, 25), LimitLength, false)
	f("no selector", []string{"sum(x)"}, "", true)
	f("too many series", []string{"up"}, LimitSeries, false)
	if running, waiting := e.slots.Counts(); running != 0 || waiting != 0 {
		t.Errorf("%d slots are lost", running)
	}
}

// A text is checked as a query before it is formatted or taken apart.
func TestFormatAndSelectors(t *testing.T) {
	e := New(Config{MaxDepth: 5}, tenants(t))
	f := func(text, format, selectors string, limit Limit) {
		t.Helper()
		got, err := e.Format(t.Context(), Query{PromQL: text})
		sets, errSelectors := e.Selectors(text)
		if got != format || err == nil && fmt.Sprint(sets) != selectors || limitOf(err) != limit || fmt.Sprint(err) != fmt.Sprint(errSelectors) || (err == nil) == (format == "") {
			t.Errorf("%s: %q, %v, %v", text, got, sets, err)
		}
	}
	f(`sum  by(a)(x{b="c"}) or y`, `sum by (a) (x{b="c"}) or y`, `[[b="c" __name__="x"] [__name__="y"]]`, "")
	f(`sum  by(a)(x)`, `sum by (a) (x)`, `[[__name__="x"]]`, "")
	f(`1+1`, `1 + 1`, `[]`, "")
	f(`sum(`, ``, ``, "")
	f(`-(-(-(x)))`, ``, ``, LimitLength)
}

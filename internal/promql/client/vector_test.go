// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
)

func TestVector(t *testing.T) {
	f := func(name, answer, want, says string) {
		t.Helper()
		c := client(t, Config{}, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, answer) })
		v, err := c.Vector(t.Context(), "x", t0)
		if says != "" && (err == nil || !strings.Contains(err.Error(), says)) || says == "" && (err != nil || v.String() != want) {
			t.Errorf("%s: %s, %v; want %s %q", name, v, err, want, says)
		}
	}
	f("a scalar", data("scalar", `[1800000000, "2.5"]`), "{} => 2.5 @[1800000000]", "")
	f("two elements, of which one is old, and a histogram", data("vector", `[
		{"metric": {"pod": "a"}, "value": [1800000000, "0"]}, {"metric": {"pod": "b"}, "value": [1799999000, "1"]},
		{"metric": {"pod": "c"}, "histogram": [1800000000, {"count": "1", "sum": "1", "buckets": []}]}]`), `{pod="a"} => 0 @[1800000000]`, "")
	f("nothing", data("vector", `[]`), "", "")
	f("a range", data("matrix", `[]`), "", "returns a matrix")
	f("no result", `{"status": "success"}`, "", "no result")
	f("as old as is allowed", data("vector", `[{"metric": {}, "value": [1799999880, "1"]}, {"metric": {}, "value": [1799999879.999, "2"]}]`), "{} => 1 @[1799999880]", "")
	f("NaN is a value of a vector", data("vector", `[{"metric": {}, "value": [1800000000, "NaN"]}]`), "{} => NaN @[1800000000]", "")
	f("an error", `{"status": "error", "errorType": "bad_data", "error": "bad"}`, "", "bad")
}

func TestSeries(t *testing.T) {
	c := client(t, Config{}, func(w http.ResponseWriter, r *http.Request) {
		if r.FormValue("match[]") != `{a="b"}` {
			http.Error(w, "what?", http.StatusBadRequest)
			return
		}
		fmt.Fprint(w, `{"status": "success", "data": [{"__name__": "x", "a": "b"}]}`)
	})
	sets, err := c.Series(t.Context(), `{a="b"}`, t0, t0)
	if err != nil || len(sets) != 1 || sets[0]["__name__"] != "x" {
		t.Errorf("%v, %v", sets, err)
	}
	if _, err := c.Series(t.Context(), `{a="c"}`, t0, t0); err == nil {
		t.Error("an error was not reported")
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := c.Series(gone, `{a="b"}`, t0, t0); !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "no answer within 1m0s") {
		t.Errorf("a request that is gone: %v", err)
	}
}

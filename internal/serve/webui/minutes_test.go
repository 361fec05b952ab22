// SPDX-License-Identifier: Apache-2.0

package webui

import (
	"encoding/json"
	"fmt"
	"math"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/gpupilot/gpupilot/internal/window/history"
)

func TestMinuteQueries(t *testing.T) {
	now := time.Date(2026, 11, 22, 12, 3, 40, 0, time.UTC)
	f := func(query, want string) {
		t.Helper()
		v, err := url.ParseQuery(query)
		if err != nil {
			t.Fatal(err)
		}
		q, err := parseMinuteQuery(v, now)
		got := fmt.Sprint(err)
		if err == nil {
			got = fmt.Sprint(q.To.Sub(q.From), " ", q.Step, " ", q.Metrics)
		}
		if !strings.HasPrefix(got, want) {
			t.Errorf("%s: %s, want %s", query, got, want)
		}
	}
	f("", "24h1m40s 2m0s []")
	f("since=10m", "10m40s 1m0s []")
	f("since=336h&step=30m&metric=signal/&metric=replicas/serving", "336h3m40s 30m0s [signal/ replicas/serving]")
	f("since=337h", `since is "337h", want a duration from 1m to 336h`)
	f("since=soon", `since is "soon"`)
	f("step=90s", `step is "90s", want whole minutes`)
	f("step=0s", `step is "0s"`)
	f(strings.Repeat("metric=x&", 65), "65 parameters metric, want at most 64")
}

func TestReadMinutes(t *testing.T) {
	s := history.New(history.Config{})
	w := history.Workload{Namespace: "llm", Kind: "GPUAutoscaler", Name: "chat"}
	start := time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)
	for i, v := range []float64{1, 2, math.NaN(), 4, 5, 6} {
		unit := "%" // the spec is changed
		if i > 3 {
			unit = "ratio"
		}
		values := []history.Value{{Metric: history.NewSignal("a", unit, "replica"), Mean: v, Max: 2 * v, Count: 1}, {Metric: "replicas/serving", Mean: 1, Max: math.NaN(), Count: math.NaN()}}
		if err := s.Append(w, start.Add(time.Duration(i)*time.Minute), values); err != nil {
			t.Fatal(err)
		}
	}
	f := func(q MinuteQuery, want string) {
		t.Helper()
		m, ok, err := ReadMinutes(s, w, &q)
		if err != nil || !ok {
			t.Fatal(ok, err)
		}
		b, err := json.Marshal(m.Metrics)
		if err != nil || string(b) != want {
			t.Errorf("%+v:\n%s, want\n%s (%v)", q, b, want, err)
		}
	}
	f(MinuteQuery{From: start, To: start.Add(6 * time.Minute), Step: time.Minute, Metrics: []string{"signal/"}},
		`[{"name":"signal/a","mean":[1,2,null,4,5,6,null],"max":[2,4,null,8,10,12,null]}]`)
	f(MinuteQuery{From: start, To: start.Add(5 * time.Minute), Step: 3 * time.Minute, Metrics: []string{"signal/a"}},
		`[{"name":"signal/a","mean":[1.5,5],"max":[4,12]}]`)
	f(MinuteQuery{From: start.Add(2 * time.Minute), To: start.Add(2 * time.Minute), Step: time.Minute}, `[{"name":"replicas/serving","mean":[1],"max":[null]}]`)
	f(MinuteQuery{From: start, To: start, Step: time.Minute, Metrics: []string{"sign"}}, `[]`)

	long := MinuteQuery{From: start, To: start.Add(300_000 * time.Minute), Step: time.Minute}
	if _, ok, err := ReadMinutes(s, w, &long); err == nil || !ok {
		t.Errorf("600,000 values: %v, %v", ok, err)
	}
	if _, ok, err := ReadMinutes(s, history.Workload{Namespace: "llm", Kind: "GPUAutoscaler", Name: "x"}, &long); ok || err != nil {
		t.Errorf("an unknown workload: %v, %v", ok, err)
	}
}

func TestNumbersAreReadAsWritten(t *testing.T) {
	b, err := json.Marshal(Numbers{1.5, math.NaN(), 0, -3e9})
	if err != nil || string(b) != "[1.5,null,0,-3e+09]" {
		t.Fatal(string(b), err)
	}
	var got Numbers
	if err := json.Unmarshal(b, &got); err != nil || fmt.Sprint(got) != "[1.5 NaN 0 -3e+09]" {
		t.Errorf("%v, %v", got, err)
	}
}

func TestMinutesAreServed(t *testing.T) {
	f := func(path string, want int) {
		t.Helper()
		if r := get(t, path); r.Code != want {
			t.Errorf("%s: %d %s, want %d", path, r.Code, r.Body, want)
		}
	}
	f("/api/v1/minutes?namespace=llm&name=chat", 200)
	f("/api/v1/minutes?namespace=llm&name=nope", 404)
	f("/api/v1/minutes?namespace=llm&name=chat&since=1y", 400)
	f("/api/v1/minutes?name=chat", 400)
}

// SPDX-License-Identifier: Apache-2.0

package view

import (
	"encoding/json"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/gpupilot/gpupilot/internal/window/history"
)

func TestReadMinutes(t *testing.T) {
	s := history.New(history.Config{})
	w := history.Workload{Namespace: "llm", Kind: "GPUAutoscaler", Name: "chat"}
	start := time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)
	for i, v := range []float64{1, 2, math.NaN(), 4, 5, 6} {
		unit := "%" // the spec is changed
		if i > 3 {
			unit = "ratio"
		}
		values := []history.Value{{Metric: history.NewMetric("signal", "signal", "a", "unit", unit), Mean: v, Max: 2 * v, Count: 1}, {Metric: "serving", Mean: 1, Max: math.NaN(), Count: math.NaN()}}
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
	f(MinuteQuery{From: start, To: start.Add(6 * time.Minute), Step: time.Minute, Metrics: []history.Metric{"signal"}},
		`[{"name":"signal","labels":{"signal":"a","unit":"%"},"mean":[1,2,null,4,null,null,null],"max":[2,4,null,8,null,null,null]},`+
			`{"name":"signal","labels":{"signal":"a","unit":"ratio"},"mean":[null,null,null,null,5,6,null],"max":[null,null,null,null,10,12,null]}]`)
	f(MinuteQuery{From: start, To: start.Add(5 * time.Minute), Step: 3 * time.Minute, Metrics: []history.Metric{`signal{unit="%"}`}},
		`[{"name":"signal","labels":{"signal":"a","unit":"%"},"mean":[1.5,4],"max":[4,8]}]`)
	f(MinuteQuery{From: start.Add(2 * time.Minute), To: start.Add(2 * time.Minute), Step: time.Minute}, `[{"name":"serving","mean":[1],"max":[null]}]`)
	f(MinuteQuery{From: start, To: start, Step: time.Minute, Metrics: []history.Metric{"sign", `signal{unit="x"}`}}, `[]`)

	long := MinuteQuery{From: start, To: start.Add(300_000 * time.Minute), Step: time.Minute}
	if _, ok, err := ReadMinutes(s, w, &long); err == nil || !ok {
		t.Errorf("600,000 values: %v, %v", ok, err)
	}
	if _, ok, err := ReadMinutes(s, history.Workload{Namespace: "llm", Kind: "GPUAutoscaler", Name: "x"}, &long); ok || err != nil {
		t.Errorf("an unknown workload: %v, %v", ok, err)
	}
}

// A signal whose unit has changed has a value in one of its metrics.
func TestNamedMinutes(t *testing.T) {
	nan := math.NaN()
	m := Minutes{Metrics: []MinuteMetric{
		{Name: "signal", Labels: map[string]string{"signal": "a", "unit": "%"}, Mean: Numbers{1, nan}},
		{Name: "signal", Labels: map[string]string{"signal": "a", "unit": "x"}, Mean: Numbers{nan, 2}},
		{Name: "gpus", Mean: Numbers{8}},
	}}
	f := func(step int, want float64, name string, labels ...string) {
		t.Helper()
		got := 0.0
		if x := m.Named(step, name, labels...); x != nil {
			got = x.Mean[step]
		}
		if got != want {
			t.Errorf("%s %v in step %d is %g, want %g", name, labels, step, got, want)
		}
	}
	f(0, 1, "signal", "signal", "a")
	f(1, 2, "signal", "signal", "a")
	f(2, 0, "signal", "signal", "a")
	f(0, 0, "signal", "signal", "b")
	f(0, 8, "gpus")
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

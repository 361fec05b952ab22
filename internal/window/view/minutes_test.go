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

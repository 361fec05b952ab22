// SPDX-License-Identifier: Apache-2.0

package main

import (
	"math"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/gpupilot/gpupilot/test/simnode"
)

// history makes samples one second apart: needs and replicas by second. All
// replicas serve three seconds after they were asked for.
func history(needs, replicas []int) *track {
	t := &track{name: llm, least: 1}
	for i := range needs {
		t.add(sample{
			at: time.Duration(i) * time.Second, need: needs[i], replicas: replicas[i],
			serving: replicas[max(0, i-3)], util: 50, rejected: 1,
		})
	}
	return t
}

// times is n repeated.
func times(pairs ...int) []int {
	var out []int
	for i := 0; i < len(pairs); i += 2 {
		for range pairs[i] {
			out = append(out, pairs[i+1])
		}
	}
	return out
}

func TestSummarise(t *testing.T) {
	s := history(times(5, 1, 30, 6, 40, 1), times(7, 1, 10, 2, 18, 6, 12, 6, 28, 1)).summarise()
	f := func(what string, got, want any) {
		t.Helper()
		if got != want {
			t.Errorf("%s: %v, want %v", what, got, want)
		}
	}
	f("need", s.need, 6)
	f("peak", s.peak, 6)
	f("first scale-up", s.scaleUp, moment{2 * time.Second, true})
	f("peak served", s.served, moment{15 * time.Second, true})
	f("back", s.back, moment{12 * time.Second, true})
	f("turned away", s.rejected, 75.0)
	f("beyond the allowance", s.over.at, time.Duration(-1))
	f("GPU seconds", s.replicaSeconds, float64(6*1+10*2+30*6+28*1))

	never := history(times(5, 1, 30, 6, 5, 1), times(40, 1)).summarise()
	f("no scale-up", never.scaleUp.String(), "never")
	f("never served", never.served.known, false)
	f("at 1 all the time", never.back.known, false)
	f("a load that never falls", history(times(5, 1, 9, 3), times(14, 1)).summarise().back.known, false)
	f("nothing seen", (&track{}).summarise().over.at, time.Duration(-1))
}

func TestVerdict(t *testing.T) {
	needs := times(5, 1, 30, 6, 40, 1)
	good := times(7, 1, 28, 6, 12, 6, 28, 1)
	f := func(name string, llmReplicas, classicReplicas, needs []int, recorded bool, want ...string) {
		t.Helper()
		got := verdict(history(needs, llmReplicas).summarise(), history(needs, classicReplicas).summarise(), 1, recorded, false)
		if len(got) != len(want) {
			t.Errorf("%s: %q, want %q", name, got, want)
			return
		}
		for i := range want {
			if !strings.Contains(got[i], want[i]) {
				t.Errorf("%s: %q, want %q in it", name, got[i], want[i])
			}
		}
	}
	f("both good", good, good, needs, false)
	f("9 for 6 is within the allowance", times(7, 1, 28, 9, 12, 6, 28, 1), good, needs, false)
	f("10 for 6 is not", times(7, 1, 28, 10, 12, 6, 28, 1), good, needs, false, "10 replicas at 00:07")
	f("the HPA may overshoot", good, times(7, 1, 28, 12, 12, 6, 28, 1), needs, false)
	f("too few", good, times(7, 1, 28, 5, 12, 5, 28, 1), needs, false, "classic reached 5")
	f("not back", good, times(7, 1, 28, 6, 40, 2), needs, false, "classic ended with 2")
	f("too little load", times(7, 1, 28, 3, 40, 1), times(7, 1, 28, 3, 40, 1), times(5, 1, 30, 3, 40, 1), false, "only 3", "only 3")
	f("not at 1 before", times(7, 2, 28, 6, 40, 1), good, needs, false, "began with 2")
	f("replicas that stay too long", times(7, 1, 28, 6, 39, 6, 1, 1), good, needs, false, "6 replicas at 00:57")
	f("a recorded load may end high", times(7, 1, 28, 6, 40, 3), times(7, 1, 28, 6, 40, 5), times(5, 1, 30, 6, 40, 2), true)
	f("but must be followed", times(75, 2), good, needs, true, "never scaled up", "never scaled down")
}

// Beside the usual chain the replicas of the night are no excess, the objective is to be kept, and nothing is expected of
// classic.
func TestVerdictBesideTheChain(t *testing.T) {
	needs := times(5, 2, 30, 6, 40, 2)
	f := func(replicas []int, missed float64, recorded bool, want string) {
		t.Helper()
		tr := history(needs, replicas)
		tr.least = 3
		for i := range tr.samples {
			tr.samples[i].ended, tr.samples[i].missed = float64(1000*i), 1000*missed*float64(i)
		}
		tr.now = tr.samples[len(tr.samples)-1]
		if got := strings.Join(verdict(tr.summarise(), summary{}, 3, recorded, true), "; "); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	good := times(7, 3, 28, 6, 12, 6, 28, 3)
	f(good, 0.01, false, "")
	f(good, 0.011, false, "llm missed the objective of 99%: 1.1 % of its requests were beyond a limit")
	f(good, 0.5, true, "") // a recorded load may jump faster than replicas start
	f(times(7, 4, 28, 6, 12, 6, 28, 4), 0, false, "llm began with 4 replicas, not 3; llm ended with 4 replicas, not 3; llm had 4 replicas at 00:00, more than 1.5 times the 2 needed")

	tr := history(needs, good)
	tr.least = 3
	s := tr.summarise()
	if s.scaleUp != (moment{2 * time.Second, true}) || s.back != (moment{12 * time.Second, true}) {
		t.Errorf("up after %v, back after %v", s.scaleUp, s.back)
	}
	early := history(needs, times(3, 3, 32, 6, 12, 6, 28, 3))
	early.least = 3
	if s := early.summarise(); s.scaleUp != (moment{0, true}) {
		t.Errorf("scaled up before the load needed it: %v", s.scaleUp)
	}
}

func TestWorkingDay(t *testing.T) {
	s, err := newScenario("360", "", "")
	if err != nil {
		t.Fatal(err)
	}
	short := s
	s = s.withChain("/usr/bin/prometheus")
	if s.startup != chainStartup || s.least != chainLeast || short.startup != startup || short.least != 1 || short.full != target {
		t.Errorf("with the chain %+v, without it %+v", s, short)
	}
	if s.shape.Duration() != s.length || s.shape.At(0) != 0 || s.shape.At(15*time.Second) != chainBase || s.shape.At(200*time.Second) != peakLoad || s.shape.At(s.length) != chainBase {
		t.Error("the load is not a working day")
	}
	// It is full where the first request misses a limit.
	l := latency()
	if below, above := l.Missed(simnode.Load{Utilization: s.full}, capacity), l.Missed(simnode.Load{Utilization: s.full + 0.2}, capacity); below != 0 || above <= 0 || s.full < target {
		t.Errorf("at %g %% %g miss, above %g", s.full, below, above)
	}
	if night, noon := s.need(chainBase), s.need(peakLoad); night != chainLeast-1 || noon != 6 {
		t.Errorf("the night needs %d replicas, noon %d", night, noon)
	}
}

func TestScenario(t *testing.T) {
	s, err := newScenario("90", "", "")
	if err != nil {
		t.Fatal(err)
	}
	if s.length != 90*time.Second || s.shape.Duration() != s.length || s.hpaSync != quickSync {
		t.Errorf("%+v", s)
	}
	if s.need(s.shape.At(0)) != 1 || s.need(s.shape.At(40*time.Second)) != 6 || s.need(s.shape.At(s.length)) != 1 {
		t.Error("the load does not go from 1 to 6 and back")
	}
	if s, err = newScenario("", "", ""); err != nil || s.length != 0 || s.hpaSync != slowSync {
		t.Errorf("without an end: %+v, %v", s, err)
	}
	if s, err = newScenario("100", "sine=0.1:1:20s", ""); err != nil || s.length != 100*time.Second || !s.recorded {
		t.Errorf("a sine: %+v, %v", s, err)
	}
	for at, want := range map[time.Duration]float64{0: baseLoad, lead: peakLoad / 10, lead + 10*time.Second: peakLoad, 60 * time.Second: baseLoad} {
		if got := s.shape.At(at); math.Abs(got-want) > 1e-9 {
			t.Errorf("a sine at %v: %v, want %v", at, got, want)
		}
	}
	if s, err = newScenario("", "burst=1:5s:15s:0.2", ""); err != nil || s.length != 0 || s.shape.At(21*time.Second) != peakLoad {
		t.Errorf("bursts without an end: %+v, %v", s, err)
	}
	bad := func(seconds, file, speed, want string) {
		t.Helper()
		if _, err := newScenario(seconds, file, speed); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q %q %q: %v, want %q in it", seconds, file, speed, err, want)
		}
	}
	bad("soon", "", "", "DEMO_SECONDS=soon")
	bad("0", "", "", "DEMO_SECONDS=0")
	bad("", "", "3", "LOAD")
	bad("", "sine=0.1:1:20s", "3", "SPEED")
	bad("", "sine=0.1:2:20s", "", "LOAD: sine")
	bad("", "/nowhere.csv", "", "/nowhere.csv")
	bad("", "/nowhere.csv", "-3", "SPEED=-3")
}

func TestScreenFits(t *testing.T) {
	a := history(times(5, 1, 30, 6, 40, 1), times(7, 1, 10, 2, 18, 6, 12, 6, 28, 1))
	v := view{
		title: strings.Repeat("long ", 50), ui: "http://127.0.0.1:1", kube: "/tmp/x", elapsed: 75 * time.Second, length: 90 * time.Second,
		tracks: []*track{a, {name: classic}}, labels: []string{"GPUAutoscaler", "plain HPA"},
		notes: []note{{time.Second, llm, strings.Repeat("a sentence of many words ", 20)}},
	}
	for _, width := range []int{40, 80, 120, 200} {
		for _, line := range v.render(width, 40) {
			if n := utf8.RuneCountInString(strip(line)); n > width {
				t.Errorf("at width %d a line of %d columns: %q", width, n, strip(line))
			}
		}
	}
	if line := v.line(); !strings.Contains(line, "llm  50 % replicas 1") {
		t.Errorf("line %q", line)
	}
}

// strip takes the escapes out of a line.
func strip(s string) string {
	var b strings.Builder
	escape := false
	for _, r := range s {
		switch {
		case r == '\x1b':
			escape = true
		case escape:
			escape = r < '@' || r > '~' || r == '['
		default:
			b.WriteRune(r)
		}
	}
	return b.String()
}

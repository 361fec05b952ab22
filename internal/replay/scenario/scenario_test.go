// SPDX-License-Identifier: Apache-2.0

package scenario

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/diff"

	"github.com/gpupilot/gpupilot/internal/scale"
)

var update = flag.Bool("update", false, "write the scenarios' decisions anew; promises stay as they are")

// TestPromises plays the engine's promises. Each scenario must keep what it
// promises, decide as recorded, and decide the same when the
// controller restarts every few seconds.
func TestPromises(t *testing.T) {
	files, err := filepath.Glob("../../scale/testdata/*.txtar")
	if err != nil || len(files) < 15 {
		t.Fatalf("%d scenarios, %v", len(files), err)
	}
	for _, path := range files {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".txtar"), func(t *testing.T) { play(t, path) })
	}
}

func play(t *testing.T, path string) {
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if now := playText(t, path, data); *update {
		if err := os.WriteFile(path, now, 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// The scenario of steps has the policy of the example.
func TestStepsExample(t *testing.T) {
	example, err1 := os.ReadFile("../../../examples/steps.yaml")
	story, err2 := os.ReadFile("../../scale/testdata/steps.txtar")
	if err := errors.Join(err1, err2); err != nil || !bytes.Contains(story, example) {
		t.Errorf("steps.txtar does not have the policy of examples/steps.yaml: %v", err)
	}
}

// TestDocs plays the story in the documentation, which is an example, too.
func TestDocs(t *testing.T) {
	const path, begin, end = "../../../docs/scenarios.md", "```txtar\n", "```\n"
	const example = "../../../examples/incident.txtar"
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := bytes.Cut(data, []byte(begin))
	text, after, closed := bytes.Cut(rest, []byte(end))
	if !ok || !closed {
		t.Fatalf("no story in %s", path)
	}
	now := playText(t, path, text)
	if *update {
		if err := errors.Join(os.WriteFile(path, slices.Concat(before, []byte(begin), now, []byte(end), after), 0o644), os.WriteFile(example, now, 0o644)); err != nil {
			t.Fatal(err)
		}
	} else if same, err := os.ReadFile(example); err != nil || !bytes.Equal(same, text) {
		t.Errorf("%s is not the story of %s: %v", example, path, err)
	}
}

// playText checks one scenario and returns it with the decisions of now.
func playText(t *testing.T, path string, data []byte) []byte {
	s, err := Parse(filepath.Base(path), data)
	if err != nil {
		t.Fatal(err)
	}
	moments, err := s.Run(nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, err := range s.Broken(moments) {
		t.Error(err)
	}
	got := Decisions(moments)
	if got != s.Recorded() && !*update {
		t.Errorf("go test ./internal/replay/scenario -update writes these decisions:\n%s", diff.Diff("recorded", []byte(s.Recorded()), "now", []byte(got)))
	}
	n := 0
	restarted, err := s.Run(func(s scale.State) scale.State {
		if n++; n%7 != 0 {
			return s
		}
		out, err := restart(s)
		if err != nil {
			t.Fatal(err)
		}
		return out
	})
	if err != nil {
		t.Fatal(err)
	}
	if again := Decisions(restarted); again != got {
		t.Errorf("with restarts:\n%s", diff.Diff("without", []byte(got), "with", []byte(again)))
	}
	return s.WithDecisions(got)
}

const story = `A story

-- policy.yaml --
kind: GPUAutoscaler
spec:
  maxReplicas: 5
  signals: [{gpu: {metric: Utilization}, target: {value: "50"}}]
-- timeline --
0s replicas=1 serving=1@100   # a comment
5s
-- promises --
always replicas<=5
-- decisions --
`

func TestErrorsNameTheLine(t *testing.T) {
	f := func(old, with, want string) {
		t.Helper()
		text := strings.Replace(story, old, with, 1)
		if text == story && old != with {
			t.Fatalf("no %q in the story", old)
		}
		s, err := Parse("x.txtar", []byte(text))
		if err == nil {
			_, err = s.Run(nil)
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", with, err, want)
		}
	}
	f("-- timeline --", "-- times --", "section times: unknown section: want policy.yaml, timeline, promises or decisions")
	f("maxReplicas: 5", "maxReplica: 5", `unknown field "spec.maxReplica"`)
	f("0s replicas", "soon replicas", `section timeline: line 1: "soon" is not a time`)
	f("0s replicas", "0.5s replicas", `"0.5s" is not a time`)
	f("serving=1@100", "serving=1@100/3", "2 values, but the policy has 1 signals")
	f("serving=1@100", "serving=@lots", `"lots" is not a value`)
	f("serving=1@100", "serving=-1", `"-1" is not a group of pods`)
	f("serving=1@100", "servin=1", "timeline: line 1: servin: unknown keyword")
	f("replicas=1", "replicas=many", `replicas: "many": want a whole number`)
	f("serving=1@100", "came=3", `section timeline: line 1: came: "3": Utilization does not count requests`)
	f("serving=1@100", "came=-5", `line 1: came: "-5": want requests/s, 0 or more`)
	f("serving=1@100", "came=NaN", `line 1: came: "NaN": want requests/s`)
	f("serving=1@100", "came=Inf", `line 1: came: "Inf": want requests/s`)
	f("serving=1@100", "came=1,2", `line 1: came: "1,2": all pods have the same arrival rate`)
	f("serving=1@100", "pace=12ms", `line 1: pace: "12ms": the policy does not learn a target`)
	f("0s replicas=1 serving=1@100   # a comment\n5s\n", "# nothing\n", "section timeline: it is empty")
	f("5s\n", "999h\n", "section timeline: the timeline has 3596401 s, want 200000 at most")
	f("replicas<=5", "replicas", "is not a comparison")
	f("replicas<=5", "cost<=5", `unknown subject "cost"`)
	f("replicas<=5", "rule<=5", "rule does not support the operator <=: want = or !=")
	f("replicas<=5", "ups<=few", `ups: "few": want a whole number`)
	f("kind: GPUAutoscaler", "# nothing", "section policy.yaml: policy.yaml: kind")
}

const learning = `A limit

-- policy.yaml --
kind: GPUAutoscaler
spec:
  maxReplicas: 5
  signals: [{gpu: {metric: Utilization}, target: {value: "50"}}, {preset: vllm, slo: {interTokenLatency: 50ms, timeToFirstToken: 2s}}]
-- timeline --
0s serving=@100/8,100/-,100/9,100/0 pace=12ms/300ms,- came=-/3
`

// Latencies stand beside the batches that took them.
func TestPaces(t *testing.T) {
	at := timelineStart.Add(-time.Second)
	f := func(words string, want ...scale.Pace) {
		t.Helper()
		s, err := Parse("x.txtar", []byte(strings.Replace(learning, "pace=12ms/300ms,- came=-/3", words, 1)))
		if err != nil {
			t.Fatal(err)
		}
		w := newWorld(s.Policy)
		if err := w.apply(&s.events[0]); err != nil {
			t.Fatal(err)
		}
		var got []scale.Pace
		o := w.observe(at.Add(time.Second))
		for _, p := range o.Pods {
			if len(p.Paces) != len(s.Policy.Signals) || p.Paces[0].OK || p.Paces[2].OK {
				t.Fatalf("%s: %+v", words, p.Paces)
			}
			got = append(got, p.Paces[1])
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s:\n%+v, want\n%+v", words, got, want)
		}
	}
	eight := scale.Pace{Batch: 8, TokenSeconds: 0.012, FirstTokenSeconds: 0.3, FirstTokensPerSecond: 3, At: at, OK: true}
	nine := scale.Pace{Batch: 9, TokenSeconds: 0.02, At: at, OK: true}
	none := scale.Pace{}
	f("pace=12ms/300ms,- came=-/3", eight, none, none, none)
	f("pace=12ms/300ms,-,20ms came=-/3", eight, none, nine, none) // nothing waits for what is not there
	eight.FirstTokensPerSecond = defaultFirstTokenRate
	f("pace=12ms/300ms,20ms came=-", eight, none, nine, none)
}

func TestPaceErrors(t *testing.T) {
	for pace, want := range map[string]string{
		"pace=12": `line 1: pace: "12" is not a latency`, "pace=-1ms": `"-1ms" is not a latency`, "pace=": `"" is not a latency`,
		"pace=9ms/": `"" is not a latency`, "pace=-/9ms": `"-" is not a latency`,
	} {
		s, err := Parse("x.txtar", []byte(strings.Replace(learning, "pace=12ms/300ms,-", pace, 1)))
		if err == nil {
			_, err = s.Run(nil)
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", pace, err, want)
		}
	}
}

// The error of a broken promise has the time and the decision.
func TestBrokenPromises(t *testing.T) {
	f := func(promise, want string) {
		t.Helper()
		s, err := Parse("x.txtar", []byte(strings.Replace(story, "always replicas<=5", promise, 1)))
		if err != nil {
			t.Fatal(err)
		}
		moments, err := s.Run(nil)
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		for _, err := range s.Broken(moments) {
			got += err.Error()
		}
		if want == "" != (got == "") || !strings.Contains(got, want) {
			t.Errorf("%s: %q, want %q", promise, got, want)
		}
	}
	f("always replicas<=5", "")
	f("0s replicas=1", "promises line 1: 0s replicas=1: at 0s replicas: 2")
	f("once always replicas=1", "at 0s replicas: 2")
	f("0s-5s ups=0", "ups: 1")
	f("9s replicas=1", "no decision in this span")
	f(`once always says="1 serving at 100 %"`, "")
	f(`always says!="serving"`, `says is "`)
	f(`always victims=""`, "")
}

// The pods of a story live on from one line to the next.
func TestPodsAdvance(t *testing.T) {
	w := newWorld(scale.Policy{Signals: make([]scale.Signal, 1)})
	f := func(at, want string, sets ...assignment) {
		t.Helper()
		d, err := parseTime(at)
		if err != nil {
			t.Fatal(err)
		}
		if err := w.apply(&event{at: d, assignments: sets}); err != nil {
			t.Fatal(err)
		}
		got := ""
		for _, p := range w.pods {
			got += " " + p.name + "/" + string("SsUT"[p.phase]) + "/" + p.since.Sub(timelineStart).String()
		}
		if got != want {
			t.Errorf("at %s:%s, want%s", at, got, want)
		}
	}
	f("0s", " pod-0/S/-1h0m0s", assignment{"serving", "1"})
	f("5s", " pod-0/S/-1h0m0s pod-1/s/5s pod-2/U/5s", assignment{"starting", "1"}, assignment{"unschedulable", "1"})
	f("9s", " pod-0/S/-1h0m0s pod-1/S/9s pod-2/s/9s", assignment{"serving", "2"}, assignment{"unschedulable", "0"})
	f("20s", " pod-0/S/-1h0m0s pod-1/S/9s pod-2/T/20s", assignment{"starting", "0"}, assignment{"terminating", "1"})
	f("30s", " pod-0/S/-1h0m0s", assignment{"serving", "1"}, assignment{"terminating", "0"})
	f("40s", " pod-0/S/-1h0m0s pod-3/S/40s", assignment{"serving", "2"})
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(story))
	f.Add([]byte(learning))
	f.Add([]byte(strings.Replace(learning, "pace=12ms/300ms,-", "pace=1ns,9h/9h", 1)))
	f.Add([]byte(strings.Replace(story, "serving=1@100", "serving=@NaN,-,1e308 starting=2 frozen restart total=- gpus=2", 1)))
	f.Fuzz(func(t *testing.T, data []byte) {
		s, err := Parse("x.txtar", data)
		if err != nil {
			return
		}
		for i := range s.events { // stories that end
			if s.events[i].at > 1000*tick {
				return
			}
			for _, x := range s.events[i].assignments {
				if len(x.value) > 2 && x.key != "serving" {
					return
				}
			}
		}
		moments, err := s.Run(nil)
		if err != nil {
			return
		}
		for _, m := range moments {
			if r := m.Decision.Replicas; s.compiled.Override.What == "" && (r < s.Policy.Min && r != 0 || r > s.Policy.Max) {
				t.Fatalf("%d replicas", r)
			}
		}
		// What is recorded is read back as it was.
		again, err := Parse("x.txtar", s.WithDecisions(Decisions(moments)))
		if err != nil {
			t.Fatal(err)
		}
		if again.Recorded() != Decisions(moments) {
			b, _ := json.Marshal(again.Recorded())
			t.Errorf("recorded %s", b)
		}
	})
}

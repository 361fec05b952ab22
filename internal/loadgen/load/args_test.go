// SPDX-License-Identifier: Apache-2.0

package load

import (
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// parse sets flags in the order of a command line such as "-d 10 -t 1001".
func parse(t *testing.T, line string) ([]Sequence, []string, error) {
	t.Helper()
	var a Args
	read := func(string) (Shape, error) { return ReplayOf([]float64{0, 1, 2}, []float64{1, 4, 2}) }
	flags := map[string]*Flag{
		"-t": a.Test(), "-d": a.Duration(), "-r": a.Report(), "--duty": a.Shape(Constant, read), "--ramp": a.Shape(Ramp, read),
		"--steps": a.Shape(Steps, read), "--replay": a.Shape(Replay, read), "--target-max-value": a.Full(), "-m": a.Ignored("match-value", "because"),
	}
	words := strings.Fields(line)
	for i := 0; i+1 < len(words); i += 2 {
		if err := flags[words[i]].Set(" " + words[i+1]); err != nil {
			return nil, nil, err
		}
	}
	return a.Sequences()
}

func TestArguments(t *testing.T) {
	f := func(line, want string) {
		t.Helper()
		list, _, err := parse(t, line)
		if err != nil {
			t.Errorf("%s: %v", line, err)
			return
		}
		var got []string
		for _, q := range list {
			shapes := ""
			for _, k := range q.Kinds {
				shapes += fmt.Sprint(" ", q.Shapes[k].Form, q.Shapes[k].Values)
			}
			got = append(got, fmt.Sprint(Names(q.Kinds), " ", q.Duration, shapes))
		}
		if diff := cmp.Diff(want, strings.Join(got, "; ")); diff != "" {
			t.Errorf("%s: %s", line, diff)
		}
	}
	f("-t 1004", "tensor 30s constant[1]")
	f("-t 1004 -d 120", "tensor 2m0s constant[1]")
	f("-d 120 -t 1004", "tensor 2m0s constant[1]")
	f("--duty 0.6 -t fp32,dram -d 5s", "fp32 5s constant[0.6]; dram 5s constant[0.6]")
	f("-t fp32+dram --duty fp32=0.6 --ramp dram=0:1:10s", "fp32+dram 10s constant[0.6] ramp[0 1]")
	f("-t fp32 --steps 0.2,0.4,1:5s", "fp32 15s steps[0.2 0.4 1]")
	f("-t fp32 --replay counts.csv", "fp32 3s replay[0.25 1 0.5]")
	f("-t vector-add", "vector-add 30s constant[0.25]")
	f("-t fp32 --duty 0.5 --target-max-value true", "fp32 30s constant[1]")
	// Options before each -t.
	f("-d 10 -t 1001 -d 20 -t 1002", "graphics 10s constant[1]; sm-active 20s constant[1]")
	// Options behind each -t.
	f("-t 1001 -d 10 -t 1002 -d 20", "graphics 10s constant[1]; sm-active 20s constant[1]")
	f("-r 2 -t 1001 -d 10 -t 1002 -d 20 --duty 0.5", "graphics 10s constant[1]; sm-active 20s constant[0.5]")
	for _, line := range []string{"", "-d 10", "-t fp31", "-t fp32 -d 0", "-t fp32 -d -5", "-t fp32 -r 1ms", "-t fp32 --duty 2", "-t fp32 --duty fp64=2"} {
		if list, _, err := parse(t, line); err == nil {
			t.Errorf("%q: %v", line, list)
		}
	}
	if _, notes, _ := parse(t, "-t fp32 -m 0.5 -m 0.6"); len(notes) != 1 || !strings.Contains(notes[0], "--match-value has no effect: because") {
		t.Errorf("notes: %q", notes)
	}
}

func TestSplitArguments(t *testing.T) {
	got := SplitArguments([]string{"load", "gpu", "--no-dcgm-validation -t 1004 -d 120", "-t 1001", "-t1002", "--replay", "my counts.csv", "--replay=a b.csv"})
	want := []string{"load", "gpu", "--no-dcgm-validation", "-t", "1004", "-d", "120", "-t", "1001", "-t1002", "--replay", "my counts.csv", "--replay=a b.csv"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestReplayOf(t *testing.T) {
	s, err := ReplayOf([]float64{10, 12, 14}, []float64{4, 8, 2})
	if want := (Shape{Form: Replay, Values: []float64{0.5, 1, 0.25}, Every: 2 * time.Second}); err != nil || !cmp.Equal(s, want) {
		t.Errorf("%+v, %v", s, err)
	}
	for _, c := range [][2][]float64{{{1}, {1}}, {{1, 1}, {1, 1}}, {{1, 2}, {1, -1}}, {{2, 1}, {1, 1}}, {{0, 0.001}, {1, 1}}} {
		if s, err := ReplayOf(c[0], c[1]); err == nil {
			t.Errorf("%v: %+v", c, s)
		}
	}
}

func TestRow(t *testing.T) {
	start := time.Unix(1000, 0)
	s := Step{
		Load: "fp32", Duty: 0.6, Busy: 0.6004, Generated: ptr(0.5823), Error: 0.0006, Unit: "ratio", Rate: ptr(38.94), RateUnit: "TFLOP/s", Share: ptr(0.5823),
		ClockMHz: ptr(1980), Watts: ptr(412.4), Throttle: []string{"power cap"}, End: start.Add(time.Second),
	}
	want := "1.0s     fp32         0     0.600  0.600  0.5823 ± 0.0006          38.94 TFLOP/s       58% 1980 MHz  412 W     -  power cap"
	if got := Row(s, start); got != want {
		t.Errorf("\n%s, want\n%s", got, want)
	}
}

// Every error that a user can meet has an exit code that tells it from others.
func TestFailures(t *testing.T) {
	for code, exit := range exitCodes {
		if f := failureOf(fmt.Errorf("call: %w", code)); f.Code != exit || !strings.Contains(f.Message, fmt.Sprint(int32(code))) {
			t.Errorf("%d: %+v", code, f)
		}
	}
	if f := failureOf(errors.New("other")); f.Code != ExitUnmeasured {
		t.Errorf("%+v", f)
	}
	documented(t)
}

// documented compares the table of exit codes in docs/load.md with the codes.
func documented(t *testing.T) {
	t.Helper()
	page, err := os.ReadFile("../../../docs/load.md")
	if err != nil {
		t.Fatal(err)
	}
	rows := map[string]string{}
	for _, m := range regexp.MustCompile(`(?m)^\| (\d+) \| [^|]+ \| ([^|]*) ?\|$`).FindAllSubmatch(page, -1) {
		rows[string(m[1])] = string(m[2])
	}
	for code := 0; code <= ExitBound; code++ {
		if _, ok := rows[fmt.Sprint(code)]; !ok {
			t.Errorf("docs/load.md lacks exit code %d", code)
		}
	}
	name := regexp.MustCompile(`CUDA_ERROR_(\w+)`)
	names := 0
	for code, exit := range exitCodes {
		m := name.FindStringSubmatch(code.Error())
		if m == nil || !strings.Contains(rows[fmt.Sprint(exit)], "`"+m[1]+"`") {
			t.Errorf("docs/load.md, exit code %d: lacks %v", exit, code)
		}
		names++
	}
	listed := 0
	for exit, text := range rows {
		if exit != fmt.Sprint(ExitUnmeasured) {
			listed += strings.Count(text, "`") / 2
		}
	}
	if listed != names {
		t.Errorf("docs/load.md has %d errors of CUDA, want %d", listed, names)
	}
}

func TestGPUNames(t *testing.T) {
	g := GPU{Index: 1, UUID: "GPU-48323030-6670-4000-8000-000000000001", PCI: "00000000:19:00.0"}
	for word, want := range map[string]bool{
		"1": true, "0": false, g.UUID: true, "GPU-48323030-6670-4000-8000-000000000000": false, "GPU-4832": true, "GPU": false,
		"00000000:19:00.0": true, "0000:19:00.0": true, "19:00.0": true, "0000:10:00.0": false, "0001:19:00.0": false,
	} {
		if g.is(word) != want {
			t.Errorf("%s: %v", word, !want)
		}
	}
}

// A calibration without -t loads each pipe at several duties.
func TestSelectCalibration(t *testing.T) {
	var a Args
	if err := a.SelectCalibration(); err != nil {
		t.Fatal(err)
	}
	q, _, err := a.Sequences()
	if err != nil || len(q) != 6 || q[0].Duration.Seconds() != 25 || q[0].Shapes["tensor"].Form != Steps {
		t.Errorf("%+v, %v", q, err)
	}
}

// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Invalid flags are refused before any replay, with the name of the flag.
func TestBacktestRefusesFlags(t *testing.T) {
	trace := traceFile(t)
	chat := policyFile(t, "p.yaml", "chat", 1, 5)
	for want, args := range map[string][]string{
		"--hours -1":                          {"--hours", "-1"},
		"--hours NaN":                         {"--hours", "NaN"},
		"--hours +Inf":                        {"--hours", "Inf"},
		"--ttft -1s":                          {"--ttft", "-1s"},
		"--itl 0s":                            {"--itl", "0s"},
		"--patience -1s":                      {"--patience", "-1s"},
		"--workers 0":                         {"--workers", "0"},
		"--slo 101":                           {"--advise", "--slo", "101"},
		"--slo -1":                            {"--advise", "--slo", "-1"},
		"--slo NaN":                           {"--advise", "--slo", "NaN"},
		"--slo without --advise":              {"--slo", "2"},
		"--seeds 0":                           {"--seeds", "0"},
		"--prompt-tokens -5":                  {"--prompt-tokens", "-5"},
		"LOW 40 is above HIGH 5":              {"--replicas", "40:5"},
		"--replicas \"nan\"":                  {"--replicas", "nan"},
		"--untouched lama: no trace":          {"--untouched", "t,lama"},
		"--query without --prometheus":        {"--query", "up"},
		"--prometheus without --query":        {"--prometheus", "http://127.0.0.1:1"},
		"--history without --prometheus":      {"--history", "1h"},
		"--controller without --from-cluster": {"--controller", "a/b:1"},
		"--advise with --policy":              {"--advise", "--policy", chat},
		"not an existing directory":           {"--out", filepath.Join(t.TempDir(), "not", "x.json")},
		"--prices":                            {"--prices", "nowhere.csv"},
		"1ns to the first token (--ttft)":     {"--ttft", "1ns"},
		"a request takes 8.505ms":             {"--itl", "2ms"},
	} {
		args = append([]string{"--trace", trace, "--peers", "none"}, args...)
		if out, err := backtestOut(t, args...); err == nil || !strings.Contains(err.Error(), want) || out != "" {
			t.Errorf("%v: %v, want %q; printed %q", args, err, want, out)
		}
	}
}

// The extension of --out sets the format, unless -o is given.
func TestBacktestFormat(t *testing.T) {
	for name, want := range map[string]string{"r.json": "{", "r.HTML": "<!", "r.txt": ""} {
		path := filepath.Join(t.TempDir(), name)
		if _, err := backtestOut(t, "--trace", traceFile(t), "--peers", "none", "--seeds", "1", "--replicas", "2", "--out", path); err != nil {
			t.Fatal(err)
		}
		b, err := os.ReadFile(path)
		if err != nil || !bytes.HasPrefix(b, []byte(want)) || want == "" && (b[0] == '{' || b[0] == '<') {
			t.Errorf("%s begins with %.20q, %v", name, b, err)
		}
	}
}

// backtestNotes runs a backtest without -q. It writes the notes to stderr.
func backtestNotes(ctx context.Context, stderr io.Writer, args ...string) (string, error) {
	var stdout bytes.Buffer
	cmd := backtestCommand()
	cmd.SetArgs(args)
	cmd.SetOut(&stdout)
	cmd.SetErr(stderr)
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	err := cmd.ExecuteContext(ctx)
	return stdout.String(), err
}

// After an interrupt the complete replays are reported.
func TestBacktestInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	path := filepath.Join(t.TempDir(), "r.json")
	stop := writerFunc(func(b []byte) {
		if bytes.Contains(b, []byte("1 of 3 after")) {
			cancel()
		}
	})
	table, err := backtestNotes(ctx, stop, "--trace", traceFile(t), "--peers", "none", "--seeds", "3", "--replicas", "2", "--workers", "1", "--out", path)
	if err == nil || err.Error() != "interrupted after 1 of 3 replays; the results are of those" || exitCode(err) != 130 {
		t.Errorf("%v, exit code %d", err, exitCode(err))
	}
	if b, err := os.ReadFile(path); err != nil || len(b) == 0 || !strings.Contains(table, "gpupilot-gpu") {
		t.Errorf("a file of %d bytes, %v, and the table\n%s", len(b), err, table)
	}
	if out, err := backtestNotes(ctx, io.Discard, "--trace", traceFile(t), "--peers", "none"); err == nil ||
		err.Error() != "interrupted before the first of 5 replays was done" || out != "" {
		t.Errorf("%v, printed %q", err, out)
	}
}

type writerFunc func([]byte)

func (f writerFunc) Write(b []byte) (int, error) { f(b); return len(b), nil }

// Traces with one name get numbers.
func TestBacktestTraceNames(t *testing.T) {
	out, err := backtestOut(t, "--trace", traceFile(t), "--trace", traceFile(t), "--peers", "none", "--seeds", "1", "--replicas", "2", "-o", "json")
	if err != nil || !strings.Contains(out, `"trace": "t"`) || !strings.Contains(out, `"trace": "t (2)"`) {
		t.Errorf("%v in\n%.500s", err, out)
	}
}

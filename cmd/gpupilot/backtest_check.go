// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gpupilot/gpupilot/internal/backtest"
)

// check refuses flags that no replay could follow, before anything is read.
func (f *backtestFlags) check() error {
	if !slices.Contains([]string{"table", "json", "html"}, f.output) {
		return fmt.Errorf("-o %s: want table, json or html", f.output)
	}
	if len(f.traces) == 0 && !f.set("prometheus") && !f.set("query") && f.seen.object == "" {
		return errors.New("name at least one --trace FILE, or --prometheus URL and --query, or --from-cluster NAMESPACE/NAME")
	}
	if f.advise && len(f.policies) > 0 {
		return errors.New("--advise with --policy: it tries policies of its own; leave out one of the two")
	}
	if f.out != "" {
		if info, err := os.Stat(filepath.Dir(f.out)); err != nil || !info.IsDir() {
			return fmt.Errorf("--out %s: %s is no directory that is there; make it first", f.out, filepath.Dir(f.out))
		}
	}
	return errors.Join(f.checkValues(), f.checkPairs())
}

// checkValues refuses what is out of range. A time that must be positive is
// checked where it was given: its zero stands for the default.
func (f *backtestFlags) checkValues() error {
	positive := func(flag string, d time.Duration) bool { return d > 0 || !f.set(flag) }
	for _, x := range []struct {
		ok   bool
		flag string
		is   any
		want string
	}{
		{f.seeds >= 1 && f.seeds <= 1000, "seeds", f.seeds, "1 to 1000"},
		{f.hours >= 0 && !math.IsInf(f.hours, 1), "hours", f.hours, "the hours of a stretch, or 0 for all of the trace"},
		{positive("ttft", f.ttft), "ttft", f.ttft, "more than 0, or leave it out for the policy's or the model's limit"},
		{positive("itl", f.itl), "itl", f.itl, "more than 0, or leave it out for the policy's or the model's limit"},
		{positive("patience", f.patience), "patience", f.patience, "more than 0, such as 60s"},
		{f.workers >= 1, "workers", f.workers, "1 or more"},
		{f.slo >= 0 && f.slo <= 100, "slo", f.slo, "a percentage, 0 to 100"},
		{f.history.prompt >= 0 && !math.IsInf(f.history.prompt, 1), "prompt-tokens", f.history.prompt, "a number of tokens"},
		{f.history.output >= 0 && !math.IsInf(f.history.output, 1), "output-tokens", f.history.output, "a number of tokens"},
	} {
		if !x.ok { // of NaN no comparison holds
			return fmt.Errorf("--%s %v: want %s", x.flag, x.is, x.want)
		}
	}
	return nil
}

// checkPairs refuses flags that do nothing without another.
func (f *backtestFlags) checkPairs() error {
	for _, x := range []struct{ flag, needs string }{
		{"query", "prometheus"},
		{"prometheus", "query"},
		{"prometheus-http-config", "prometheus"},
		{"history", "prometheus"},
		{"history-step", "prometheus"},
		{"controller", "from-cluster"},
		{"viewer-service-account", "from-cluster"},
		{"slo", "advise"},
	} {
		if f.set(x.flag) && !f.set(x.needs) {
			return fmt.Errorf("--%s without --%s does nothing: give both or neither", x.flag, x.needs)
		}
	}
	return nil
}

// checkUntouched refuses a part that is in no trace's name.
func (f *backtestFlags) checkUntouched(traces []*backtest.Trace) error {
	for _, part := range f.untouched {
		if !slices.ContainsFunc(traces, func(t *backtest.Trace) bool { return strings.Contains(t.Name, part) }) {
			var names []string
			for _, t := range traces {
				names = append(names, t.Name)
			}
			return fmt.Errorf("--untouched %s: no trace has that in its name; there are %s", part, strings.Join(names, ", "))
		}
	}
	return nil
}

// format is the one that -o names or, without it, that the file's name ends in.
func (f *backtestFlags) format() string {
	if !f.set("output") {
		switch strings.ToLower(filepath.Ext(f.out)) {
		case ".json":
			return "json"
		case ".html", ".htm":
			return "html"
		}
	}
	return f.output
}

func replicaRange(s string) (low, high float64, err error) {
	a, b, two := strings.Cut(s, ":")
	if !two {
		b = a
	}
	low, err1 := strconv.ParseFloat(a, 64)
	high, err2 := strconv.ParseFloat(b, 64)
	switch {
	case err1 == nil && err2 == nil && low > high:
		return 0, 0, fmt.Errorf("--replicas %q: LOW %g is above HIGH %g; want LOW:HIGH or one number", s, low, high)
	case err1 != nil || err2 != nil || !(low >= 0) || !(high <= 10_000) || two && low == 0:
		return 0, 0, fmt.Errorf("--replicas %q: want LOW:HIGH or one number, at most 10000; LOW:HIGH from above 0", s)
	}
	return low, high, nil
}

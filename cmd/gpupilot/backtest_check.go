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

	"github.com/gpupilot/gpupilot/internal/replay/trace"
)

// check checks the flags before any file is read.
func (f *backtestFlags) check() error {
	if !slices.Contains([]string{"table", "json", "html"}, f.output) {
		return fmt.Errorf("-o %s: want table, json or html", f.output)
	}
	if len(f.traces) == 0 && !f.isSet("prometheus") && !f.isSet("query") && f.controller.object == "" {
		return errors.New("give at least one --trace FILE, or --prometheus URL and --query, or --from-cluster NAMESPACE/NAME")
	}
	if f.advise && len(f.policies) > 0 {
		return errors.New("--advise with --policy: it tries policies of its own; leave out one of the two")
	}
	if f.out != "" {
		if info, err := os.Stat(filepath.Dir(f.out)); err != nil || !info.IsDir() {
			return fmt.Errorf("--out %s: %s is not an existing directory; create it first", f.out, filepath.Dir(f.out))
		}
	}
	return errors.Join(f.checkValues(), f.checkPairs())
}

// checkValues checks the ranges. A duration that must be positive is checked only if its
// flag was given, because 0 means the default.
func (f *backtestFlags) checkValues() error {
	positive := func(flag string, d time.Duration) bool { return d > 0 || !f.isSet(flag) }
	for _, x := range []struct {
		ok    bool
		flag  string
		value any
		want  string
	}{
		{f.seeds >= 1 && f.seeds <= 1000, "seeds", f.seeds, "1 to 1000"},
		{f.hours >= 0 && !math.IsInf(f.hours, 1), "hours", f.hours, "the hours of a part, or 0 for the whole trace"},
		{positive("ttft", f.limits.TTFT), "ttft", f.limits.TTFT, "more than 0, or leave it out for the policy's or the model's limit"},
		{positive("itl", f.limits.ITL), "itl", f.limits.ITL, "more than 0, or leave it out for the policy's or the model's limit"},
		{positive("patience", f.patience), "patience", f.patience, "more than 0, such as 60s"},
		{f.workers >= 1, "workers", f.workers, "1 or more"},
		{f.allowedPercent >= 0 && f.allowedPercent <= 100, "slo", f.allowedPercent, "a percentage, 0 to 100"},
		{f.prometheus.Prompt >= 0 && !math.IsInf(f.prometheus.Prompt, 1), "prompt-tokens", f.prometheus.Prompt, "a number of tokens"},
		{f.prometheus.Output >= 0 && !math.IsInf(f.prometheus.Output, 1), "output-tokens", f.prometheus.Output, "a number of tokens"},
	} {
		if !x.ok { // all comparisons with NaN are false
			return fmt.Errorf("--%s %v: want %s", x.flag, x.value, x.want)
		}
	}
	return nil
}

// checkPairs refuses a flag that has no effect without another one.
func (f *backtestFlags) checkPairs() error {
	if f.isSet("history") && !f.isSet("prometheus") && !f.isSet("from-cluster") {
		return errors.New("--history without --prometheus or --from-cluster has no effect: give one of these, or leave it out")
	}
	for _, x := range []struct{ flag, needs string }{
		{"query", "prometheus"},
		{"prometheus", "query"},
		{"prometheus-http-config", "prometheus"},
		{"history-step", "prometheus"},
		{"controller", "from-cluster"},
		{"viewer-service-account", "from-cluster"},
		{"slo", "advise"},
	} {
		if f.isSet(x.flag) && !f.isSet(x.needs) {
			return fmt.Errorf("--%s without --%s has no effect: give both or neither", x.flag, x.needs)
		}
	}
	return nil
}

// checkUntouched refuses a value of --untouched that no trace's name contains.
func (f *backtestFlags) checkUntouched(traces []*trace.Trace) error {
	for _, part := range f.untouched {
		if !slices.ContainsFunc(traces, func(t *trace.Trace) bool { return strings.Contains(t.Name, part) }) {
			var names []string
			for _, t := range traces {
				names = append(names, t.Name)
			}
			return fmt.Errorf("--untouched %s: no trace's name contains it; there are %s", part, strings.Join(names, ", "))
		}
	}
	return nil
}

// format returns the output format: --output or, without it, by the extension of --out.
func (f *backtestFlags) format() string {
	if !f.isSet("output") {
		switch strings.ToLower(filepath.Ext(f.out)) {
		case ".json":
			return "json"
		case ".html", ".htm":
			return "html"
		}
	}
	return f.output
}

// replicaRange parses --replicas.
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

// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"log/slog"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// adjustment is the error of a value that dcgm-exporter 4.8.2 starts with: it is
// changed or left without effect, and the agent starts.
type adjustment struct{ used, why string }

func (a *adjustment) Error() string { return a.why }

// warning is an adjustment of a value from a flag or a variable.
type warning struct{ source, given, used, why string }

// logAdjusted logs what is not used as it was given, once, at the start.
func (c *config) logAdjusted(log *slog.Logger) {
	for _, w := range c.adjusted {
		log.Warn("value is not used as it was given", "flag", w.source, "given", w.given, "used", w.used, "why", w.why)
	}
	if len(c.arguments) > 0 {
		log.Warn("arguments are ignored: only flags before the first argument count", "arguments", strings.Join(c.arguments, " "))
	}
}

// clamp takes the nearest value between lo and hi.
func clamp(p *int, lo, hi int) func() error {
	return func() error {
		if lo <= *p && *p <= hi {
			return nil
		}
		*p = min(max(*p, lo), hi)
		return &adjustment{strconv.Itoa(*p), fmt.Sprintf("it is between %d and %d", lo, hi)}
	}
}

// checkIDType takes any kind of ids.
func checkIDType(p *string) func() error {
	return func() error {
		if *p == "uid" || *p == "device-name" {
			return nil
		}
		return &adjustment{"uid and device-name", "it is uid or device-name; both are understood whatever it says"}
	}
}

// checkSocket takes an empty path for no socket.
func checkSocket(p *string) func() error {
	return func() error {
		if *p != "" {
			return nil
		}
		return &adjustment{"", "without a socket, the kubelet is not asked and devices have no pods"}
	}
}

// checkRegexps leaves out the expressions that do not compile. dcgm-exporter
// allows all labels where none is left, and so do we.
func checkRegexps(p *[]string) func() error {
	return func() error {
		var bad []string
		good := slices.DeleteFunc(slices.Clone(*p), func(s string) bool {
			_, err := regexp.Compile(s)
			if err != nil {
				bad = append(bad, err.Error())
			}
			return err != nil
		})
		if len(bad) == 0 {
			return nil
		}
		*p = good
		why := strings.Join(bad, "; ")
		if len(good) == 0 {
			why += "; no expression is left, so that all labels are shown"
		}
		return &adjustment{strings.Join(good, ","), why}
	}
}

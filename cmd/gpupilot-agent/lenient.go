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

// adjustment is the error of an invalid value with which dcgm-exporter 4.8.2
// starts. The value is changed or ignored, and the agent starts too.
type adjustment struct{ used, why string }

func (a *adjustment) Error() string { return a.why }

// warning is an adjustment of a value from a flag or a variable.
type warning struct{ source, given, used, why string }

// logAdjusted logs the adjusted flag values and the ignored arguments.
func (c *config) logAdjusted(log *slog.Logger) {
	for _, w := range c.adjusted {
		log.Warn("flag value was adjusted", "flag", w.source, "given", w.given, "used", w.used, "why", w.why)
	}
	if len(c.arguments) > 0 {
		log.Warn("ignored arguments, and flags after the first argument", "arguments", strings.Join(c.arguments, " "))
	}
}

// clamp replaces a value outside lo and hi by the nearer of them.
func clamp(p *int, lo, hi int) func() error {
	return func() error {
		if lo <= *p && *p <= hi {
			return nil
		}
		*p = min(max(*p, lo), hi)
		return &adjustment{strconv.Itoa(*p), fmt.Sprintf("want a value between %d and %d", lo, hi)}
	}
}

// checkIDType accepts any value.
func checkIDType(p *string) func() error {
	return func() error {
		if *p == "uid" || *p == "device-name" {
			return nil
		}
		return &adjustment{"uid and device-name", "want uid or device-name; both kinds are recognised in any case"}
	}
}

// checkSocket accepts an empty path, which means no socket.
func checkSocket(p *string) func() error {
	return func() error {
		if *p != "" {
			return nil
		}
		return &adjustment{"", "without a socket, devices have no pods"}
	}
}

// checkRegexps removes the expressions that do not compile. Without a valid one
// all labels are added, as with dcgm-exporter.
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
			why += "; without a valid expression, all labels are added"
		}
		return &adjustment{strings.Join(good, ","), why}
	}
}

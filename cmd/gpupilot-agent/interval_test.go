// SPDX-License-Identifier: Apache-2.0

package main

import (
	"log/slog"
	"os"
	"testing"
	"time"

	"github.com/gpupilot/gpupilot/internal/base/regularfile"
)

// The interval of --config-file is followed. What cannot be used changes nothing.
func TestIntervalOfTheFileIsFollowed(t *testing.T) {
	file := writeFile(t, "agent.yaml", "version: 1\ncollection: {interval: 1s}\n")
	c, _, err := parseConfig([]string{"--config-file", file}, func(string) string { return "" })
	if err != nil {
		t.Fatal(err)
	}
	s := c.intervalSource(slog.New(slog.DiscardHandler))
	s.files = regularfile.New(regularfile.DefaultTimeout)
	f := func(text string, want time.Duration) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		got := time.Duration(0)
		s.reread(t.Context(), func(d time.Duration) { got = d })
		if got != want {
			t.Errorf("%q sets %v, want %v", text, got, want)
		}
	}
	f("version: 1\ncollection: {interval: 1s}\n", 0)
	f("version: 1\ncollection: {interval: 250ms}\n", 250*time.Millisecond)
	f("version: 1\ncollection: {interval: soon}\n", 0)
	f("version: 7\n", 0)
	f("", 0)
	f("version: 1\ncollection: {interval: 1ms}\n", 10*time.Millisecond) // the least
	f("version: 1\n", time.Second)                                      // the default
}

func TestIntervalOfTheFlagIsNotFollowed(t *testing.T) {
	file := writeFile(t, "agent.yaml", "version: 1\ncollection: {interval: 1s}\n")
	f := func(followed bool, env string, args ...string) {
		t.Helper()
		c, _, err := parseConfig(append(args, "--config-file", file), func(name string) string {
			if name == "DCGM_EXPORTER_INTERVAL" {
				return env
			}
			return ""
		})
		if err != nil {
			t.Fatal(err)
		}
		if got := c.intervalSource(slog.New(slog.DiscardHandler)).file != ""; got != followed {
			t.Errorf("%q %v: followed is %v", env, args, got)
		}
	}
	f(true, "")
	f(false, "5000")
	f(false, "", "-c", "5000")
}

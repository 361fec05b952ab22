// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"

	"github.com/gpupilot/gpupilot/internal/autoscaler/kubeflags"
)

func TestWindowMemory(t *testing.T) {
	f := func(value string, want int64) {
		t.Helper()
		c, _, err := parseConfig([]string{"--window-memory", value}, func(string) string { return "" })
		if (err == nil) != (want > 0) {
			t.Errorf("%s: %v", value, err)
		} else if err == nil && kubeflags.Bytes(c.memory) != want {
			t.Errorf("%s is %d bytes, want %d", value, kubeflags.Bytes(c.memory), want)
		}
	}
	f("512Mi", 512<<20)
	f("2G", 2e9)
	f("1Ti", 1<<40)
	f("1Mi", 0)
	f("2Ti", 0)
	f("-1Gi", 0)
	f("much", 0)
}

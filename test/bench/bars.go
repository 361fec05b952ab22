// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os/exec"
)

// barTests judge by the clock if -bars says that the machine does nothing else.
var barTests = []struct{ name, dir, packages, run string }{
	{"what gpupilot load --check finds of each source", ".", "./test/e2e/load", "TenLies"},
	{"a workload beside a starved API server", ".", "./test/e2e/starved", "StarvedAPIServer"},
	{"a workload beside floods of others", ".", "./test/e2e/ledger", "HostileNamespace"},
	{"a drain on a real node", ".", "./test/e2e/realnode", "DrainNode"},
	{"an upgrade on a real node", "test/chart", "./...", "InstallNode"},
}

// benchBars runs the tests that have bars of their own.
func benchBars(ctx context.Context, _ config, out io.Writer) ([]Row, error) {
	var rows []Row
	for _, t := range barTests {
		fmt.Fprintf(out, "bars: %s\n", t.name)
		cmd := exec.CommandContext(ctx, "go", "test", "-count=1", "-timeout=30m", "-tags=netgo,osusergo,e2e", "-run="+t.run, t.packages, "-bars", "-test.v")
		cmd.Dir = t.dir
		log, err := cmd.CombinedOutput()
		missed := bytes.Count(log, []byte("--- FAIL: "))
		if missed == 0 && (err != nil || !bytes.Contains(log, []byte("--- PASS: "))) {
			fmt.Fprintf(out, "bars: it did not run to its end: %v\n%s\n", err, log)
			rows = append(rows, Row{Name: "tests that miss their bars: " + t.name, Unit: "tests", Bar: "≤ 0"})
			continue
		}
		if missed > 0 {
			_, _ = out.Write(log) // the row says so
		}
		rows = append(rows, atMost("tests that miss their bars: "+t.name, float64(missed), "tests", 0))
	}
	return rows, nil
}

// SPDX-License-Identifier: Apache-2.0

//go:build e2e && linux

package load

import (
	"bufio"
	"encoding/json"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/gpupilot/gpupilot/internal/loadgen/load"
)

// BenchmarkStartAndStop measures from the command to the first load, and from Ctrl-C to the end of the command.
func BenchmarkStartAndStop(b *testing.B) {
	env, flags := gpus(b)
	var start, stop time.Duration
	for b.Loop() {
		began := time.Now()
		cmd := exec.CommandContext(b.Context(), built(b, "gpupilot"), append([]string{"load", "gpu", "-o", "json", "-t", "fp32", "-d", "3600", "-r", "0.1"}, flags...)...)
		cmd.Env = append(os.Environ(), env...)
		out, err := cmd.StdoutPipe()
		if err != nil {
			b.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			b.Fatal(err)
		}
		lines := bufio.NewScanner(out)
		if !lines.Scan() {
			b.Fatal("no step")
		}
		var s load.Step
		if err := json.Unmarshal(lines.Bytes(), &s); err != nil {
			b.Fatal(err)
		}
		start += s.Start.Sub(began)
		interrupted := time.Now()
		if err := cmd.Process.Signal(os.Interrupt); err != nil {
			b.Fatal(err)
		}
		for lines.Scan() { // until the command has ended
		}
		_ = cmd.Wait() // exit code 130
		stop += time.Since(interrupted)
	}
	b.ReportMetric(start.Seconds()*1e3/float64(b.N), "ms-to-load")
	b.ReportMetric(stop.Seconds()*1e3/float64(b.N), "ms-to-stop")
}

// SPDX-License-Identifier: Apache-2.0

//go:build e2e && linux

// Package load runs gpupilot load with the built programs and the fakes of NVIDIA's libraries: the fake libcuda's virtual
// load shows in the fake NVML and the fake libdcgm, which an agent reads.
package load

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gpupilot/gpupilot/internal/gpu/sim"
	"github.com/gpupilot/gpupilot/internal/loadgen/calibration"
	"github.com/gpupilot/gpupilot/internal/loadgen/check"
	"github.com/gpupilot/gpupilot/internal/loadgen/verdict"
	"github.com/gpupilot/gpupilot/test/agentrig"
)

// built returns a file of bin.
func built(t testing.TB, name string) string {
	t.Helper()
	path, err := filepath.Abs(filepath.Join("../../../bin", name))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("%v: make all fakes", err)
	}
	return path
}

// agent starts the agent.
func agent(t *testing.T, env []string, args ...string) (address string) {
	t.Helper()
	a, err := agentrig.Start(t.Context(), agentrig.Config{Binary: built(t, "gpupilot-agent"), Args: args, Env: env})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = a.Stop() })
	return a.URL
}

// metrics returns an agent's page.
func metrics(t *testing.T, address string) string {
	t.Helper()
	resp, err := http.Get(address + "/metrics") //nolint:noctx // the agent answers at once
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// gpupilot runs the command and returns the results of its comparisons and its exit code.
func gpupilot(t *testing.T, env []string, args ...string) (results []check.Result, code int) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), built(t, "gpupilot"), append([]string{"load"}, args...)...)
	cmd.Env = append(os.Environ(), env...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit):
		code = exit.ExitCode()
	case err != nil:
		t.Fatal(err)
	}
	for line := range bytes.Lines(out) {
		var l check.Line
		if err := json.Unmarshal(line, &l); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		if l.Check != nil {
			results = append(results, *l.Check)
		}
	}
	t.Logf("load %s: exit code %d\n%s", args[0], code, stderr.String())
	for _, r := range results {
		t.Logf("%-40s %s", r.Source, r.String())
	}
	return results, code
}

// gpus gives the fakes two GPUs, and returns their environment and flags for load gpu.
func gpus(t testing.TB) (env, flags []string) {
	t.Helper()
	dir := t.TempDir()
	cuda, follow := filepath.Join(dir, "cuda"), filepath.Join(dir, "follow")
	for path, text := range map[string]string{cuda: "gpus 2\ngpu * jitter 1500\n", follow: "gpus 2\n", follow + ".base": "gpus 2\n"} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	env = []string{
		"GPUPILOT_FAKE_CUDA=" + cuda, "GPUPILOT_FAKE_CUDA_FOLLOW=" + follow, "GPUPILOT_FAKE_NVML=" + follow, "GPUPILOT_FAKE_DCGM=" + follow,
		"GPUPILOT_FAKE_DCGM_MEANS=1", "GPUPILOT_DCGM_LIBRARY=" + built(t, "libdcgm-fake.so"),
	}
	return env, []string{"--cuda-library", built(t, "libcuda-fake.so"), "--nvml-library", built(t, "libnvidia-ml-fake.so"), "--gpu", "0"}
}

// pair are the values of the loaded GPU and of the other one; NaN: no value.
type pair [2]float64

var tensor = regexp.MustCompile(`(?m)^DCGM_FI_PROF_PIPE_TENSOR_ACTIVE\{gpu="([01])",UUID="([^"]*)"[^\n]*\} (\S+)$`)

// liar serves a page with what lie makes of the agent's values so far.
func liar(t *testing.T, address string, lie func(history []pair) pair) string {
	t.Helper()
	var mu sync.Mutex
	var history []pair
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		resp, err := http.Get(address + "/metrics") //nolint:noctx // the agent answers at once
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadGateway)
			return
		}
		page, _ := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		values, uuids := pair{math.NaN(), math.NaN()}, [2]string{}
		for _, m := range tensor.FindAllSubmatch(page, -1) {
			i := int(m[1][0] - '0')
			uuids[i] = string(m[2])
			values[i], _ = strconv.ParseFloat(string(m[3]), 64)
		}
		mu.Lock()
		shown := values
		if len(history) > 0 || !math.IsNaN(values[0]+values[1]) { // GPM needs two readings for its first value
			history = append(history, values)
			shown = lie(history)
		}
		mu.Unlock()
		for i, v := range shown {
			if !math.IsNaN(v) {
				fmt.Fprintf(w, "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE{gpu=\"%d\",UUID=%q} %v\n", i, uuids[i], v)
			}
		}
	}))
	t.Cleanup(server.Close)
	return server.URL
}

// of makes a lie from one about the loaded GPU's value.
func of(change func(v float64) float64) func([]pair) pair {
	return func(h []pair) pair { return pair{change(h[len(h)-1][0]), h[len(h)-1][1]} }
}

func honest(h []pair) pair { return h[len(h)-1] }

var tenLies = []struct {
	want verdict.Finding
	lie  func(history []pair) pair
}{
	{verdict.Frozen, of(func(float64) float64 { return 0 })},
	{verdict.Frozen, func(h []pair) pair { return h[min(len(h)-1, 15)] }},
	{verdict.Lagging, func(h []pair) pair { return h[max(0, len(h)-1-9)] }},
	{verdict.Scaled, of(func(v float64) float64 { return v / 2 })},
	{verdict.Scaled, of(func(v float64) float64 { return 100 * v })},
	{verdict.Over, of(func(v float64) float64 { return v + 0.3 })},
	{verdict.OtherGPU, func(h []pair) pair { return pair{h[len(h)-1][1], h[len(h)-1][0]} }},
	{verdict.Missing, func(h []pair) pair { return pair{math.NaN(), h[len(h)-1][1]} }},
	{verdict.Missing, func(h []pair) pair {
		if len(h) > 20 {
			return pair{math.NaN(), h[len(h)-1][1]}
		}
		return h[len(h)-1]
	}},
	{verdict.Off, of(math.Sqrt)},
}

var bars = flag.Bool("bars", false, "judge what each source is found to be, on a machine that does nothing else")

// late are the findings about a source that is right and late, as a machine that does other work makes it.
var late = []verdict.Finding{verdict.Lagging, verdict.Off, verdict.Unmeasured}

// isRight reports whether a result accuses no source that is right. A machine that does other work makes it late, and what
// is late at each step of a load is off by a factor near 1.
func isRight(r check.Result) bool {
	near := r.Scale != nil && *r.Scale > 0.8 && *r.Scale < 1.25
	return r.Finding.IsTrue() || !*bars && (near || slices.Contains(late, r.Finding))
}

// Ten sources that lie are not taken for right, and are named with -bars. An agent, NVML, DCGM and a copy of the agent's page, which are
// right, are not accused of more than being late. Under synctest, internal/loadgen/check names each of them.
func TestTenLies(t *testing.T) {
	t.Parallel()
	env, flags := gpus(t)
	honestAgent := agent(t, env, "--backend", "nvml", "--nvml-library", built(t, "libnvidia-ml-fake.so"))
	sources := []string{honestAgent, "nvml", "dcgm", liar(t, honestAgent, honest)}
	right := len(sources)
	for _, l := range tenLies {
		sources = append(sources, liar(t, honestAgent, l.lie))
	}
	args := append([]string{"gpu", "-t", "tensor", "-d", "50", "--sine", "0.1:0.9:25s", "-o", "json"}, flags...)
	for _, s := range sources {
		args = append(args, "--check", s)
	}
	results, code := gpupilot(t, env, args...)
	if code != 1 || len(results) != len(sources) {
		t.Fatalf("exit code %d, %d of %d results", code, len(results), len(sources))
	}
	for i, r := range results {
		switch {
		case i < right && (!isRight(r) || r.Samples == 0), i >= right && r.Finding.IsTrue(), *bars && i >= right && r.Finding != tenLies[i-right].want:
			t.Errorf("%s: %s", r.Source, r.String())
		}
	}
}

// exitCode is that of results: the worst one decides.
func exitCode(results []check.Result) (code int) {
	for _, r := range results {
		switch {
		case r.Finding == verdict.Unmeasured:
			code = max(code, 2)
		case !r.Finding.IsTrue():
			return 1
		}
	}
	return code
}

// Sources that are right end with 0, at each step of a load, ones that cannot be measured with 2, and a GPU that is lost
// with 3.
func TestExitCodes(t *testing.T) {
	t.Parallel()
	env, flags := gpus(t)
	f := func(args ...string) ([]check.Result, int) {
		return gpupilot(t, env, append(append([]string{"gpu", "-t", "tensor", "-o", "json"}, flags...), args...)...)
	}
	results, code := f("--steps", "0.2,0.6,1,0.4,0.8:3s", "--check", "nvml", "--check", "dcgm:///run/engine.sock")
	if code != exitCode(results) || len(results) == 0 {
		t.Errorf("exit code %d with the results %+v", code, results)
	}
	for _, r := range results {
		if !isRight(r) {
			t.Errorf("%s: %s", r.Source, r.String())
		}
	}
	if _, code := f("-d", "2", "--check", "http://127.0.0.1:1", "--check", "nvml", "--nvml-library", "libnone.so"); code != 2 {
		t.Errorf("sources that cannot be measured: exit code %d, want 2", code)
	}
	scenario, _ := strings.CutPrefix(env[0], "GPUPILOT_FAKE_CUDA=")
	if err := os.WriteFile(scenario, []byte("gpus 2\ngpu 0 fail cuLaunchKernel UNKNOWN\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, code := f("-d", "2", "--check", "nvml"); code != 3 {
		t.Errorf("a GPU that is lost: exit code %d, want 3", code)
	}
}

// A simulated load moves the metrics of the agent that it is pushed to, and leaves idle GPUs.
func TestLoadSim(t *testing.T) {
	t.Parallel()
	address := agent(t, nil, "--backend", "sim", "--sim-push", "--sim-gpus", "2", "--node-name", "n1")
	results, code := gpupilot(t, nil, "sim", "--agent", address, "--gpu", "1", "-t tensor -d 12", "--sine", "0.1:0.9:10s", "-o", "json", "--check", address)
	if len(results) != 1 || results[0].Samples == 0 || results[0].GPU != sim.UUID("n1", 1) || !isRight(results[0]) || code != exitCode(results) {
		t.Errorf("exit code %d, %+v", code, results)
	}
	if _, code := gpupilot(t, nil, "sim", "--agent", agent(t, nil, "--backend", "sim"), "-t", "tensor", "-d", "1"); code != 1 {
		t.Errorf("an agent without --sim-push: exit code %d", code)
	}
	for deadline := time.Now().Add(5 * time.Minute); ; {
		if page := metrics(t, address); strings.Contains(page, "DCGM_FI_DEV_GPU_UTIL{gpu=\"1\"") && !regexp.MustCompile(`(?m)^DCGM_FI_DEV_GPU_UTIL\{[^\n]* [1-9]`).MatchString(page) {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the GPUs are not idle")
		}
	}
}

// make hardware measures rows, keeps them, and writes the page. nvidia-smi is a script.
func TestHardware(t *testing.T) {
	env, flags := gpus(t)
	dir := t.TempDir()
	smi := "#!/bin/sh\ncase \"$*\" in --id=0*) echo '100, 40, 143771, 1024, 142133, 614, 52, 34, 627.70, 627.70, 700.00, 1980, 3201, 765, 5, 16, 0, 0, [N/A], 0' ;; *) echo NVIDIA H200 ;; esac\n"
	if err := os.WriteFile(filepath.Join(dir, "nvidia-smi"), []byte(smi), 0o700); err != nil { //nolint:gosec // it is a program
		t.Fatal(err)
	}
	env = append(env, "PATH="+dir+":"+os.Getenv("PATH"))
	measure := func(only string) (log, page string) {
		cmd := exec.CommandContext(t.Context(), "go", "run", "./test/hardware", "-folder", filepath.Join(dir, "rows"), "-page", filepath.Join(dir, "page.md"),
			"-calibrations", filepath.Join(dir, "calibration"), "-program", built(t, "gpupilot"), "-seconds", "2", "-only", only, "-arguments", strings.Join(flags, " "))
		cmd.Dir, cmd.Env = "../../..", append(os.Environ(), env...)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		b, err := os.ReadFile(filepath.Join(dir, "page.md"))
		if err != nil {
			t.Fatal(err)
		}
		return string(out), string(b)
	}
	measure("fp32")
	log, page := measure("fp32,calibration,nvidia-smi")
	if strings.Contains(log, "hardware: fp32") {
		t.Errorf("a row was measured twice:\n%s", log)
	}
	for _, part := range []string{
		"on NVIDIA H200 (compute capability 9.0, 132 SMs", "| `fp32` | 0.", "TFLOP/s", "nvml: ", "## Calibration of ", "| `tensor` | 1.00 | 0.",
		"| `DCGM_FI_DEV_FB_TOTAL` | 143771 | 143771 | `memory.total` | 0 |", "| `DCGM_FI_DEV_SM_CLOCK` | ", "| 1980 | `clocks.sm` |", "| [N/A] | `ecc.errors.corrected.volatile.total` | - |",
	} {
		if !strings.Contains(page, part) {
			t.Errorf("the page lacks %q:\n%s", part, page)
		}
	}
	if tables, err := calibration.Read(filepath.Join(dir, "calibration", "nvidia-h200.json")); err != nil || len(tables) != 1 || len(tables[0].Points) == 0 {
		t.Errorf("the calibration: %+v, %v", tables, err)
	}
}

// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gpupilot/gpupilot/internal/base/excerpt"
	"github.com/gpupilot/gpupilot/test/agentrig"
)

// pairs are fields of the agent and what nvidia-smi calls the same, in the same unit.
var pairs = []struct{ field, query string }{
	{"DCGM_FI_DEV_GPU_UTIL", "utilization.gpu"},
	{"DCGM_FI_DEV_MEM_COPY_UTIL", "utilization.memory"},
	{"DCGM_FI_DEV_FB_TOTAL", "memory.total"},
	{"DCGM_FI_DEV_FB_USED", "memory.used"},
	{"DCGM_FI_DEV_FB_FREE", "memory.free"},
	{"DCGM_FI_DEV_FB_RESERVED", "memory.reserved"},
	{"DCGM_FI_DEV_GPU_TEMP", "temperature.gpu"},
	{"DCGM_FI_DEV_MEMORY_TEMP", "temperature.memory"},
	{"DCGM_FI_DEV_POWER_USAGE", "power.draw"},
	{"DCGM_FI_DEV_POWER_USAGE_INSTANT", "power.draw.instant"},
	{"DCGM_FI_DEV_POWER_MGMT_LIMIT", "power.limit"},
	{"DCGM_FI_DEV_SM_CLOCK", "clocks.sm"},
	{"DCGM_FI_DEV_MEM_CLOCK", "clocks.mem"},
	{"DCGM_FI_DEV_VIDEO_CLOCK", "clocks.video"},
	{"DCGM_FI_DEV_PCIE_LINK_GEN", "pcie.link.gen.current"},
	{"DCGM_FI_DEV_PCIE_LINK_WIDTH", "pcie.link.width.current"},
	{"DCGM_FI_DEV_ENC_UTIL", "utilization.encoder"},
	{"DCGM_FI_DEV_DEC_UTIL", "utilization.decoder"},
	{"DCGM_FI_DEV_ECC_SBE_VOL_TOTAL", "ecc.errors.corrected.volatile.total"},
	{"DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", "ecc.errors.uncorrected.volatile.total"},
}

// beside is one field as the agent and nvidia-smi show it in the same second.
type beside struct {
	Field string `json:"field"`
	Query string `json:"query"`
	Agent string `json:"agent"`
	SMI   string `json:"nvidiaSMI"`
}

// besideSMI reads the agent's fields and nvidia-smi while the tensor cores are loaded. Without nvidia-smi there is no row.
func (c Config) besideSMI(ctx context.Context) ([]beside, error) {
	file := filepath.Join(c.folder, "nvidia-smi.json")
	var list []beside
	if b, err := os.ReadFile(file); err == nil {
		return list, json.Unmarshal(b, &list)
	}
	smi, err := exec.LookPath("nvidia-smi")
	if err != nil {
		return nil, nil
	}
	fmt.Fprintln(os.Stderr, "hardware: nvidia-smi")
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	agent, err := c.startAgent(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { _ = agent.Stop() }()
	load := exec.CommandContext(ctx, c.program, slices.Concat([]string{"load", "gpu", "-t", "tensor", "-d", "60"}, strings.Fields(c.arguments))...)
	rows, err := load.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := load.Start(); err != nil {
		return nil, err
	}
	defer func() { cancel(); _ = load.Wait() }() // it was ended
	lines := bufio.NewScanner(rows)
	for !strings.Contains(lines.Text(), "tensor") { // until it has generated a second
		if !lines.Scan() {
			return nil, errors.New("the load ended before its first second")
		}
	}
	go func() { _, _ = io.Copy(io.Discard, rows) }()
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-time.After(time.Duration(c.seconds) * time.Second): // the clock settles
	}
	var queries []string
	for _, p := range pairs {
		queries = append(queries, p.query)
	}
	out, err := exec.CommandContext(ctx, smi, "--id=0", "--query-gpu="+strings.Join(queries, ","), "--format=csv,noheader,nounits").Output()
	if err != nil {
		return nil, fmt.Errorf("nvidia-smi: %w", err)
	}
	values, err := agentValues(ctx, agent)
	if err != nil {
		return nil, err
	}
	answers := strings.Split(strings.TrimSpace(string(out)), ",")
	if len(answers) != len(pairs) {
		return nil, fmt.Errorf("nvidia-smi answers %q, want %d values", excerpt.Of(string(out), 200), len(pairs))
	}
	for i, p := range pairs {
		list = append(list, beside{p.field, p.query, values[p.field], strings.TrimSpace(answers[i])})
	}
	b, err := json.MarshalIndent(list, "", " ")
	if err != nil {
		return nil, err
	}
	return list, os.WriteFile(file, b, 0o644)
}

// startAgent starts an agent that collects the fields of pairs.
func (c Config) startAgent(ctx context.Context) (*agentrig.Agent, error) {
	collectors := filepath.Join(c.folder, "collectors.csv")
	var lines strings.Builder
	for _, p := range pairs {
		fmt.Fprintf(&lines, "%s, gauge, %s\n", p.field, p.query)
	}
	if err := os.WriteFile(collectors, []byte(lines.String()), 0o644); err != nil {
		return nil, err
	}
	args := []string{"--backend", "nvml", "--collectors", collectors, "--kubernetes=false"}
	words := strings.Fields(c.arguments)
	if i := slices.Index(words, "--nvml-library"); i >= 0 && i+1 < len(words) {
		args = append(args, words[i:i+2]...)
	}
	return agentrig.Start(ctx, agentrig.Config{Binary: filepath.Join(filepath.Dir(c.program), "gpupilot-agent"), Args: args})
}

// agentValues are the values of GPU 0.
func agentValues(ctx context.Context, a *agentrig.Agent) (map[string]string, error) {
	body, err := a.Get(ctx, "/api/v1/gpus")
	if err != nil {
		return nil, err
	}
	var document struct {
		Devices []struct {
			Values map[string]struct{ Value json.Number }
		}
	}
	if err := json.Unmarshal([]byte(body), &document); err != nil {
		return nil, err
	}
	if len(document.Devices) == 0 {
		return nil, errors.New("the agent shows no GPU")
	}
	out := map[string]string{}
	for name, v := range document.Devices[0].Values {
		out[name] = v.Value.String()
	}
	return out, nil
}

// besideTable is the section of the page.
func besideTable(list []beside) string {
	if len(list) == 0 {
		return ""
	}
	var out strings.Builder
	out.WriteString("\n## The agent beside nvidia-smi\n\nRead in the same second, under the whole load of `tensor`.\n\n| field | agent | nvidia-smi | its name there | apart |\n|---|---|---|---|---|\n")
	for _, b := range list {
		apart := "-"
		x, err := strconv.ParseFloat(b.Agent, 64)
		y, err2 := strconv.ParseFloat(b.SMI, 64)
		if err == nil && err2 == nil {
			apart = fmt.Sprintf("%.4g", x-y)
		}
		agent := b.Agent
		if agent == "" {
			agent = "-"
		}
		fmt.Fprintf(&out, "| `%s` | %s | %s | `%s` | %s |\n", b.Field, agent, b.SMI, b.Query, apart)
	}
	return out.String()
}

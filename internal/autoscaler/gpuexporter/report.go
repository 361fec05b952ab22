// SPDX-License-Identifier: Apache-2.0

package gpuexporter

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"

	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/window/discovery"
	"github.com/gpupilot/gpupilot/internal/window/scrape"
)

// AgentsOf returns the agents of targets.
func AgentsOf(targets []discovery.Target) []Agent {
	agents := make([]Agent, 0, len(targets))
	for i := range targets {
		agents = append(agents, Agent{Pod: targets[i].Pod.Name, Node: targets[i].Labels.Node, URL: targets[i].URL})
	}
	return agents
}

// maxReport bounds an agent's answer: 72 devices with their processes are 200 KB.
const maxReport = 4 << 20

// ReadReport asks an agent for its GPUs. agent is the URL of its metrics.
func ReadReport(ctx context.Context, client scrape.Doer, agent url.URL) (*Report, error) {
	at := agent
	at.Path, at.RawQuery = "/api/v1/gpus", ""
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, at.String(), nil)
	if err != nil {
		return nil, err
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, errors.New("the agent does not answer") // not err, which has the agent's address: many users can read the status
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("the agent's /api/v1/gpus answers with HTTP status %d", resp.StatusCode)
	}
	return parseReport(io.LimitReader(resp.Body, maxReport))
}

// parseReport reads what internal/node/agent serves as /api/v1/gpus.
func parseReport(r io.Reader) (*Report, error) {
	var doc struct {
		Error   string `json:"error"`
		Devices []struct {
			UUID  string `json:"uuid"`
			Model string `json:"model"`
			Up    bool   `json:"up"`
			MIG   *struct {
				ParentUUID string `json:"parentUuid"`
			} `json:"mig"`
		} `json:"devices"`
		Lacking []struct {
			Fields []string `json:"fields"`
			Reason string   `json:"reason"`
		} `json:"lacking"`
	}
	if err := json.NewDecoder(r).Decode(&doc); err != nil {
		return nil, errors.New("the agent's answer cannot be decoded")
	}
	report := &Report{Error: bounded(doc.Error), Models: map[string]int{}}
	seen := map[string]bool{}
	for _, d := range doc.Devices {
		if !d.Up {
			report.Down++
		}
		whole, model := d.UUID, bounded(d.Model)
		if d.MIG != nil {
			whole = d.MIG.ParentUUID
		}
		if seen[whole] || report.Models[model] == 0 && len(report.Models) == maxModels {
			continue
		}
		seen[whole] = true
		report.Models[model]++
	}
	for _, l := range doc.Lacking {
		lack := gpu.Lack{Reason: l.Reason, Fields: l.Fields}
		if !lack.NeedsDCGM() {
			continue
		}
		report.Why = bounded(l.Reason)
		for _, f := range l.Fields {
			if len(report.Lacks) < maxLacks && isField(f) {
				report.Lacks = append(report.Lacks, f)
			}
		}
	}
	return report, nil
}

// isField reports whether the text can be a field's name.
func isField(s string) bool {
	return s != "" && len(s) <= maxModelName && !strings.ContainsFunc(s, func(r rune) bool {
		return r != '_' && (r < '0' || r > '9') && (r < 'A' || r > 'Z') && (r < 'a' || r > 'z')
	})
}

// The bounds of what an agent may put into a status.
const (
	maxModels    = 16 // of a node
	maxModelName = 128
	maxLacks     = 64
)

func bounded(s string) string {
	return strings.ToValidUTF8(s[:min(len(s), maxModelName)], "")
}

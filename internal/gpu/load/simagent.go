// SPDX-License-Identifier: Apache-2.0

package load

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/gpupilot/gpupilot/internal/base/excerpt"
	"github.com/gpupilot/gpupilot/internal/gpu/sim"
)

// agentTarget is an agent with simulated GPUs that takes a load over HTTP.
type agentTarget struct {
	address string
	client  *http.Client
	uuids   map[int]string // by index
}

const (
	agentTimeout = 5 * time.Second
	agentStart   = 5 * time.Second // until an agent that was just started has GPUs
	maxAnswer    = 16 << 20
)

// newAgentTarget reads which GPUs the agent has. It waits for an agent that starts.
func newAgentTarget(ctx context.Context, address string) (*agentTarget, error) {
	u, err := url.Parse(address)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return nil, fmt.Errorf("%q is not the address of an agent, such as http://127.0.0.1:9400", address)
	}
	t := &agentTarget{address: strings.TrimSuffix(address, "/"), client: &http.Client{Timeout: agentTimeout}, uuids: map[int]string{}}
	body, err := t.send(ctx, http.MethodGet, "/api/v1/gpus", nil)
	for end := time.Now().Add(agentStart); err != nil && time.Now().Before(end); body, err = t.send(ctx, http.MethodGet, "/api/v1/gpus", nil) {
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-time.After(writeEvery):
		}
	}
	if err != nil {
		return nil, err
	}
	var document struct {
		Devices []struct {
			Index int    `json:"index"`
			UUID  string `json:"uuid"`
		} `json:"devices"`
	}
	if err := json.Unmarshal(body, &document); err != nil {
		return nil, fmt.Errorf("%s is no agent: %w", address, err)
	}
	for _, d := range document.Devices {
		t.uuids[d.Index] = d.UUID
	}
	return t, nil
}

func (t *agentTarget) uuid(gpu int) (string, bool) {
	uuid, ok := t.uuids[gpu]
	return uuid, ok
}

func (t *agentTarget) write(ctx context.Context, s sim.State) error {
	b, err := s.Encode()
	if err != nil {
		return err
	}
	_, err = t.send(ctx, http.MethodPut, sim.PushPath, b)
	return err
}

func (t *agentTarget) send(ctx context.Context, method, path string, body []byte) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, method, t.address+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	resp, err := t.client.Do(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	switch {
	case err != nil:
		return nil, err
	case resp.StatusCode == http.StatusNotFound && path == sim.PushPath:
		return nil, fmt.Errorf("%s takes no simulated load: start it with --backend sim --sim-push", t.address)
	case resp.StatusCode/100 != 2:
		return nil, fmt.Errorf("%s %s: %s: %s", method, t.address+path, resp.Status, excerpt.Of(string(answer), 200))
	}
	return answer, nil
}

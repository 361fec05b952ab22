// SPDX-License-Identifier: Apache-2.0

package load

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/gpupilot/gpupilot/client"
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
	maxAnswer    = 200             // bytes of a refusal
)

// newAgentTarget reads which GPUs the agent has. It waits for an agent that starts.
func newAgentTarget(ctx context.Context, address string) (*agentTarget, error) {
	u, err := url.Parse(address)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return nil, fmt.Errorf("%q is not the address of an agent, such as http://127.0.0.1:9400", address)
	}
	t := &agentTarget{address: strings.TrimSuffix(address, "/"), client: &http.Client{Timeout: agentTimeout}, uuids: map[int]string{}}
	agent := client.Client{URL: t.address, HTTP: t.client}
	n, err := agent.Node(ctx)
	for end := time.Now().Add(agentStart); err != nil && time.Now().Before(end); n, err = agent.Node(ctx) {
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-time.After(writeEvery):
		}
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", address, err)
	}
	for i := range n.Devices {
		t.uuids[n.Devices[i].Index] = n.Devices[i].UUID
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
	req, err := http.NewRequestWithContext(ctx, http.MethodPut, t.address+sim.PushPath, bytes.NewReader(b))
	if err != nil {
		return err
	}
	resp, err := t.client.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	switch resp.StatusCode {
	case http.StatusNoContent:
		return nil
	case http.StatusNotFound:
		return fmt.Errorf("%s takes no simulated load: start it with --backend sim --sim-push", t.address)
	}
	answer, _ := io.ReadAll(io.LimitReader(resp.Body, maxAnswer)) // what there is of it
	return fmt.Errorf("PUT %s: %s: %s", t.address+sim.PushPath, resp.Status, excerpt.Of(string(answer), maxAnswer))
}

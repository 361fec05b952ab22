// SPDX-License-Identifier: Apache-2.0

// Package client reads the JSON API of a gpupilot-agent: the GPUs of one node.
package client

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"iter"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// Client reads one agent.
type Client struct {
	// URL is the agent's address, such as http://127.0.0.1:9400.
	URL string
	// HTTP sends the requests; nil: http.DefaultClient. Give one with credentials for an agent that wants them.
	HTTP *http.Client
}

// maxAnswer bounds an answer, in bytes.
const maxAnswer = 64 << 20

// Error is an answer that is no success.
type Error struct {
	Status  int // of HTTP: 404 where a device or a process is not known, 503 before the first collection
	Message string
}

// Error returns the agent's message.
func (e *Error) Error() string { return fmt.Sprintf("the agent answers %d: %s", e.Status, e.Message) }

// Node returns the last collection.
func (c *Client) Node(ctx context.Context) (*Node, error) { return get[Node](ctx, c, "gpus") }

// Device returns a device. The id is an index, a UUID, or the index of a GPU and the number of its GPU instance: 0:7.
func (c *Client) Device(ctx context.Context, id string) (*Device, error) {
	return get[Device](ctx, c, "gpus", id)
}

// Health returns the health of a GPU's systems.
func (c *Client) Health(ctx context.Context, id string) (*Health, error) {
	return get[Health](ctx, c, "gpus", id, "health")
}

// Processes returns the processes that use a device. The agent needs --process-metrics.
func (c *Client) Processes(ctx context.Context, id string) ([]Process, error) {
	list, err := get[[]Process](ctx, c, "gpus", id, "processes")
	if err != nil {
		return nil, err
	}
	return *list, nil
}

// Process returns the devices that a process uses. The agent needs --process-metrics.
func (c *Client) Process(ctx context.Context, pid int) ([]Use, error) {
	list, err := get[[]Use](ctx, c, "processes", strconv.Itoa(pid))
	if err != nil {
		return nil, err
	}
	return *list, nil
}

// Topology returns the paths between the GPUs, and from them to the CPUs.
func (c *Client) Topology(ctx context.Context) (*Topology, error) {
	return get[Topology](ctx, c, "topology")
}

// Discovery returns what is on the node.
func (c *Client) Discovery(ctx context.Context) (*Discovery, error) {
	return get[Discovery](ctx, c, "discovery")
}

// Status returns the state of the agent.
func (c *Client) Status(ctx context.Context) (*Status, error) { return get[Status](ctx, c, "status") }

// Watch yields each new collection, or why there is none, until ctx is done or the loop ends. It asks once per interval of
// the agent, and each second while the agent does not answer.
func (c *Client) Watch(ctx context.Context) iter.Seq2[*Node, error] {
	return func(yield func(*Node, error) bool) {
		var last time.Time
		for ctx.Err() == nil {
			pause := time.Second
			n, err := c.Node(ctx)
			if err == nil {
				pause = max(10*time.Millisecond, time.Duration(n.IntervalSeconds*float64(time.Second)))
			}
			if ctx.Err() != nil {
				return
			}
			if isNew := err != nil || n.Time.After(last); isNew && !yield(n, err) {
				return
			}
			if err == nil {
				last = n.Time
			}
			timer := time.NewTimer(pause)
			select {
			case <-ctx.Done():
				timer.Stop()
				return
			case <-timer.C:
			}
		}
	}
}

func get[T any](ctx context.Context, c *Client, path ...string) (*T, error) {
	for i := range path {
		path[i] = url.PathEscape(path[i])
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSuffix(c.URL, "/")+"/api/v1/"+strings.Join(path, "/"), nil)
	if err != nil {
		return nil, err
	}
	h := c.HTTP
	if h == nil {
		h = http.DefaultClient
	}
	resp, err := h.Do(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		return nil, &Error{resp.StatusCode, strings.TrimSpace(string(b[:min(len(b), 300)]))}
	}
	out := new(T)
	if err := json.Unmarshal(b, out); err != nil {
		return nil, fmt.Errorf("the answer is not an agent's: %w", err)
	}
	return out, nil
}

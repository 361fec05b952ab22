// SPDX-License-Identifier: Apache-2.0

// Package docker reads the GPUs of containers from Docker, or from Podman through the
// same API, on nodes without Kubernetes.
package docker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"
)

// DefaultSocket is Docker's default socket.
const DefaultSocket = "/var/run/docker.sock"

const (
	timeout = 2 * time.Second // of one request
	maxBody = 10 << 20        // bytes of one answer
	maxName = 128             // bytes of a container's name
)

// Container is a running container with GPUs.
type Container struct {
	Name string // or the first twelve digits of its id
	// Devices are the UUIDs of GPUs or MIG devices, indexes of GPUs, or GPU:INSTANCE by
	// index. If All is set, the container has all devices.
	Devices []string
	All     bool
}

// Client is a client of one Docker daemon. It is for one goroutine at a time.
type Client struct {
	http  *http.Client
	cache map[string]Container // by id: the devices of a container never change
}

// New makes a client of the Docker daemon on a unix socket.
func New(socket string) *Client {
	return &Client{
		cache: map[string]Container{},
		http: &http.Client{Timeout: timeout, Transport: &http.Transport{
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				var d net.Dialer
				return d.DialContext(ctx, "unix", socket)
			},
			MaxIdleConns: 1, IdleConnTimeout: time.Minute,
		}},
	}
}

// errNoSuchContainer is Docker's answer for a container that no longer exists.
var errNoSuchContainer = errors.New("no such container")

// Containers lists the running containers with GPUs, sorted by name.
func (c *Client) Containers(ctx context.Context) ([]Container, error) {
	var running []struct{ ID string }
	if err := c.getJSON(ctx, "/containers/json", &running); err != nil {
		return nil, err
	}
	known := make(map[string]Container, len(running))
	var out []Container
	for _, r := range running {
		found, ok := c.cache[r.ID]
		if !ok {
			var err error
			if found, err = c.inspect(ctx, r.ID); errors.Is(err, errNoSuchContainer) {
				continue // it ended after the list was made
			} else if err != nil {
				return nil, err
			}
		}
		known[r.ID] = found
		if found.All || len(found.Devices) > 0 {
			out = append(out, found)
		}
	}
	c.cache = known
	slices.SortFunc(out, func(a, b Container) int { return strings.Compare(a.Name, b.Name) })
	return out, nil
}

// inspectResponse has the used fields of Docker's description of a container.
type inspectResponse struct {
	ID, Name string
	Config   struct{ Env []string }

	HostConfig struct {
		DeviceRequests []deviceRequest
	}
}

// deviceRequest is a request of docker run --gpus.
type deviceRequest struct {
	Driver       string
	Count        int // negative: all
	DeviceIDs    []string
	Capabilities [][]string
}

func (c *Client) inspect(ctx context.Context, id string) (Container, error) {
	var i inspectResponse
	if err := c.getJSON(ctx, "/containers/"+url.PathEscape(id)+"/json", &i); err != nil {
		return Container{}, err
	}
	return i.toContainer(id), nil
}

// toContainer returns the devices requested with --gpus, else with
// NVIDIA_VISIBLE_DEVICES. A request for a number of GPUs does not name devices.
func (i *inspectResponse) toContainer(id string) Container {
	c := Container{Name: containerName(i.Name, id)}
	counted := false
	for _, r := range i.HostConfig.DeviceRequests {
		switch {
		case !r.isForGPUs():
		case len(r.DeviceIDs) > 0:
			c.Devices = append(c.Devices, r.DeviceIDs...)
		case r.Count < 0:
			c.All = true
		default:
			counted = true
		}
	}
	if len(c.Devices) > 0 {
		c.All = false
	}
	if c.All || len(c.Devices) > 0 || counted {
		return c
	}
	for _, e := range i.Config.Env {
		if v, ok := strings.CutPrefix(e, "NVIDIA_VISIBLE_DEVICES="); ok {
			c.Devices, c.All = parseVisibleDevices(v)
		}
	}
	return c
}

func (r *deviceRequest) isForGPUs() bool {
	if strings.EqualFold(r.Driver, "nvidia") {
		return true
	}
	for _, all := range r.Capabilities {
		if slices.ContainsFunc(all, func(s string) bool { return strings.EqualFold(s, "gpu") }) {
			return true
		}
	}
	return false
}

// parseVisibleDevices parses the value of NVIDIA_VISIBLE_DEVICES.
func parseVisibleDevices(v string) (devices []string, all bool) {
	for d := range strings.SplitSeq(v, ",") {
		switch d = strings.TrimSpace(d); strings.ToLower(d) {
		case "", "none", "void":
		case "all":
			all = true
		default:
			devices = append(devices, d)
		}
	}
	if all {
		return nil, true
	}
	return devices, false
}

// containerName returns a container's name without the slash, cut to maxName bytes;
// without a name, its short id.
func containerName(s, id string) string {
	s = strings.ToValidUTF8(strings.TrimSpace(strings.TrimPrefix(s, "/")), "")
	if s == "" {
		return id[:min(len(id), 12)]
	}
	return strings.ToValidUTF8(s[:min(len(s), maxName)], "")
}

// getJSON sends one request and decodes the response.
func (c *Client) getJSON(ctx context.Context, path string, into any) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://docker"+path, nil)
	if err != nil {
		return fmt.Errorf("ask Docker: %w", err)
	}
	res, err := c.http.Do(req)
	if err != nil {
		return fmt.Errorf("ask Docker: %w", err)
	}
	defer func() { _ = res.Body.Close() }() // the response was read
	body := io.LimitReader(res.Body, maxBody)
	switch res.StatusCode {
	case http.StatusOK:
	case http.StatusNotFound:
		return errNoSuchContainer
	default:
		text, _ := io.ReadAll(io.LimitReader(body, 200)) // the reason, if there is one
		return fmt.Errorf("ask Docker for %s: %s: %s", path, res.Status, strings.TrimSpace(string(text)))
	}
	if err := json.NewDecoder(body).Decode(into); err != nil {
		return fmt.Errorf("ask Docker for %s: %w", path, err)
	}
	return nil
}

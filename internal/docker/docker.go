// SPDX-License-Identifier: Apache-2.0

// Package docker asks Docker, or what speaks its API (Podman), which container
// was given which GPUs, where there is no Kubernetes to ask.
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

// DefaultSocket is where Docker listens.
const DefaultSocket = "/var/run/docker.sock"

const (
	timeout = 2 * time.Second // of one question
	maxBody = 10 << 20        // bytes of one answer
	maxName = 128             // bytes of a container's name
)

// Container is one that runs and was given GPUs.
type Container struct {
	Name string // or the first twelve digits of its id
	// Devices are those that it was given: a GPU's or MIG device's UUID, a GPU's
	// index, or GPU:INSTANCE by their places; all of them where it is All.
	Devices []string
	All     bool
}

// Client asks one Docker. It is for one goroutine at a time.
type Client struct {
	http  *http.Client
	known map[string]Container // by id: what a container was given does not change
}

// New makes a client of the Docker that listens on a unix socket.
func New(socket string) *Client {
	return &Client{
		known: map[string]Container{},
		http: &http.Client{Timeout: timeout, Transport: &http.Transport{
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				var d net.Dialer
				return d.DialContext(ctx, "unix", socket)
			},
			MaxIdleConns: 1, IdleConnTimeout: time.Minute,
		}},
	}
}

// errGone is Docker's answer about a container that is no more.
var errGone = errors.New("no such container")

// Containers lists the containers that run and were given GPUs, by name.
func (c *Client) Containers(ctx context.Context) ([]Container, error) {
	var running []struct{ ID string }
	if err := c.get(ctx, "/containers/json", &running); err != nil {
		return nil, err
	}
	known := make(map[string]Container, len(running))
	var out []Container
	for _, r := range running {
		found, ok := c.known[r.ID]
		if !ok {
			var err error
			if found, err = c.inspect(ctx, r.ID); errors.Is(err, errGone) {
				continue // since the list was made
			} else if err != nil {
				return nil, err
			}
		}
		known[r.ID] = found
		if found.All || len(found.Devices) > 0 {
			out = append(out, found)
		}
	}
	c.known = known
	slices.SortFunc(out, func(a, b Container) int { return strings.Compare(a.Name, b.Name) })
	return out, nil
}

// inspected is what is read of one container.
type inspected struct {
	ID, Name string
	Config   struct{ Env []string }

	HostConfig struct {
		DeviceRequests []request
	}
}

// request is what --gpus asks for.
type request struct {
	Driver       string
	Count        int // negative: all
	DeviceIDs    []string
	Capabilities [][]string
}

func (c *Client) inspect(ctx context.Context, id string) (Container, error) {
	var i inspected
	if err := c.get(ctx, "/containers/"+url.PathEscape(id)+"/json", &i); err != nil {
		return Container{}, err
	}
	return i.container(id), nil
}

// container says what was given: by --gpus, else by NVIDIA_VISIBLE_DEVICES. A
// number of GPUs does not say which.
func (i *inspected) container(id string) Container {
	c := Container{Name: name(i.Name, id)}
	counted := false
	for _, r := range i.HostConfig.DeviceRequests {
		switch {
		case !r.forGPUs():
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
			c.Devices, c.All = visible(v)
		}
	}
	return c
}

func (r *request) forGPUs() bool {
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

// visible reads the value of NVIDIA_VISIBLE_DEVICES.
func visible(v string) (devices []string, all bool) {
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

// name is a container's, without its slash and not too long; else its short id.
func name(s, id string) string {
	s = strings.ToValidUTF8(strings.TrimSpace(strings.TrimPrefix(s, "/")), "")
	if s == "" {
		return id[:min(len(id), 12)]
	}
	return strings.ToValidUTF8(s[:min(len(s), maxName)], "")
}

// get asks one question.
func (c *Client) get(ctx context.Context, path string, into any) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://docker"+path, nil)
	if err != nil {
		return fmt.Errorf("ask Docker: %w", err)
	}
	res, err := c.http.Do(req)
	if err != nil {
		return fmt.Errorf("ask Docker: %w", err)
	}
	defer func() { _ = res.Body.Close() }() // it was read as far as it matters
	body := io.LimitReader(res.Body, maxBody)
	switch res.StatusCode {
	case http.StatusOK:
	case http.StatusNotFound:
		return errGone
	default:
		text, _ := io.ReadAll(io.LimitReader(body, 200)) // why, if it says so
		return fmt.Errorf("ask Docker for %s: %s: %s", path, res.Status, strings.TrimSpace(string(text)))
	}
	if err := json.NewDecoder(body).Decode(into); err != nil {
		return fmt.Errorf("ask Docker for %s: %w", path, err)
	}
	return nil
}

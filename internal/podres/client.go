// SPDX-License-Identifier: Apache-2.0

// Package podres asks the kubelet which container holds which device, through
// its pod-resources socket (API v1).
package podres

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

// DefaultSocket is where a kubelet listens unless its root directory was moved.
const DefaultSocket = "/var/lib/kubelet/pod-resources/kubelet.sock"

const (
	list = "/v1.PodResourcesLister/List"
	// maxAnswer bounds a List answer. gRPC's usual 4 MiB are too few on nodes
	// with many pods and huge topologies, and the kubelet has no such limit.
	maxAnswer = 64 << 20
	// maxWait bounds one question where the caller's context does not.
	maxWait = 10 * time.Second
)

// defaultResources are the names that count as GPUs anyway; migPrefix starts
// those of MIG profiles.
func defaultResources() []string { return []string{"nvidia.com/gpu", "nvidia.com/gpu.shared"} }

const migPrefix = "nvidia.com/mig-"

// Client asks one kubelet over one kept-open connection. A socket that is not
// there (yet) or a kubelet that restarts is an error of one question; the next
// one may succeed. It is safe for concurrent use.
type Client struct {
	caller    *caller
	resources []string
	claims    bool
	answered  atomic.Int64 // the start of the kubelet, by number, that the last answer came from; 0: none did
}

// ErrRestarted is the error of the first question to a kubelet that has been
// started anew: its socket is another file. For a while it may not know all of
// its pods. A connection that was only closed is made again, without an error.
var ErrRestarted = errors.New("the kubelet was restarted")

// New makes a client of the kubelet behind socket, a path. Beside nvidia.com's
// resources, the given ones count as GPUs. It does not connect yet.
func New(socket string, resources ...string) (*Client, error) {
	abs, err := filepath.Abs(strings.TrimPrefix(socket, "unix://"))
	if err != nil {
		return nil, fmt.Errorf("pod-resources socket %q: %w", socket, err)
	}
	return &Client{caller: newCaller(abs), resources: append(defaultResources(), resources...)}, nil
}

// WithClaims has the client list the GPUs of resource claims, too.
func (c *Client) WithClaims() *Client {
	c.claims = true
	return c
}

// Close ends the connection.
func (c *Client) Close() error {
	c.caller.close()
	return nil
}

// Allocations lists every GPU device of every container that the kubelet knows,
// each once.
func (c *Client) Allocations(ctx context.Context) ([]gpu.Allocation, error) {
	ctx, cancel := context.WithTimeout(ctx, maxWait)
	defer cancel()
	answer, err := c.caller.call(ctx, list, maxAnswer)
	if err != nil {
		return nil, fmt.Errorf("list pod resources: %w", err)
	}
	pods, err := parseList(answer)
	if err != nil {
		return nil, fmt.Errorf("list pod resources: %w", err)
	}
	now := c.caller.serverStarts()
	if before := c.answered.Swap(now); before != 0 && before != now {
		return nil, fmt.Errorf("list pod resources: %w", ErrRestarted)
	}
	return c.allocations(pods), nil
}

// allocations flattens the answer. A device may come as its own
// ContainerDevices entry, several in one, or twice (once for each NUMA node).
func (c *Client) allocations(pods []podResources) []gpu.Allocation {
	var out []gpu.Allocation
	for _, p := range pods {
		for _, k := range p.containers {
			owner := gpu.Owner{Namespace: p.namespace, Pod: p.name, Container: k.name}
			out = c.appendDevices(out, owner, k.devices)
			if c.claims {
				out = appendClaims(out, owner, k.claims)
			}
		}
	}
	return out
}

// maxDevices bounds the device ids that are taken of one container. A node has
// up to 16 GPUs, and each some hundred replicas at most.
const maxDevices = 16384

// appendDevices adds a container's GPUs, each once. What is beyond maxDevices is
// added as one allocation whose id names no device, so that it is counted among
// the unmatched ones and listed.
func (c *Client) appendDevices(out []gpu.Allocation, o gpu.Owner, devices []containerDevices) []gpu.Allocation {
	type device struct{ resource, id string }
	seen := map[device]bool{}
	for _, d := range devices {
		if !c.isGPU(d.resource) {
			continue
		}
		for _, id := range d.ids {
			this := device{d.resource, id}
			if seen[this] {
				continue
			}
			if len(seen) == maxDevices {
				return append(out, gpu.Allocation{Resource: d.resource, DeviceID: tooMany, Owner: o})
			}
			seen[this] = true
			out = append(out, gpu.Allocation{Resource: d.resource, DeviceID: id, Owner: o})
		}
	}
	return out
}

// tooMany stands for the device ids of a container that are left out.
var tooMany = fmt.Sprintf("more than %d device ids: the others are left out", maxDevices)

// Driver is the name of NVIDIA's driver of resource claims.
const Driver = "gpu.nvidia.com"

// appendClaims adds the GPUs that a container holds by claims, under the names
// that ResourceSlices give them.
func appendClaims(out []gpu.Allocation, o gpu.Owner, claims []claim) []gpu.Allocation {
	for _, k := range claims {
		for _, d := range k.devices {
			if d.driver != Driver {
				continue
			}
			o.Claim = &gpu.Claim{Namespace: k.namespace, Name: k.name, Driver: d.driver, Pool: d.pool, Device: d.device}
			o.Replica = d.share
			out = append(out, gpu.Allocation{Resource: d.driver, DeviceID: d.pool + "/" + d.device, Owner: o})
		}
	}
	return out
}

func (c *Client) isGPU(resource string) bool {
	return strings.HasPrefix(resource, migPrefix) || slices.Contains(c.resources, resource)
}

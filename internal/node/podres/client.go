// SPDX-License-Identifier: Apache-2.0

// Package podres reads from the kubelet which container holds which device,
// through the pod-resources socket (API v1).
package podres

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

// DefaultSocket is the kubelet's socket under its default root directory.
const DefaultSocket = "/var/lib/kubelet/pod-resources/kubelet.sock"

const (
	list        = "/v1.PodResourcesLister/List"
	allocatable = "/v1.PodResourcesLister/GetAllocatableResources" // from Kubernetes 1.23 on
	// maxAnswer limits a List response. gRPC's usual 4 MiB are too small for
	// nodes with many pods and huge topologies, and the kubelet has no such
	// limit.
	maxAnswer = 64 << 20
	// maxWait limits one request if the caller's context does not.
	maxWait = 10 * time.Second
)

// Client reads from one kubelet over one persistent connection. A missing
// socket or a restart of the kubelet fails one request; the next may succeed.
// Client is safe for concurrent use.
type Client struct {
	caller    *caller
	resources []string
	claims    bool
	answered  atomic.Int64 // the number of the kubelet's start that sent the last response; 0: no response yet
}

// ErrRestarted is the error of the first request after a restart of the
// kubelet, which replaces the socket's file. The kubelet's list may be
// incomplete for a while. A connection that was only closed is opened again
// without an error.
var ErrRestarted = errors.New("the kubelet was restarted")

// New returns a client of the kubelet at the path socket. The given resources
// count as GPUs, besides those of gpu.IsResource. New does not connect.
func New(socket string, resources ...string) (*Client, error) {
	abs, err := filepath.Abs(strings.TrimPrefix(socket, "unix://"))
	if err != nil {
		return nil, fmt.Errorf("pod-resources socket %q: %w", socket, err)
	}
	return &Client{caller: newCaller(abs), resources: resources}, nil
}

// WithClaims makes the client list the GPUs of resource claims too.
func (c *Client) WithClaims() *Client {
	c.claims = true
	return c
}

// Close ends the connection.
func (c *Client) Close() error {
	c.caller.close()
	return nil
}

// Allocations lists every GPU of every container in the kubelet's list, each
// once.
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

// Allocatable lists the GPUs and MIG instances that device plugins offer to pods, with each
// share of one.
func (c *Client) Allocatable(ctx context.Context) ([]gpu.DeviceID, error) {
	ctx, cancel := context.WithTimeout(ctx, maxWait)
	defer cancel()
	answer, err := c.caller.call(ctx, allocatable, maxAnswer)
	if err != nil {
		return nil, fmt.Errorf("get allocatable resources: %w", err)
	}
	devices, err := parseAllocatable(answer)
	if err != nil {
		return nil, fmt.Errorf("get allocatable resources: %w", err)
	}
	var out []gpu.DeviceID
	for _, d := range devices {
		if !gpu.IsResource(d.resource, c.resources) {
			continue
		}
		for _, s := range d.ids {
			if id, ok := gpu.ParseDeviceID(s); ok && len(out) < maxDevices {
				out = append(out, id)
			}
		}
	}
	return out, nil
}

// allocations flattens the response. A device can have its own ContainerDevices
// entry, share one with others, or be in two entries (one for each NUMA node).
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

// maxDevices limits the device ids of one container. A node has up to 16 GPUs,
// and each up to a few hundred replicas.
const maxDevices = 16384

// appendDevices adds a container's GPUs, each once. Ids beyond maxDevices
// become one allocation whose id matches no device, so that they show among the
// unmatched allocations, as do GPUs under a name that does not count.
func (c *Client) appendDevices(out []gpu.Allocation, o gpu.Owner, devices []containerDevices) []gpu.Allocation {
	type device struct{ resource, id string }
	seen := map[device]bool{}
	for _, d := range devices {
		counted := gpu.IsResource(d.resource, c.resources)
		for _, id := range d.ids {
			if !counted && !namesGPU(id) {
				continue
			}
			this := device{d.resource, id}
			if seen[this] {
				continue
			}
			if len(seen) == maxDevices {
				return append(out, gpu.Allocation{Resource: d.resource, DeviceID: tooMany, Owner: o})
			}
			seen[this] = true
			out = append(out, gpu.Allocation{Resource: d.resource, DeviceID: id, Owner: o, Uncounted: !counted})
		}
	}
	return out
}

// tooMany replaces the device ids of a container beyond maxDevices.
var tooMany = fmt.Sprintf("more than %d device ids: the others are left out", maxDevices)

// Driver is the name of NVIDIA's driver of resource claims.
const Driver = "gpu.nvidia.com"

// appendClaims adds the GPUs that a container holds through claims, under their
// names in ResourceSlices.
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

// namesGPU reports whether a device id is one of GPUs or of MIG instances, as no other
// device's is.
func namesGPU(id string) bool {
	_, ok := gpu.ParseDeviceID(id)
	return ok
}

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

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/stats"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

// DefaultSocket is where a kubelet listens unless its root directory was moved.
const DefaultSocket = "/var/lib/kubelet/pod-resources/kubelet.sock"

const (
	// maxAnswer bounds a List answer. gRPC's own 4 MiB are too few on nodes
	// with many pods and huge topologies, and the kubelet has no such limit.
	maxAnswer = 64 << 20
	// maxWait bounds one question where the caller's context does not.
	maxWait = 10 * time.Second
	// maxBackoff bounds how long a kubelet that is back stays unnoticed.
	maxBackoff = 2 * time.Second
)

// defaultResources are the names that count as GPUs anyway; migPrefix starts
// those of MIG profiles.
func defaultResources() []string { return []string{"nvidia.com/gpu", "nvidia.com/gpu.shared"} }

const migPrefix = "nvidia.com/mig-"

// Client asks one kubelet over one kept-open connection. A socket that is not
// there (yet) or a kubelet that restarts is an error of one question; the next
// one may succeed. It is safe for concurrent use.
type Client struct {
	conn      *grpc.ClientConn
	lister    podresources.PodResourcesListerClient
	resources []string
	conns     connCounter
	answered  atomic.Int64 // the connection, by number, that the last answer came over; 0: none did
}

// ErrRestarted is the error of the first question over a new connection, where
// there was one before: the kubelet has been started anew, and for a while it
// may not know all of its pods.
var ErrRestarted = errors.New("the kubelet was restarted")

// New makes a client of the kubelet behind socket, a path. Beside nvidia.com's
// resources, the given ones count as GPUs. It does not connect yet.
func New(socket string, resources ...string) (*Client, error) {
	abs, err := filepath.Abs(strings.TrimPrefix(socket, "unix://"))
	if err != nil {
		return nil, fmt.Errorf("pod-resources socket %q: %w", socket, err)
	}
	c := &Client{resources: append(defaultResources(), resources...)}
	c.conn, err = grpc.NewClient("unix://"+abs,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxAnswer)),
		// A kubelet does not close idle connections, and neither do we.
		grpc.WithIdleTimeout(0),
		grpc.WithDisableServiceConfig(),
		grpc.WithStatsHandler(&c.conns),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff: backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 2, Jitter: 0.2, MaxDelay: maxBackoff},
		}),
	)
	if err != nil {
		return nil, fmt.Errorf("pod-resources socket %s: %w", abs, err)
	}
	c.lister = podresources.NewPodResourcesListerClient(c.conn)
	return c, nil
}

// Close ends the connection.
func (c *Client) Close() error { return c.conn.Close() }

// Allocations lists every GPU device of every container that the kubelet knows,
// each once.
func (c *Client) Allocations(ctx context.Context) ([]gpu.Allocation, error) {
	ctx, cancel := context.WithTimeout(ctx, maxWait)
	defer cancel()
	answer, err := c.lister.List(ctx, &podresources.ListPodResourcesRequest{})
	if err != nil {
		return nil, fmt.Errorf("list pod resources: %w", err)
	}
	now := c.conns.n.Load()
	if before := c.answered.Swap(now); before != 0 && before != now {
		return nil, fmt.Errorf("list pod resources: %w", ErrRestarted)
	}
	return c.allocations(answer.GetPodResources()), nil
}

// allocations flattens the answer. A device may come as its own
// ContainerDevices entry, several in one, or twice (once for each NUMA node).
func (c *Client) allocations(pods []*podresources.PodResources) []gpu.Allocation {
	var out []gpu.Allocation
	for _, p := range pods {
		for _, k := range p.GetContainers() {
			first := len(out)
			for _, d := range k.GetDevices() {
				if !c.isGPU(d.GetResourceName()) {
					continue
				}
				for _, id := range d.GetDeviceIds() {
					a := gpu.Allocation{Resource: d.GetResourceName(), DeviceID: id, Owner: gpu.Owner{
						Namespace: p.GetNamespace(), Pod: p.GetName(), Container: k.GetName(),
					}}
					if !slices.Contains(out[first:], a) {
						out = append(out, a)
					}
				}
			}
		}
	}
	return out
}

func (c *Client) isGPU(resource string) bool {
	return strings.HasPrefix(resource, migPrefix) || slices.Contains(c.resources, resource)
}

// connCounter numbers the connections that were made.
type connCounter struct{ n atomic.Int64 }

// HandleConn counts.
func (c *connCounter) HandleConn(_ context.Context, s stats.ConnStats) {
	if _, ok := s.(*stats.ConnBegin); ok {
		c.n.Add(1)
	}
}

// TagConn does nothing.
func (*connCounter) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }

// TagRPC does nothing.
func (*connCounter) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context { return ctx }

// HandleRPC does nothing.
func (*connCounter) HandleRPC(context.Context, stats.RPCStats) {}

// SPDX-License-Identifier: Apache-2.0

package apiwatch

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/url"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

const (
	// maxAsked is how many pods are looked up to find the node's name. One is
	// not enough: it may have moved to another node while the kubelet still
	// lists it.
	maxAsked = 5
	// maxPodList limits the response for one pod. etcd's limit for an object is
	// 1.5 MiB.
	maxPodList = 4 << 20
	// recheckEvery is the time between two lookups after the name is known.
	recheckEvery = 10 * time.Minute
)

// errNoName is the error until the node's name is known.
var errNoName = errors.New("the node's name is unknown (NODE_NAME is not set), and the kubelet has listed no pod with a device yet")

// Node is the node that the agent runs on. Its name is given, or found through
// the API server as the node of the kubelet's pods. A container's hostname is
// usually its pod's name, not the node's.
type Node struct {
	c     *Client
	log   *slog.Logger
	state atomic.Pointer[nodeState]
	woken chan struct{} // pods were seen

	mu   sync.Mutex
	pods []gpu.PodName // from the kubelet's last list, at most maxAsked
}

// nodeState is the known name of a node. It is immutable.
type nodeState struct {
	name    string        // empty: unknown
	err     error         // why
	changed chan struct{} // closed when the next state is set
}

// GivenNode returns a node with the given name.
func GivenNode(name string) *Node {
	n := &Node{}
	n.state.Store(&nodeState{name: name})
	return n
}

// FindNode returns a node whose name Run finds from the pods that Saw receives.
func FindNode(c *Client, log *slog.Logger) *Node {
	n := &Node{c: c, log: log, woken: make(chan struct{}, 1)}
	n.state.Store(&nodeState{err: errNoName, changed: make(chan struct{})})
	return n
}

// Saw receives the pods that the kubelet lists on the node.
func (n *Node) Saw(allocs []gpu.Allocation) {
	if n.c == nil || len(allocs) == 0 {
		return
	}
	n.mu.Lock()
	n.pods = n.pods[:0]
	for i := range allocs {
		name := gpu.PodName{Namespace: allocs[i].Owner.Namespace, Name: allocs[i].Owner.Pod}
		if len(n.pods) < maxAsked && !slices.Contains(n.pods, name) {
			n.pods = append(n.pods, name)
		}
	}
	n.mu.Unlock()
	select {
	case n.woken <- struct{}{}:
	default:
	}
}

// Run finds the name if it is not given, and checks it again until ctx is done.
func (n *Node) Run(ctx context.Context) {
	if n.c == nil {
		return
	}
	retry := minRetry
	for {
		select {
		case <-ctx.Done():
			return
		case <-n.woken:
		}
		wait := recheckEvery
		name, err := n.ask(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			wait, retry = retry, min(2*retry, maxRetry)
			n.failed(err)
		default:
			retry = minRetry
			n.found(name)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait + rand.N(wait/2)):
		}
	}
}

// found stores the name. A change ends the watches of the former node.
func (n *Node) found(name string) {
	was := n.state.Load()
	if was.name == name {
		return
	}
	n.log.Info("NODE_NAME is not set; found the node's name through the API server", "node", name)
	n.state.Store(&nodeState{name: name, changed: make(chan struct{})})
	close(was.changed)
}

func (n *Node) failed(err error) {
	was := n.state.Load()
	if was.name != "" {
		return // the known name is kept
	}
	if was.err.Error() != err.Error() {
		n.log.Warn("cannot find the node's name; set NODE_NAME to spec.nodeName", "err", err)
	}
	n.state.Store(&nodeState{err: err, changed: was.changed})
}

// err returns why the name is unknown.
func (n *Node) err() error { return n.state.Load().err }

// each calls f with the node's name as soon as it is known, and again after
// each change. A change also ends the context of f.
func (n *Node) each(ctx context.Context, f func(ctx context.Context, name string)) {
	for ctx.Err() == nil {
		s := n.state.Load()
		if s.name == "" {
			select {
			case <-ctx.Done():
			case <-s.changed:
			}
			continue
		}
		with, cancel := context.WithCancel(ctx)
		var watch sync.WaitGroup
		watch.Go(func() {
			select {
			case <-with.Done():
			case <-s.changed: // nil for a given name
				cancel()
			}
		})
		f(with, s.name)
		cancel()
		watch.Wait()
	}
}

// ask returns the node on which most of the kubelet's pods run.
func (n *Node) ask(ctx context.Context) (string, error) {
	n.mu.Lock()
	pods := slices.Clone(n.pods)
	n.mu.Unlock()
	on := map[string]int{}
	best, equal := "", false
	var errs []error
	for _, p := range pods {
		name, err := n.nodeOf(ctx, p)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if on[name]++; name == best {
			equal = false
			continue
		}
		switch {
		case on[name] > on[best]:
			best, equal = name, false
		case on[name] == on[best]:
			equal = true
		}
	}
	switch {
	case best == "":
		return "", fmt.Errorf("the node's name is unknown (NODE_NAME is not set): %w", errors.Join(errs...))
	case equal:
		return "", fmt.Errorf("the node's name is unknown (NODE_NAME is not set): the kubelet's pods are on several nodes: %v", on)
	}
	return best, nil
}

// nodeOf returns the node of a pod. It uses a list, for which the account has
// the right anyway, because of the watch.
func (n *Node) nodeOf(ctx context.Context, p gpu.PodName) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	path := "/api/v1/namespaces/" + url.PathEscape(p.Namespace) + "/pods"
	body, err := n.c.get(ctx, path, url.Values{"fieldSelector": {"metadata.name=" + p.Name}}, "application/json")
	if err != nil {
		return "", fmt.Errorf("find pod %s/%s: %w", p.Namespace, p.Name, err)
	}
	defer func() { _ = body.Close() }()
	var list struct {
		Items []struct {
			Spec struct {
				NodeName string `json:"nodeName"`
			} `json:"spec"`
		} `json:"items"`
	}
	if err := json.NewDecoder(io.LimitReader(body, maxPodList)).Decode(&list); err != nil {
		return "", fmt.Errorf("find pod %s/%s: %w", p.Namespace, p.Name, err)
	}
	if len(list.Items) != 1 || list.Items[0].Spec.NodeName == "" {
		return "", fmt.Errorf("find pod %s/%s: the API server has no such pod", p.Namespace, p.Name)
	}
	return list.Items[0].Spec.NodeName, nil
}

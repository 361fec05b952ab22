// SPDX-License-Identifier: Apache-2.0

// Package nodehealth keeps the condition GPUHealthy of Nodes from what the agents
// report about their GPUs.
package nodehealth

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/url"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gpupilot/gpupilot/internal/base/fair"
	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/window/discovery"
)

// Condition is the type of the condition that a Keeper sets.
const Condition corev1.NodeConditionType = gpu.NodeHealthCondition

const (
	// checkEvery is the time between two checks of a node. The faults do not end by
	// themselves.
	checkEvery = 15 * time.Second
	// maxConcurrent bounds the concurrent requests to agents.
	maxConcurrent = 16
	// checkTimeout bounds one request to an agent and the writes that follow.
	checkTimeout = 5 * time.Second
)

// Agent is the agent of one node.
type Agent struct {
	Name string // unique; an agent that was started again has another name
	Node string
	URL  url.URL // of its metrics
}

// Config holds the collaborators of a Keeper. Every field is required.
type Config struct {
	Agents func() []Agent                                                    // all agents of the cluster now
	Ask    func(ctx context.Context, agent url.URL) (*gpu.NodeHealth, error) // requests the report of one agent
	Live   client.Reader                                                     // reads Nodes from the API server
	Client client.Client                                                     // patches their status
	// Record writes an Event about a Node, of type Normal or Warning; it does not block.
	Record func(node *corev1.ObjectReference, eventType, reason, note string)
	Log    *slog.Logger
}

// Keeper keeps the condition of every node that has an agent.
type Keeper struct {
	cfg Config

	mu     sync.Mutex
	agents map[string]*history             // by the agent's name
	set    map[string]corev1.NodeCondition // by node: the condition that it has
	uids   map[string]types.UID            // by node
}

// New makes a Keeper without any state of nodes.
func New(cfg Config) *Keeper {
	return &Keeper{cfg: cfg, agents: map[string]*history{}, set: map[string]corev1.NodeCondition{}, uids: map[string]types.UID{}}
}

// Run checks all nodes every 15 s until ctx is done. Only the leader calls it.
func (k *Keeper) Run(ctx context.Context) {
	every := time.NewTicker(checkEvery)
	defer every.Stop()
	for {
		k.check(ctx, time.Now())
		select {
		case <-ctx.Done():
			return
		case <-every.C:
		}
	}
}

// check requests the reports of all agents once, and writes the conditions that
// changed.
func (k *Keeper) check(ctx context.Context, now time.Time) {
	agents := k.cfg.Agents()
	k.forget(agents)
	// The rest is left out if ctx is done.
	_ = fair.Together(maxConcurrent).Each(ctx, fair.Request{Payer: fair.Operator("health of nodes")}, len(agents), func(i int) {
		if agents[i].Node == "" {
			return
		}
		ctx, cancel := context.WithTimeout(ctx, checkTimeout)
		defer cancel()
		k.checkNode(ctx, &agents[i], now)
	})
}

// forget drops the history of agents that are gone, and what was read of their nodes:
// a node that joins again under the same name is read again.
func (k *Keeper) forget(agents []Agent) {
	running := make(map[string]bool, len(agents))
	for i := range agents {
		running[agents[i].Name] = true
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	for name, h := range k.agents {
		if !running[name] {
			delete(k.agents, name)
			delete(k.set, h.node)
			delete(k.uids, h.node)
		}
	}
}

func (k *Keeper) checkNode(ctx context.Context, agent *Agent, now time.Time) {
	report, err := k.cfg.Ask(ctx, agent.URL)
	k.mu.Lock()
	h := k.agents[agent.Name]
	if h == nil {
		h = &history{node: agent.Node, down: map[string]int{}, seen: map[string]bool{}}
		k.agents[agent.Name] = h
	}
	k.mu.Unlock()
	cond, ok := h.condition(report, err, now)
	if !ok {
		return
	}
	if err := k.setCondition(ctx, agent.Node, cond, now); err != nil && ctx.Err() == nil {
		k.cfg.Log.Warn("cannot set a node's condition", "node", agent.Node, "condition", Condition, "err", err)
	}
}

// setCondition writes a node's condition if it differs from the one that the node
// has, and records the change.
func (k *Keeper) setCondition(ctx context.Context, node string, cond corev1.NodeCondition, now time.Time) error {
	before, err := k.current(ctx, node)
	if err != nil {
		return client.IgnoreNotFound(err)
	}
	if before.Status == cond.Status && before.Reason == cond.Reason && before.Message == cond.Message {
		return nil
	}
	cond.LastHeartbeatTime, cond.LastTransitionTime = metav1.Time{Time: now}, before.LastTransitionTime
	if before.Status != cond.Status {
		cond.LastTransitionTime = metav1.Time{Time: now}
	}
	patch, err := json.Marshal(map[string]any{"status": map[string]any{"conditions": []corev1.NodeCondition{cond}}})
	if err != nil {
		return fmt.Errorf("encode a condition: %w", err)
	}
	named := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}
	err = k.cfg.Client.Status().Patch(ctx, named, client.RawPatch(types.StrategicMergePatchType, patch))
	if err != nil {
		return client.IgnoreNotFound(err)
	}
	k.mu.Lock()
	uid := k.uids[node]
	k.set[node] = cond
	k.mu.Unlock()
	k.announce(node, uid, &before, &cond)
	return nil
}

// current returns the condition that a node has, which is read once and then
// remembered. It is the zero condition of a node without one.
func (k *Keeper) current(ctx context.Context, node string) (cond corev1.NodeCondition, err error) {
	k.mu.Lock()
	cond, known := k.set[node]
	k.mu.Unlock()
	if known {
		return cond, nil
	}
	n := &corev1.Node{}
	if err := k.cfg.Live.Get(ctx, client.ObjectKey{Name: node}, n); err != nil {
		return cond, err
	}
	if i := slices.IndexFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool { return c.Type == Condition }); i >= 0 {
		cond = n.Status.Conditions[i]
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.set[node], k.uids[node] = cond, n.UID
	return cond, nil
}

// announce writes an Event and a log line about a new fault, and about the end of
// the last one.
func (k *Keeper) announce(node string, uid types.UID, before, cond *corev1.NodeCondition) {
	eventType := corev1.EventTypeWarning
	switch {
	case cond.Status == corev1.ConditionTrue && before.Status != corev1.ConditionFalse, cond.Status == corev1.ConditionUnknown:
		return
	case cond.Status == corev1.ConditionTrue:
		eventType = corev1.EventTypeNormal
	}
	k.cfg.Log.Warn("health of a node's GPUs has changed", "node", node, "healthy", cond.Status, "reason", cond.Reason, "why", cond.Message)
	k.cfg.Record(&corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: node, UID: uid}, eventType, cond.Reason, cond.Message)
}

// AgentsOf returns the agents of targets.
func AgentsOf(targets []discovery.Target) []Agent {
	agents := make([]Agent, 0, len(targets))
	for i := range targets {
		agents = append(agents, Agent{Name: targets[i].Name, Node: targets[i].Labels.Node, URL: targets[i].URL})
	}
	return agents
}

// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

// ConditionGPUHealthy is the condition of a Node that --node-health keeps.
const ConditionGPUHealthy corev1.NodeConditionType = gpu.NodeHealthCondition

// The reasons of the condition beside those of faults. They are public.
const (
	reasonHealthy = "GPUsHealthy"
	reasonSilent  = "AgentSilent"
)

const (
	// healthEvery is the time between two looks at a node: what is looked for
	// does not pass by itself.
	healthEvery = 15 * time.Second
	// healthAtOnce is how many agents are asked at a time.
	healthAtOnce = 16
	// healthTimeout bounds one question, and the writes that follow from it.
	healthTimeout = 5 * time.Second
	// downLooks is at how many looks in a row a GPU must be down to be lost: one
	// read may fail.
	downLooks = 2
	// silentLooks is after how many looks in vain nothing is known any more.
	silentLooks = 8
)

// nodeHealth keeps the nodes' condition for as long as we lead.
type nodeHealth struct {
	c *Controller

	mu     sync.Mutex
	agents map[string]*agentHealth         // by the target's name
	told   map[string]corev1.NodeCondition // by node: what it has
	uids   map[string]types.UID            // by node
}

// agentHealth is what the looks before left of one agent. An agent that is
// started anew has another name, and a GPU that it lacks was never there.
type agentHealth struct {
	down   map[string]int // looks in a row at which a GPU was down or gone
	seen   map[string]bool
	silent int
}

// KeepNodeHealth keeps the condition GPUHealthy of every node that has an agent,
// until ctx is done. Only the leader calls it.
func (c *Controller) KeepNodeHealth(ctx context.Context) {
	h := &nodeHealth{c: c, agents: map[string]*agentHealth{}, told: map[string]corev1.NodeCondition{}, uids: map[string]types.UID{}}
	every := time.NewTicker(healthEvery)
	defer every.Stop()
	for {
		h.look(ctx, time.Now())
		select {
		case <-ctx.Done():
			return
		case <-every.C:
		}
	}
}

// look asks all agents once, and writes what changed.
func (h *nodeHealth) look(ctx context.Context, now time.Time) {
	targets := h.c.agents(gpu.FieldSet{})
	h.forget(targets)
	slots := make(chan struct{}, healthAtOnce)
	var all sync.WaitGroup
	for i := range targets {
		t := &targets[i]
		if t.Labels.Node == "" {
			continue
		}
		slots <- struct{}{}
		all.Go(func() {
			defer func() { <-slots }()
			ctx, cancel := context.WithTimeout(ctx, healthTimeout)
			defer cancel()
			h.lookAt(ctx, t, now)
		})
	}
	all.Wait()
}

// forget drops what is known of agents that are gone.
func (h *nodeHealth) forget(targets []Target) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for name := range h.agents {
		if !slices.ContainsFunc(targets, func(t Target) bool { return t.Name == name }) {
			delete(h.agents, name)
		}
	}
}

func (h *nodeHealth) lookAt(ctx context.Context, t *Target, now time.Time) {
	is, err := h.c.deps.Health(ctx, t.URL)
	h.mu.Lock()
	a := h.agents[t.Name]
	if a == nil {
		a = &agentHealth{down: map[string]int{}, seen: map[string]bool{}}
		h.agents[t.Name] = a
	}
	h.mu.Unlock()
	cond, ok := a.judge(is, err, now)
	if !ok {
		return
	}
	if err := h.tell(ctx, t.Labels.Node, cond, now); err != nil && ctx.Err() == nil {
		h.c.deps.Log.Warn("cannot set a node's condition", "node", t.Labels.Node, "condition", ConditionGPUHealthy, "err", err)
	}
}

// judge makes a condition of what an agent says; ok is false while there is
// nothing to say.
func (a *agentHealth) judge(is *gpu.NodeHealth, err error, now time.Time) (cond corev1.NodeCondition, ok bool) {
	cond.Type = ConditionGPUHealthy
	if err != nil {
		if a.silent++; a.silent < silentLooks {
			return cond, false
		}
		cond.Status, cond.Reason = corev1.ConditionUnknown, reasonSilent
		cond.Message = "the agent of this node does not say how its GPUs are"
		return cond, true
	}
	a.silent = 0
	faults := a.steady(is).Faults(now)
	if len(faults) == 0 {
		cond.Status, cond.Reason, cond.Message = corev1.ConditionTrue, reasonHealthy, "no GPU of this node has a fault"
		return cond, true
	}
	messages := make([]string, 0, len(faults))
	for _, f := range faults {
		messages = append(messages, f.Message)
	}
	cond.Status, cond.Reason, cond.Message = corev1.ConditionFalse, faults[0].Reason, clip(strings.Join(messages, "; "), maxMessage)
	return cond, true
}

// steady is is without what may pass: a device is down when it was so several
// times in a row. A GPU that was there and is not any more is down, too.
func (a *agentHealth) steady(is *gpu.NodeHealth) *gpu.NodeHealth {
	out := &gpu.NodeHealth{Blind: is.Blind, GPUs: slices.Clone(is.GPUs)}
	here := map[string]bool{}
	for _, g := range is.GPUs {
		here[g.UUID] = true
		a.seen[g.UUID] = a.seen[g.UUID] || gpu.IsWhole(g.UUID) && !g.Down
	}
	for uuid, whole := range a.seen {
		switch {
		case here[uuid]:
		case whole:
			out.GPUs = append(out.GPUs, gpu.Health{UUID: uuid, Down: true})
		default:
			delete(a.seen, uuid) // a MIG device, which come and go
		}
	}
	slices.SortFunc(out.GPUs, func(x, y gpu.Health) int { return strings.Compare(x.UUID, y.UUID) })
	down := map[string]int{}
	for i := range out.GPUs {
		g := &out.GPUs[i]
		if g.Down {
			down[g.UUID] = a.down[g.UUID] + 1
			g.Down = down[g.UUID] >= downLooks
		}
	}
	const node = "" // the place of the node itself among the devices
	if is.Blind {
		down[node] = a.down[node] + 1
		out.Blind = down[node] >= downLooks
	}
	a.down = down
	return out
}

// tell sets a node's condition if it has another one, and says so in an Event.
func (h *nodeHealth) tell(ctx context.Context, node string, cond corev1.NodeCondition, now time.Time) error {
	h.mu.Lock()
	before, known := h.told[node]
	h.mu.Unlock()
	if !known {
		n := &corev1.Node{}
		if err := h.c.deps.Live.Get(ctx, client.ObjectKey{Name: node}, n); err != nil {
			return client.IgnoreNotFound(err)
		}
		if i := slices.IndexFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool { return c.Type == cond.Type }); i >= 0 {
			before = n.Status.Conditions[i]
		}
		h.note(node, before, n.UID)
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
	err = h.c.deps.Client.Status().Patch(ctx, named, client.RawPatch(types.StrategicMergePatchType, patch))
	if err != nil {
		return client.IgnoreNotFound(err)
	}
	h.mu.Lock()
	uid := h.uids[node]
	h.told[node] = cond
	h.mu.Unlock()
	h.announce(node, uid, &before, &cond)
	return nil
}

func (h *nodeHealth) note(node string, cond corev1.NodeCondition, uid types.UID) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.told[node], h.uids[node] = cond, uid
}

// announce tells of a change in an Event and in the log: of every other fault,
// and that there is none any more.
func (h *nodeHealth) announce(node string, uid types.UID, before, cond *corev1.NodeCondition) {
	kind, reason := corev1.EventTypeWarning, cond.Reason
	switch {
	case cond.Status == corev1.ConditionTrue && before.Status != corev1.ConditionFalse, cond.Status == corev1.ConditionUnknown:
		return
	case cond.Status == corev1.ConditionTrue:
		kind = corev1.EventTypeNormal
	}
	h.c.deps.Log.Warn("health of a node's GPUs has changed", "node", node, "healthy", cond.Status, "reason", reason, "why", cond.Message)
	h.c.deps.Record(Event{
		About: corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: node, UID: uid},
		Kind:  kind, Reason: reason, Action: "Observe", Note: cond.Message,
	})
}

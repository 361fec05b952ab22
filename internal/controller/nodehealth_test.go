// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"errors"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

// ward is a rig with a node, its agent, and what the agent says.
type ward struct {
	*rig
	h    *nodeHealth
	says func() (*gpu.NodeHealth, error)
	now  time.Time
}

func newWard(t *testing.T, conditions ...corev1.NodeCondition) *ward {
	t.Helper()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1", UID: "uid-1"}}
	node.Status.Conditions = append([]corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}, conditions...)
	w := &ward{rig: newRig(t, node)}
	w.now = w.rig.now
	w.pods.pods = append(w.pods.pods, pod("agent", "agent-1", w.now))
	w.deps.Health = func(context.Context, url.URL) (*gpu.NodeHealth, error) { return w.says() }
	w.anew()
	return w
}

// anew is a leader that knows nothing yet.
func (w *ward) anew() {
	w.h = &nodeHealth{c: w.Controller, agents: map[string]*agentHealth{}, told: map[string]corev1.NodeCondition{}, uids: map[string]types.UID{}}
}

// look has the controller look so often.
func (w *ward) look(times int) {
	for range times {
		w.now = w.now.Add(healthEvery)
		w.h.look(w.t.Context(), w.now)
	}
}

func (w *ward) is(what string, status corev1.ConditionStatus, reason, says string) {
	w.t.Helper()
	var n corev1.Node
	if err := w.client.Get(w.t.Context(), client.ObjectKey{Name: "node-1"}, &n); err != nil {
		w.t.Fatal(err)
	}
	if !slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool { return c.Type == corev1.NodeReady }) {
		w.t.Errorf("%s: the node's own conditions are %+v", what, n.Status.Conditions)
	}
	i := slices.IndexFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool { return c.Type == ConditionGPUHealthy })
	switch {
	case i < 0 && reason == "":
	case i < 0 || n.Status.Conditions[i].Status != status || n.Status.Conditions[i].Reason != reason || !strings.Contains(n.Status.Conditions[i].Message, says):
		w.t.Errorf("%s: %+v, want %s, %s, %q", what, n.Status.Conditions, status, reason, says)
	}
}

func (w *ward) toldSoFar(what string, want ...string) {
	w.t.Helper()
	if got := w.rig.told(); !slices.Equal(got, want) {
		w.t.Errorf("%s: events %q, want %q", what, got, want)
	}
}

func gpuDevices(uuids ...string) *gpu.NodeHealth {
	h := &gpu.NodeHealth{}
	for _, u := range uuids {
		h.GPUs = append(h.GPUs, gpu.Health{UUID: u})
	}
	return h
}

func TestNodeHealth(t *testing.T) {
	w := newWard(t)
	well := func() (*gpu.NodeHealth, error) { return gpuDevices("GPU-0", "GPU-1", "MIG-2"), nil }
	w.says = well
	w.look(2)
	w.is("well", corev1.ConditionTrue, reasonHealthy, "no GPU")
	w.toldSoFar("well")

	w.says = func() (*gpu.NodeHealth, error) {
		h, _ := well()
		h.GPUs[1].XIDs = []gpu.XIDCount{{Code: 13, Last: w.now}, {Code: 79, Last: w.rig.now}}
		return h, nil
	}
	w.look(3)
	w.is("off the bus", corev1.ConditionFalse, gpu.FaultXID, "GPU-1: XID 79")
	w.toldSoFar("off the bus", "Warning XIDError")
	if e := w.events[0]; e.About.Kind != "Node" || e.About.Name != "node-1" || e.About.UID != "uid-1" || !strings.Contains(e.Note, "fell off the bus") {
		t.Errorf("event %+v", e)
	}

	w.anew() // another leader has nothing new to tell
	w.look(1)
	w.toldSoFar("another leader", "Warning XIDError")

	w.says = well
	w.look(1)
	w.is("reset, and the agent with it", corev1.ConditionTrue, reasonHealthy, "")
	w.toldSoFar("well again", "Warning XIDError", "Normal GPUsHealthy")
}

// A read that fails once is no lost GPU; one that stays away is, and so is one
// that the library does not list any more. MIG devices come and go.
func TestLostGPUs(t *testing.T) {
	w := newWard(t)
	w.says = func() (*gpu.NodeHealth, error) { return gpuDevices("GPU-0", "GPU-1", "MIG-2"), nil }
	w.look(1)
	w.says = func() (*gpu.NodeHealth, error) {
		h := gpuDevices("GPU-0", "GPU-1")
		h.GPUs[0].Down = true
		return h, nil
	}
	w.look(1)
	w.is("down once", corev1.ConditionTrue, reasonHealthy, "")
	w.look(1)
	w.is("down", corev1.ConditionFalse, gpu.FaultLost, "GPU-0 cannot be read any more")
	w.says = func() (*gpu.NodeHealth, error) { return gpuDevices("GPU-0"), nil }
	w.look(1)
	w.is("back, and the other gone for once", corev1.ConditionTrue, reasonHealthy, "")
	w.look(1)
	w.is("gone", corev1.ConditionFalse, gpu.FaultLost, "GPU-1 cannot be read any more")
	w.says = func() (*gpu.NodeHealth, error) { return &gpu.NodeHealth{Blind: true}, nil }
	w.look(2)
	w.is("no GPU at all", corev1.ConditionFalse, gpu.FaultLost, "no GPU of the node can be read")

	// An agent that was started anew has never seen it.
	w.pods.pods = []*corev1.Pod{pod("agent", "agent-2", w.now)}
	w.says = func() (*gpu.NodeHealth, error) { return gpuDevices("GPU-0"), nil }
	w.look(3)
	w.is("another agent", corev1.ConditionTrue, reasonHealthy, "no GPU")
}

// Nothing is known of a node whose agent is silent for minutes; what was known
// stands until then.
func TestSilentAgent(t *testing.T) {
	w := newWard(t, corev1.NodeCondition{Type: ConditionGPUHealthy, Status: corev1.ConditionFalse, Reason: gpu.FaultRowRemap, Message: "before"})
	w.says = func() (*gpu.NodeHealth, error) { return nil, errors.New("connection refused") }
	w.look(silentLooks - 1)
	w.is("for a while", corev1.ConditionFalse, gpu.FaultRowRemap, "before")
	w.look(3)
	w.is("for long", corev1.ConditionUnknown, reasonSilent, "does not say")
	w.toldSoFar("silent")

	w.deps.Client = nil // a node that is gone is no reason to write
	w.pods.pods[0].Spec.NodeName = "node-2"
	w.look(1)
}

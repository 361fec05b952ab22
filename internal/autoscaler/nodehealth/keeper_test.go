// SPDX-License-Identifier: Apache-2.0

package nodehealth

import (
	"context"
	"errors"
	"log/slog"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

// ward is a Keeper whose API server is controller-runtime's fake, with one node,
// its agent, and what that agent reports.
type ward struct {
	t         *testing.T
	k         *Keeper
	cfg       Config
	agents    []Agent
	report    func() (*gpu.NodeHealth, error)
	began     time.Time
	now       time.Time
	announced []announcement
}

type announcement struct {
	node            corev1.ObjectReference
	eventType, note string
	reason          string
}

func newWard(t *testing.T, conditions ...corev1.NodeCondition) *ward {
	t.Helper()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1", UID: "uid-1"}}
	node.Status.Conditions = append([]corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}, conditions...)
	api := fake.NewClientBuilder().WithObjects(node).WithStatusSubresource(node).Build()
	w := &ward{t: t, began: time.Now().Truncate(time.Second), agents: []Agent{{Name: "agent-1", Node: "node-1"}}}
	w.now = w.began
	w.cfg = Config{
		Agents: func() []Agent { return w.agents },
		Ask:    func(context.Context, url.URL) (*gpu.NodeHealth, error) { return w.report() },
		Live:   api, Client: api, Log: slog.New(slog.DiscardHandler),
		Record: func(node *corev1.ObjectReference, eventType, reason, note string) {
			w.announced = append(w.announced, announcement{node: *node, eventType: eventType, reason: reason, note: note})
		},
	}
	w.newLeader()
	return w
}

// newLeader replaces the Keeper by a new one without state.
func (w *ward) newLeader() { w.k = New(w.cfg) }

// check has the Keeper check so many times.
func (w *ward) check(times int) {
	for range times {
		w.now = w.now.Add(checkEvery)
		w.k.check(w.t.Context(), w.now)
	}
}

func (w *ward) is(what string, status corev1.ConditionStatus, reason, says string) {
	w.t.Helper()
	var n corev1.Node
	if err := w.cfg.Live.Get(w.t.Context(), client.ObjectKey{Name: "node-1"}, &n); err != nil {
		w.t.Fatal(err)
	}
	if !slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool { return c.Type == corev1.NodeReady }) {
		w.t.Errorf("%s: the node's own conditions are %+v", what, n.Status.Conditions)
	}
	i := slices.IndexFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool { return c.Type == Condition })
	switch {
	case i < 0 && reason == "":
	case i < 0 || n.Status.Conditions[i].Status != status || n.Status.Conditions[i].Reason != reason || !strings.Contains(n.Status.Conditions[i].Message, says):
		w.t.Errorf("%s: %+v, want %s, %s, %q", what, n.Status.Conditions, status, reason, says)
	}
}

func (w *ward) recorded(what string, want ...string) {
	w.t.Helper()
	var got []string
	for _, a := range w.announced {
		got = append(got, a.eventType+" "+a.reason)
	}
	if !slices.Equal(got, want) {
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
	w.report = well
	w.check(2)
	w.is("well", corev1.ConditionTrue, reasonHealthy, "no GPU")
	w.recorded("well")

	w.report = func() (*gpu.NodeHealth, error) {
		h, _ := well()
		h.GPUs[1].XIDs = []gpu.XIDCount{{Code: 13, Last: w.now}, {Code: 79, Last: w.began}}
		return h, nil
	}
	w.check(3)
	w.is("off the bus", corev1.ConditionFalse, gpu.FaultXID, "GPU-1: XID 79")
	w.recorded("off the bus", "Warning XIDError")
	if e := w.announced[0]; e.node.Kind != "Node" || e.node.Name != "node-1" || e.node.UID != "uid-1" || !strings.Contains(e.note, "fell off the bus") {
		t.Errorf("event %+v", e)
	}

	w.newLeader() // another leader has nothing new to tell
	w.check(1)
	w.recorded("another leader", "Warning XIDError")

	w.report = well
	w.check(1)
	w.is("reset, and the agent with it", corev1.ConditionTrue, reasonHealthy, "")
	w.recorded("well again", "Warning XIDError", "Normal GPUsHealthy")
}

// A read that fails once is no lost GPU; one that stays away is, and so is one
// that the library does not list any more. MIG devices come and go.
func TestLostGPUs(t *testing.T) {
	w := newWard(t)
	w.report = func() (*gpu.NodeHealth, error) { return gpuDevices("GPU-0", "GPU-1", "MIG-2"), nil }
	w.check(1)
	w.report = func() (*gpu.NodeHealth, error) {
		h := gpuDevices("GPU-0", "GPU-1")
		h.GPUs[0].Down = true
		return h, nil
	}
	w.check(1)
	w.is("down once", corev1.ConditionTrue, reasonHealthy, "")
	w.check(1)
	w.is("down", corev1.ConditionFalse, gpu.FaultLost, "GPU-0 cannot be read any more")
	w.report = func() (*gpu.NodeHealth, error) { return gpuDevices("GPU-0"), nil }
	w.check(1)
	w.is("back, and the other gone for once", corev1.ConditionTrue, reasonHealthy, "")
	w.check(1)
	w.is("gone", corev1.ConditionFalse, gpu.FaultLost, "GPU-1 cannot be read any more")
	w.report = func() (*gpu.NodeHealth, error) { return &gpu.NodeHealth{BackendDown: true}, nil }
	w.check(2)
	w.is("no GPU at all", corev1.ConditionFalse, gpu.FaultLost, "no GPU of the node can be read")

	// A GPU that is named for its errors only, and whose instances are listed, is not lost without them.
	w.agents = []Agent{{Name: "agent-mig", Node: "node-1"}}
	w.report = func() (*gpu.NodeHealth, error) {
		h := gpuDevices("MIG-2", "GPU-3")
		h.GPUs[1].Unlisted = true
		return h, nil
	}
	w.check(1)
	w.report = func() (*gpu.NodeHealth, error) { return gpuDevices("MIG-2"), nil }
	w.check(3)
	w.is("instances of a GPU", corev1.ConditionTrue, reasonHealthy, "")

	// An agent that was started anew has never seen it.
	w.agents = []Agent{{Name: "agent-2", Node: "node-1"}}
	w.report = func() (*gpu.NodeHealth, error) { return gpuDevices("GPU-0"), nil }
	w.check(3)
	w.is("another agent", corev1.ConditionTrue, reasonHealthy, "no GPU")
}

// A GPU that no agent ever listed is missing where the bus or the device plugin has it. A
// single check may fall between two reads.
func TestGPUsThatWereNeverListed(t *testing.T) {
	w := newWard(t)
	report := func(listed, bound, allocatable int) {
		w.report = func() (*gpu.NodeHealth, error) {
			h := gpuDevices("GPU-0")
			h.Counts = &gpu.GPUCounts{Listed: listed, Bound: bound, Allocatable: allocatable}
			return h, nil
		}
	}
	report(1, 1, 1)
	w.check(3)
	w.is("all", corev1.ConditionTrue, reasonHealthy, "")
	report(1, 2, -1)
	w.check(1)
	w.is("once", corev1.ConditionTrue, reasonHealthy, "")
	w.check(1)
	w.is("one never listed", corev1.ConditionFalse, gpu.FaultMissing, "the GPU library lists 1 GPUs, the PCI bus has 2 with NVIDIA's driver")
	w.recorded("one never listed", "Warning GPUMissing")
	report(2, 2, 2)
	w.check(1)
	w.is("it came", corev1.ConditionTrue, reasonHealthy, "")
	report(2, 2, 3)
	w.check(2)
	w.is("the device plugin has one more", corev1.ConditionFalse, gpu.FaultMissing, "the device plugin offers 3")
	report(-1, -1, -1)
	w.check(1)
	w.is("unknown", corev1.ConditionTrue, reasonHealthy, "")
}

// A node whose GPUs were released on request has no fault, and no health.
func TestReleasedGPUs(t *testing.T) {
	w := newWard(t)
	w.report = func() (*gpu.NodeHealth, error) { return gpuDevices("GPU-0", "GPU-1"), nil }
	w.check(1)
	w.report = func() (*gpu.NodeHealth, error) { return &gpu.NodeHealth{Released: true}, nil }
	w.check(4)
	w.is("released", corev1.ConditionUnknown, reasonReleased, "was asked to release")
	w.report = func() (*gpu.NodeHealth, error) { return gpuDevices("GPU-0", "GPU-1"), nil }
	w.check(1)
	w.is("read again", corev1.ConditionTrue, reasonHealthy, "")
	w.recorded("a release")
}

// Nothing is known of a node whose agent is silent for minutes; what was known
// stands until then.
func TestSilentAgent(t *testing.T) {
	w := newWard(t, corev1.NodeCondition{Type: Condition, Status: corev1.ConditionFalse, Reason: gpu.FaultRowRemap, Message: "before"})
	w.report = func() (*gpu.NodeHealth, error) { return nil, errors.New("connection refused") }
	w.check(silentChecks - 1)
	w.is("for a while", corev1.ConditionFalse, gpu.FaultRowRemap, "before")
	w.check(3)
	w.is("for long", corev1.ConditionUnknown, reasonSilent, "does not answer")
	w.recorded("silent")

	w.k.cfg.Client = nil // a write would panic
	w.agents[0].Node = "node-2"
	w.check(1)
}

// A node that was removed and joined again under its name gets the condition, too.
func TestNodeOfTheSameName(t *testing.T) {
	w := newWard(t)
	w.report = func() (*gpu.NodeHealth, error) { return gpuDevices("GPU-0"), nil }
	w.check(1)
	w.is("the first node", corev1.ConditionTrue, reasonHealthy, "")
	ctx := t.Context()
	if err := w.cfg.Client.Delete(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1"}}); err != nil {
		t.Fatal(err)
	}
	w.check(1)
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1", UID: "uid-2"}}
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	if err := w.cfg.Client.Create(ctx, node); err != nil {
		t.Fatal(err)
	}
	if err := w.cfg.Client.Status().Update(ctx, node); err != nil {
		t.Fatal(err)
	}
	w.agents = []Agent{{Name: "agent-2", Node: "node-1"}}
	w.check(1)
	w.is("the second node", corev1.ConditionTrue, reasonHealthy, "")
	w.agents = nil
	w.check(1)
	if n := len(w.k.agents) + len(w.k.set) + len(w.k.uids); n != 0 {
		t.Errorf("%d entries are kept of a node that is gone", n)
	}
}

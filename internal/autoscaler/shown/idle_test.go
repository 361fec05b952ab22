// SPDX-License-Identifier: Apache-2.0

package shown

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/window/series"
	"github.com/gpupilot/gpupilot/internal/window/trust"
	"github.com/gpupilot/gpupilot/test/podtest"
)

// idleRig is a node whose exporter is read every second.
type idleRig struct {
	t     *testing.T
	store *series.Store
	pods  podtest.List
	start time.Time
	now   int // s from start
}

func newIdleRig(t *testing.T) *idleRig {
	return &idleRig{t: t, store: series.New(series.Config{}), start: time.Unix(1_800_000_000, 0)}
}

func (r *idleRig) at(s int) time.Time { return r.start.Add(time.Duration(s) * time.Second) }

// pod adds a pod that got its place at a second; negative: before start.
func (r *idleRig) pod(name string, placed int) *corev1.Pod {
	p := podtest.Pod("app", name, r.at(placed-5), podtest.Condition(corev1.PodScheduled, corev1.ConditionTrue, "", r.at(placed)))
	r.pods.Pods = append(r.pods.Pods, p)
	return p
}

// run reads the exporter until a second. percent below 0: no value.
func (r *idleRig) run(until int, device string, percent float64, pods ...*corev1.Pod) {
	r.t.Helper()
	target := r.store.Target("agent", series.TargetLabels{Node: "node-1"})
	owners := series.DeviceOwners{Device: device}
	for _, p := range pods {
		owners.Owners = append(owners.Owners, gpu.Owner{Namespace: p.Namespace, Pod: p.Name})
	}
	for ; r.now < until; r.now++ {
		ref, ok := target.Ref(series.Key{Device: device, Field: gpu.GPUUtil})
		if !ok {
			r.t.Fatal("no room")
		}
		var b series.Batch
		if percent >= 0 {
			b.Add(ref, percent)
		}
		target.SetOwners(r.at(r.now), []series.DeviceOwners{owners})
		if _, err := target.Append(r.at(r.now), &b); err != nil {
			r.t.Fatal(err)
		}
	}
}

// idle fails unless the GPU is idle-held since a second; below 0: it is not idle-held. Its own page says the same.
func (r *idleRig) idle(device string, want int, atLeast bool) {
	r.t.Helper()
	now := r.at(r.now)
	list := Nodes(r.store, trust.NewDevices(nil), &r.pods, now, 5*time.Second)
	g := list[0].GPUs[0]
	since := time.Time{}
	if want >= 0 {
		since = r.at(want)
	}
	if g.UUID != device || !g.IdleSince.Equal(since) || g.IdleAtLeast != atLeast {
		r.t.Errorf("after %d s, %s is idle since %v s, at least %v; want %d s, %v", r.now, g.UUID, g.IdleSince.Sub(r.start).Seconds(), g.IdleAtLeast, want, atLeast)
	}
	d, ok := Device(r.store, "node-1", device, &r.pods, now, 5*time.Second)
	if !ok || !d.GPU.IdleSince.Equal(g.IdleSince) || d.GPU.IdleAtLeast != g.IdleAtLeast {
		r.t.Errorf("its page says %v, %v; the fleet %v, %v", d.GPU.IdleSince, d.GPU.IdleAtLeast, g.IdleSince, g.IdleAtLeast)
	}
}

func TestIdleSince(t *testing.T) {
	r := newIdleRig(t)
	a := r.pod("a", -3600)
	r.run(10, "GPU-1", 0, a)
	r.idle("GPU-1", 0, true) // since the controller's start, at least
	r.run(20, "GPU-1", 30, a)
	r.idle("GPU-1", -1, false)
	r.run(900, "GPU-1", 0, a) // longer than the window
	r.idle("GPU-1", 19, false)

	// The next pod holds it idle from its first second on, whatever was before.
	b := r.pod("b", 900)
	r.run(910, "GPU-1", 0, b)
	r.idle("GPU-1", 900, false)

	// A second one joins: the first one may have left it idle for longer.
	c := r.pod("c", 990)
	r.run(990, "GPU-1", 0, b)
	r.run(1000, "GPU-1", 0, b, c)
	r.idle("GPU-1", 990, true)
	r.run(1001, "GPU-1", 1, b, c)
	r.run(1010, "GPU-1", 0, b, c)
	r.idle("GPU-1", 1000, false)

	// It is free, and then a pod gets it.
	r.run(1100, "GPU-1", 0)
	r.idle("GPU-1", -1, false)
	d := r.pod("d", 1098)
	r.run(1110, "GPU-1", 0, d)
	r.idle("GPU-1", 1100, false)
}

// Missing is not idle: after a gap nothing is known of the time before. A gap that the values' age allows is none.
func TestIdleSinceAfterAGap(t *testing.T) {
	r := newIdleRig(t)
	a := r.pod("a", 0)
	r.run(10, "GPU-1/gi7", 50, a)
	r.run(20, "GPU-1/gi7", 0, a)
	r.run(24, "GPU-1/gi7", -1, a)
	r.run(30, "GPU-1/gi7", 0, a)
	r.idle("GPU-1/gi7", 9, false)
	r.run(36, "GPU-1/gi7", -1, a)
	r.idle("GPU-1/gi7", -1, false) // its state is unknown
	r.run(40, "GPU-1/gi7", 0, a)
	r.idle("GPU-1/gi7", 36, true)
	r.run(41, "GPU-1/gi7", 50, a)
	r.run(60, "GPU-1/gi7", -1, a)
	r.run(61, "GPU-1/gi7", 0, a)
	r.idle("GPU-1/gi7", 60, true)
	r.now += 60 // the exporter does not answer
	r.run(r.now+1, "GPU-1/gi7", 0, a)
	r.idle("GPU-1/gi7", 121, true)
}

// An exporter that lists no owners for a moment, as after its restart, hides since when a pod has held a GPU.
func TestIdleSinceAfterALostOwner(t *testing.T) {
	r := newIdleRig(t)
	a := r.pod("a", -7200)
	r.run(10, "GPU-1", 5, a)
	r.run(100, "GPU-1", 0, a)
	r.run(101, "GPU-1", 0)
	r.run(110, "GPU-1", 0, a)
	r.idle("GPU-1", 101, true)

	unknown := podtest.Pod("app", "unknown", r.at(0)) // not in the API server's list
	r.run(120, "GPU-1", 0, unknown)
	r.idle("GPU-1", 110, true)
}

// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

func TestTicksKeepTheNodesPhase(t *testing.T) {
	bubble(t, Config{Node: "n7"}, newReader(gpus(2)...), nil, func(n *node) {
		if len(n.out.snaps) != 1 {
			t.Fatalf("%d snapshots at the start, want 1", len(n.out.snaps))
		}
		n.pass(5 * time.Second)
		phase := Phase("n7", time.Second)
		for i, s := range n.out.snaps[1:] {
			if got := time.Duration(s.Time.UnixNano()) % time.Second; got != phase {
				t.Errorf("tick %d is %v after the second, want %v", i, got, phase)
			}
			if util(s, "GPU-1") != float64(i+2) || s.Devices[1].Collected != s.Time {
				t.Errorf("tick %d shows read %v of %v", i, util(s, "GPU-1"), s.Devices[1].Collected)
			}
		}
		if got := len(n.out.snaps); got != 6 {
			t.Errorf("%d snapshots in 5 s, want 6", got)
		}
		if s := n.out.last(); s.Err != nil || s.Backend != "fake" || s.Interval != time.Second || len(s.Devices[0].XIDs) != 1 {
			t.Errorf("snapshot %+v", s)
		}
	})
}

// Until the first enumeration there is no page: whoever waits for a 200 has the GPUs. An enumeration that fails is shown
// as one, and one that hangs after a while. None of them is a reason for a restart.
func TestNothingIsShownBeforeTheFirstEnumeration(t *testing.T) {
	answers := func(n *node, ready int) {
		t.Helper()
		h := n.Handler()
		for path, want := range map[string]int{"/readyz": ready, "/api/v1/gpus": ready, "/api/v1/status": ready, "/healthz": 200, "/health": 200} {
			if code, body := fetch(t, h, path); code != want {
				t.Errorf("%s: %d %s, want %d", path, code, body, want)
			}
		}
	}
	f := func(takes time.Duration, found []gpu.Device, err error, shown time.Duration, devices int, wantErr error) {
		t.Helper()
		r := newReader(found...)
		r.err, r.starts = err, takes
		bubble(t, Config{}, r, nil, func(n *node) {
			for passed := time.Duration(0); passed < shown; passed += 500 * time.Millisecond {
				answers(n, http.StatusServiceUnavailable)
				if passed == 2*time.Second {
					n.SetInterval(2 * time.Second) // does not end the wait
				}
				n.pass(500 * time.Millisecond)
			}
			answers(n, http.StatusOK)
			if len(n.out.snaps) != 1 || !errors.Is(n.out.last().Err, wantErr) || len(n.out.last().Devices) != devices {
				t.Fatalf("after %v: %d pages, %+v", shown, len(n.out.snaps), n.out.snaps)
			}
			for _, d := range n.out.last().Devices {
				if util(n.out.last(), d.UUID) != 1 {
					t.Errorf("the first page lacks values of %s", d.UUID)
				}
			}
			n.pass(takes + 5*time.Second)
			if s := n.out.last(); !errors.Is(s.Err, err) || len(s.Devices) != len(found) {
				t.Errorf("later %d GPUs, %v", len(s.Devices), s.Err)
			}
		})
	}
	f(0, gpus(2), nil, 0, 2, nil)
	f(4*time.Second, gpus(2), nil, 4*time.Second, 2, nil)
	f(4*time.Second, nil, nil, 4*time.Second, 0, nil) // a node without GPUs
	f(3*time.Second, nil, gpu.ErrNoDriver, 3*time.Second, 0, gpu.ErrNoDriver)
	f(time.Minute, gpus(2), nil, firstEnumeration, 0, errStarting)
}

// A GPU that hangs at the start delays the first page by firstPatience, once.
func TestAHungGPUDelaysTheFirstPageOnce(t *testing.T) {
	r := newReader(gpus(3)...)
	r.takes["GPU-1"] = time.Minute
	bubble(t, Config{}, r, nil, func(n *node) {
		n.pass(firstPatience - time.Millisecond)
		if len(n.out.snaps) != 0 {
			t.Errorf("a page without GPU-1 after less than %v", firstPatience)
		}
		n.pass(3 * time.Second)
		first := n.out.snaps[0]
		if util(first, "GPU-0") != 1 || util(first, "GPU-1") != -1 || util(first, "GPU-2") != 1 {
			t.Errorf("first page: %v %v %v", util(first, "GPU-0"), util(first, "GPU-1"), util(first, "GPU-2"))
		}
		if len(n.out.snaps) < 3 {
			t.Errorf("%d pages after %v", len(n.out.snaps), firstPatience+3*time.Second)
		}
		r.set(func() { clear(r.takes) })
		n.pass(time.Minute)
	})
}

// A new interval counts at once, in the middle of a long one, too.
func TestIntervalChangesWithoutARestart(t *testing.T) {
	bubble(t, Config{Node: "n7", Interval: time.Minute}, newReader(gpus(2)...), nil, func(n *node) {
		n.pass(time.Second)
		before := len(n.out.snaps)
		n.SetInterval(time.Second)
		n.SetInterval(time.Second)
		n.pass(5 * time.Second)
		if got := len(n.out.snaps) - before; got < 5 || got > 7 {
			t.Errorf("%d snapshots in 5 s at 1 s, want one at once and 5 more", got)
		}
		if s := n.out.last(); s.Interval != time.Second || time.Duration(s.Time.UnixNano())%time.Second != Phase("n7", time.Second) {
			t.Errorf("the last snapshot is of %v, interval %v", s.Time, s.Interval)
		}
		if err := n.alive(time.Now(), time.Now()); err != nil {
			t.Error(err)
		}
		n.SetInterval(30 * time.Second)
		before = len(n.out.snaps)
		n.pass(time.Minute)
		if got := len(n.out.snaps) - before; got < 2 || got > 4 {
			t.Errorf("%d snapshots in a minute at 30 s", got)
		}
	})
}

func TestPhase(t *testing.T) {
	seen := map[time.Duration]bool{}
	for _, node := range []string{"a", "b", "c", "node-1", "node-2"} {
		p := Phase(node, time.Second)
		if p < 0 || p >= time.Second || p != Phase(node, time.Second) || seen[p] {
			t.Errorf("phase of %s: %v", node, p)
		}
		seen[p] = true
	}
	f := func(now, interval, phase, want time.Duration) {
		t.Helper()
		if got := untilTick(time.Unix(1_000_000, 0).Add(now), interval, phase); got != want {
			t.Errorf("at %v, every %v with phase %v: next in %v, want %v", now, interval, phase, got, want)
		}
	}
	f(0, time.Second, 0, time.Second)
	f(0, time.Second, 300*time.Millisecond, 300*time.Millisecond)
	f(400*time.Millisecond, time.Second, 300*time.Millisecond, 900*time.Millisecond)
	f(300*time.Millisecond, time.Second, 300*time.Millisecond, time.Second)
	f(299*time.Millisecond, time.Second, 300*time.Millisecond, 1001*time.Millisecond)
}

func TestHungDeviceHidesNoOther(t *testing.T) {
	r := newReader(gpus(3)...)
	bubble(t, Config{}, r, nil, func(n *node) {
		n.pass(3 * time.Second)
		hang := make(chan struct{})
		r.set(func() { r.hangs["GPU-1"] = hang })
		n.pass(10 * time.Second)
		before := len(n.out.snaps)
		since := device(t, n.out.last(), "GPU-1").Collected
		for i := 1; i < before; i++ {
			if d := n.out.snaps[i].Time.Sub(n.out.snaps[i-1].Time); i > 1 && d != time.Second {
				t.Errorf("tick %d came after %v", i, d)
			}
			if i > 5 && n.out.times[i] != n.out.snaps[i].Time {
				t.Errorf("tick %d was published %v late", i, n.out.times[i].Sub(n.out.snaps[i].Time))
			}
		}
		s := n.out.last()
		hung := device(t, s, "GPU-1")
		if hung.Fresh(n.out.times[before-1], gpu.MaxAge(time.Second)) || hung.Err == nil {
			t.Errorf("after 10 s the hung device still counts: %v, %v", hung.Collected, hung.Err)
		}
		if util(s, "GPU-1") != 4 && util(s, "GPU-1") != 3 {
			t.Errorf("its last value %v was changed", util(s, "GPU-1"))
		}
		for _, id := range []string{"GPU-0", "GPU-2"} {
			if d := device(t, s, id); d.Collected != s.Time || d.Err != nil {
				t.Errorf("%s: collected %v, %v", id, d.Collected, d.Err)
			}
		}
		if got := strings.Count(n.logs, "device does not answer"); got != 1 {
			t.Errorf("logged %d times", got)
		}
		r.set(func() { delete(r.hangs, "GPU-1"); close(hang) })
		n.pass(3 * time.Second)
		s = n.out.last()
		if d := device(t, s, "GPU-1"); d.Err != nil || d.Collected != s.Time || d.Collected.Equal(since) {
			t.Errorf("the device came back, but: %v, %v", d.Collected, d.Err)
		}
	})
}

func TestSlowDeviceIsWaitedForOnce(t *testing.T) {
	r := newReader(gpus(2)...)
	r.takes["GPU-0"] = 600 * time.Millisecond
	bubble(t, Config{}, r, nil, func(n *node) {
		n.pass(10 * time.Second)
		for i, s := range n.out.snaps {
			late := n.out.times[i].Sub(s.Time)
			if i > 1 && late != 0 {
				t.Errorf("tick %d was published %v late", i, late)
			}
		}
		if d := device(t, n.out.last(), "GPU-0"); d.Collected.Before(n.out.last().Time.Add(-time.Second)) || d.Took != 600*time.Millisecond {
			t.Errorf("the slow device's values are of %v, the tick of %v", d.Collected, n.out.last().Time)
		}
	})
}

func TestLostDevice(t *testing.T) {
	r := newReader(gpus(2)...)
	bubble(t, Config{}, r, nil, func(n *node) {
		n.pass(2 * time.Second)
		r.set(func() { r.fails["GPU-0"] = gpu.ErrLost; r.enumerations = nil })
		n.pass(3 * time.Second)
		s := n.out.last()
		d := device(t, s, "GPU-0")
		if !errors.Is(d.Err, gpu.ErrLost) || d.Failures != 3 || util(s, "GPU-0") != 3 {
			t.Errorf("lost: %v after %d failures with %v", d.Err, d.Failures, util(s, "GPU-0"))
		}
		if got := n.out.stats[len(n.out.stats)-1].Errors; got != 3 {
			t.Errorf("%d errors, want 3", got)
		}
		if util(s, "GPU-1") != 6 {
			t.Errorf("the other is at read %v, want 6", util(s, "GPU-1"))
		}
		r.set(func() {
			if again := len(r.enumerations); again != 1 {
				t.Errorf("%d enumerations within 3 s of the loss, want 1", again)
			}
		})
		// It leaves the bus: listed as down while the enumeration fails for it.
		r.set(func() { r.devices = gpus(2)[1:]; r.err = errors.New("GPU 0: lost") })
		n.pass(time.Hour)
		if d := device(t, n.out.last(), "GPU-0"); d.Err == nil || len(d.XIDs) != 1 {
			t.Errorf("a GPU that is gone counts as read, or its errors are forgotten: %+v", d)
		}
		// It is taken away: listed as down for ten minutes, then forgotten.
		r.set(func() { r.err = nil })
		n.pass(9 * time.Minute)
		if d := device(t, n.out.last(), "GPU-0"); d.Err == nil {
			t.Error("a GPU that is gone counts as read")
		}
		n.pass(2 * time.Minute)
		if got := len(n.out.last().Devices); got != 1 {
			t.Errorf("%d devices 11 min later, want 1", got)
		}
		r.set(func() { r.devices, r.err = gpus(2), nil; delete(r.fails, "GPU-0") })
		n.pass(12 * time.Second)
		if s := n.out.last(); len(s.Devices) != 2 || s.Devices[0].UUID != "GPU-0" || s.Devices[0].Err != nil {
			t.Errorf("it is back, but not first of two: %+v", s.Devices)
		}
	})
}

// The library is asked to judge a GPU that it has lost; its verdicts and the last ones
// stay. An instance has its GPU's errors too.
func TestWhatIsKnownOfALostGPUStays(t *testing.T) {
	instance := gpu.Device{Index: 0, UUID: "MIG-1", MIG: &gpu.MIG{ParentUUID: "GPU-0", GPUInstance: 1}}
	r := newReader(append(gpus(2)[1:], instance)...)
	r.judge.Store(true)
	bubble(t, Config{}, r, nil, func(n *node) {
		n.pass(time.Second)
		r.set(func() { r.fails["GPU-1"], r.judged["GPU-1"] = gpu.ErrLost, 5 })
		n.pass(3 * time.Second)
		d := device(t, n.out.last(), "GPU-1")
		if d.Verdicts == nil || d.Verdicts[gpu.WatchMem].Health != gpu.HealthWarn || r.judged["GPU-1"] < 8 {
			t.Errorf("verdicts %v, asked for %d times", d.Verdicts, r.judged["GPU-1"])
		}
		r.set(func() { r.fails["GPU-1"] = gpu.ErrNoDriver; r.judged["GPU-1"] = 0 })
		n.pass(3 * time.Second)
		if d := device(t, n.out.last(), "GPU-1"); d.Verdicts == nil || r.judged["GPU-1"] != 0 {
			t.Errorf("without a driver: verdicts %v, asked for %d times", d.Verdicts, r.judged["GPU-1"])
		}
		if d := device(t, n.out.last(), "MIG-1"); len(d.XIDs) != 0 || len(d.GPUXIDs) != 1 || d.GPUXIDs[0].Code != 79 {
			t.Errorf("of the instance %v, of its GPU %v", d.XIDs, d.GPUXIDs)
		}
	})
}

func TestDriverComesLate(t *testing.T) {
	r := newReader()
	r.err = gpu.ErrNoDriver
	bubble(t, Config{}, r, nil, func(n *node) {
		n.pass(100 * time.Second)
		s := n.out.last()
		if !errors.Is(s.Err, gpu.ErrNoDriver) || len(s.Devices) != 0 {
			t.Errorf("no driver, yet %v and %d devices", s.Err, len(s.Devices))
		}
		// 0, 1, 3, 7, 15, 31, 61, 91 s, each at the tick that follows.
		r.set(func() {
			if got := len(r.enumerations); got < 6 || got > 8 {
				t.Errorf("%d attempts in 100 s: %v", got, r.enumerations)
			}
		})
		if got := strings.Count(n.logs, "no GPU can be read"); got != 1 {
			t.Errorf("logged %d times:\n%s", got, n.logs)
		}
		r.set(func() { r.devices, r.err = gpus(1), nil })
		n.pass(maxBackoff + 2*time.Second)
		if s := n.out.last(); s.Err != nil || util(s, "GPU-0") < 1 {
			t.Errorf("the driver is there, but %v and value %v", s.Err, util(s, "GPU-0"))
		}
		// It goes again: what was there is down, not forgotten.
		r.set(func() { r.devices, r.err = nil, gpu.ErrNoDriver; r.fails["GPU-0"] = gpu.ErrNoDriver })
		n.pass(3 * time.Second)
		if s := n.out.last(); !errors.Is(s.Err, gpu.ErrNoDriver) || len(s.Devices) != 1 || s.Devices[0].Err == nil {
			t.Errorf("the driver is gone, but %v, %+v", s.Err, s.Devices)
		}
	})
}

func TestMIGInstancesComeAndGo(t *testing.T) {
	whole := gpus(2)
	mig := whole[0]
	mig.UUID, mig.MIG = "MIG-1", &gpu.MIG{ParentUUID: "GPU-0", GPUInstance: 3, ComputeInstance: -1, Profile: "1g.18gb"}
	r := newReader(whole...)
	bubble(t, Config{}, r, nil, func(n *node) {
		names := func() (out []string) {
			for _, d := range n.out.last().Devices {
				out = append(out, d.UUID)
			}
			return out
		}
		n.pass(time.Second)
		r.set(func() { r.devices = []gpu.Device{whole[0], mig, whole[1]} })
		n.pass(12 * time.Second)
		if diff := cmp.Diff([]string{"MIG-1", "GPU-1"}, names()); diff != "" {
			t.Error(diff)
		}
		r.set(func() { r.devices = whole })
		n.pass(12 * time.Second)
		if diff := cmp.Diff([]string{"GPU-0", "GPU-1"}, names()); diff != "" {
			t.Error(diff)
		}
	})
}

// kubelet is who answers who holds what.
type kubelet struct {
	mu     sync.Mutex
	allocs []gpu.Allocation
	err    error
	takes  time.Duration
	asked  int
}

func (k *kubelet) Owners(ctx context.Context) ([]gpu.Allocation, error) {
	k.mu.Lock()
	k.asked++
	allocs, err, takes := slices.Clone(k.allocs), k.err, k.takes
	k.mu.Unlock()
	select {
	case <-time.After(takes):
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	return allocs, err
}

// say sets what the next answers are.
func (k *kubelet) say(err error, takes time.Duration, allocs ...gpu.Allocation) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.allocs, k.err, k.takes = allocs, err, takes
}

func (k *kubelet) count() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.asked
}

func holds(id, pod string) gpu.Allocation {
	return gpu.Allocation{Resource: "nvidia.com/gpu", DeviceID: id, Owner: gpu.Owner{Namespace: "n", Pod: pod, Container: "c"}}
}

func owner(t *testing.T, s *gpu.Snapshot, uuid string) string {
	t.Helper()
	d := device(t, s, uuid)
	if len(d.Owners) == 0 {
		return ""
	}
	return d.Owners[0].Pod
}

func TestOwners(t *testing.T) {
	k := &kubelet{allocs: []gpu.Allocation{holds("GPU-0", "a"), holds("GPU-9", "z")}}
	bubble(t, Config{}, newReader(gpus(2)...), k.Owners, func(n *node) {
		f := func(what, owner0, owner1 string, up bool) {
			t.Helper()
			s := n.out.last()
			if a, b := owner(t, s, "GPU-0"), owner(t, s, "GPU-1"); a != owner0 || b != owner1 || (s.OwnersErr == nil) != up {
				t.Errorf("%s: owners %q and %q, error %v", what, a, b, s.OwnersErr)
			}
		}
		f("at the first tick", "a", "", true)
		if u := n.out.last().Unmatched; len(u) != 1 || u[0].DeviceID != "GPU-9" {
			t.Errorf("unmatched: %v", u)
		}
		k.say(nil, 0, holds("GPU-0", "a"), holds("GPU-1", "b"))
		n.pass(time.Second)
		f("a pod came", "a", "b", true)
		k.say(nil, 0, holds("GPU-0", "a"))
		n.pass(time.Second)
		f("a pod went", "a", "", true)

		k.say(errors.New("connection refused"), 0)
		n.pass(time.Minute)
		f("the kubelet is away", "a", "", false)
		if s := n.out.last(); s.Time.Sub(s.OwnersTime) < 59*time.Second {
			t.Errorf("last success %v", s.OwnersTime)
		}
		k.say(nil, 0)
		n.pass(5 * time.Second)
		f("it is back and knows nothing yet", "a", "", true)
		k.say(nil, 0, holds("GPU-1", "c"))
		n.pass(2 * time.Second)
		f("it knows a little", "a", "c", true)
		n.pass(5 * time.Second)
		f("it has settled", "", "c", true)

		k.say(nil, 600*time.Millisecond, holds("GPU-0", "d"))
		n.pass(10 * time.Second)
		f("it is slow", "d", "", true)
		last := len(n.out.snaps) - 1
		if late := n.out.times[last].Sub(n.out.last().Time); late != 0 {
			t.Errorf("a slow kubelet makes ticks %v late", late)
		}
		k.say(nil, time.Hour)
		asked := k.count()
		n.pass(11 * time.Second)
		f("it hangs", "d", "", false)
		if k.count() > asked+3 {
			t.Errorf("asked %d times while it hangs", k.count()-asked)
		}
		if strings.Count(n.logs, "connection refused") != 1 {
			t.Errorf("log:\n%s", n.logs)
		}
	})
}

func TestFastTicksAskTheKubeletSlowly(t *testing.T) {
	k := &kubelet{}
	bubble(t, Config{Interval: 100 * time.Millisecond}, newReader(gpus(1)...), k.Owners, func(n *node) {
		n.pass(10 * time.Second)
		if k.count() > 12 || len(n.out.snaps) < 100 {
			t.Errorf("asked %d times in 10 s and %d ticks", k.count(), len(n.out.snaps))
		}
	})
}

// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

// counting is a reader that knows how many reads there were at one time.
type counting struct {
	*reader
	mu            sync.Mutex
	running, most int
}

func (c *counting) Read(uuid string, want gpu.FieldSet, v *gpu.Values) error {
	c.add(1)
	defer c.add(-1)
	return c.reader.Read(uuid, want, v)
}

func (c *counting) add(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.running += n
	c.most = max(c.most, c.running)
}

// peak is the most since it was asked for last.
func (c *counting) peak() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	most := c.most
	c.most = c.running
	return most
}

// Devices that answer quickly are read one after the other, slow ones at the
// same time, and each is in the snapshot of its tick.
func TestSweeps(t *testing.T) {
	f := func(what string, took time.Duration, peak int, within time.Duration) {
		t.Helper()
		r := newReader(gpus(8)...)
		for _, d := range r.devices {
			r.takes[d.UUID] = took
		}
		c := &counting{reader: r}
		bubbleOver(t, Config{}, r, c, nil, func(n *node) {
			n.pass(5 * time.Second)
			c.peak()
			n.pass(10 * time.Second)
			if got := c.peak(); got != peak {
				t.Errorf("%s: %d reads at one time, want %d", what, got, peak)
			}
			for i, s := range n.out.snaps[5:] {
				if took := n.out.stats[5+i].Duration; took > within {
					t.Errorf("%s: a tick took %v", what, took)
				}
				for j := range s.Devices {
					if d := &s.Devices[j]; !d.Collected.Equal(s.Time) {
						t.Errorf("%s: %s is of %v before its tick", what, d.UUID, s.Time.Sub(d.Collected))
					}
				}
			}
		})
	}
	f("at once", 0, 1, 0)
	f("quick", 2*time.Millisecond, 1, 16*time.Millisecond) // a 50th of the interval is 20 ms
	f("two sweeps", 4*time.Millisecond, 2, 20*time.Millisecond)
	f("slow", 30*time.Millisecond, 8, 30*time.Millisecond)
}

// A device that hangs in a sweep costs the others a quarter of the patience, in
// the tick in which it begins to.
func TestAHangInASweep(t *testing.T) {
	r := newReader(gpus(8)...)
	bubble(t, Config{}, r, nil, func(n *node) {
		hang := make(chan struct{}) // of the bubble
		n.pass(5 * time.Second)
		r.set(func() { r.hangs["GPU-3"] = hang })
		before := len(n.out.snaps)
		n.pass(10 * time.Second)
		for i, s := range n.out.snaps[before:] {
			for j := range s.Devices {
				d := &s.Devices[j]
				if d.UUID != "GPU-3" && !d.Collected.Equal(s.Time) {
					t.Errorf("tick %d: %s is %v old", i, d.UUID, s.Time.Sub(d.Collected))
				}
			}
			if took := n.out.stats[before+i].Duration; i > 0 && took != 0 {
				t.Errorf("tick %d took %v", i, took)
			}
		}
		if d := device(t, n.out.last(), "GPU-3"); d.Err == nil || d.Fresh(time.Now(), gpu.MaxAge(time.Second)) {
			t.Errorf("the device that hangs: %v, of %v", d.Err, d.Collected)
		}
		r.set(func() {
			close(hang)
			delete(r.hangs, "GPU-3")
		})
		n.pass(3 * time.Second)
		if d := device(t, n.out.last(), "GPU-3"); d.Err != nil || !d.Collected.Equal(n.out.last().Time) {
			t.Errorf("after it returns: %v, of %v", d.Err, d.Collected)
		}
		if !slices.IsSortedFunc(n.out.last().Devices, func(a, b gpu.DeviceSnapshot) int { return a.Index - b.Index }) {
			t.Error("the devices are not in order")
		}
	})
}

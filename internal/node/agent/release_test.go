// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

// state returns how often the library was read, enumerated and released.
func (r *reader) state() (reads, enumerations, releases int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, n := range r.reads {
		reads += n
	}
	return reads, len(r.enumerations), len(r.releases)
}

// A release ends all calls of the library, and the agent goes on: it publishes, what is known stays, and readings end. It
// reads again by itself after ReleaseFor, or when it is told to.
func TestRelease(t *testing.T) {
	for name, resume := range map[string]bool{"by itself": false, "when it is told to": true} {
		t.Run(name, func(t *testing.T) {
			r := newReader(gpus(2)...)
			bubble(t, Config{}, r, nil, func(n *node) {
				n.pass(5 * time.Second)
				n.Release()
				n.pass(2 * time.Second)
				reads, enumerations, releases := r.state()
				if releases != 1 || !strings.Contains(n.logs, "no file of a GPU is open") {
					t.Fatalf("%d releases, log:\n%s", releases, n.logs)
				}
				n.pass(ReleaseFor - 30*time.Second)
				if a, b, c := r.state(); a != reads || b != enumerations || c != 1 {
					t.Errorf("the library was used: %d reads, %d enumerations, %d releases; before %d, %d", a, b, c, reads, enumerations)
				}
				s, now := n.out.last(), n.out.times[len(n.out.times)-1]
				d := device(t, s, "GPU-0")
				if !s.Released() || len(s.Devices) != 2 || d.Err != nil || d.Fresh(now, gpu.MaxAge(s.Interval)) || len(d.XIDs) != 1 || s.Inventory.Listed >= 0 {
					t.Errorf("released: %v, %d devices, %v, XIDs %v, inventory %+v", s.Err, len(s.Devices), d.Err, d.XIDs, s.Inventory)
				}
				if now.Sub(s.Time) > time.Second {
					t.Errorf("the last collection was at %s, now it is %s", s.Time, now)
				}
				if _, body := fetch(t, n.Handler(), "/api/v1/gpus"); !strings.Contains(body, gpu.ErrReleased.Error()) || !strings.Contains(body, `"uuid": "GPU-1"`) {
					t.Errorf("the document:\n%s", body)
				}
				if resume {
					n.Resume()
					n.pass(3 * time.Second)
				} else {
					n.pass(time.Minute)
				}
				s, now = n.out.last(), n.out.times[len(n.out.times)-1]
				if a, b, _ := r.state(); s.Released() || s.Err != nil || a == reads || b == enumerations || !device(t, s, "GPU-0").Fresh(now, gpu.MaxAge(s.Interval)) {
					t.Errorf("afterwards: %v, %d reads, %d enumerations", s.Err, a, b)
				}
			})
		})
	}
}

// A release waits for an enumeration, which would open the library again; a read that was in the library when it was
// closed is no fault of the GPU.
func TestReleaseWaits(t *testing.T) {
	r := newReader(gpus(1)...)
	r.starts = 5 * time.Second
	bubble(t, Config{}, r, nil, func(n *node) {
		n.Release()
		n.pass(4 * time.Second)
		if _, _, releases := r.state(); releases != 0 {
			t.Error("released during an enumeration")
		}
		n.pass(3 * time.Second)
		if _, _, releases := r.state(); releases != 1 || !n.out.last().Released() {
			t.Errorf("%d releases, %v", releases, n.out.last().Err)
		}
		n.Resume()
		n.pass(3 * time.Second)
		r.set(func() { r.takes["GPU-0"], r.fails["GPU-0"] = 1500*time.Millisecond, gpu.ErrNoDriver })
		n.pass(1100 * time.Millisecond)
		n.Release()
		n.pass(3 * time.Second)
		if d := device(t, n.out.last(), "GPU-0"); d.Err != nil && !errors.Is(d.Err, gpu.ErrNoDriver) || !n.out.last().Released() {
			t.Errorf("%v, %v", d.Err, n.out.last().Err)
		}
	})
}

// A call that hangs in the library keeps the GPUs: the log says what to do. Each further order extends the release.
func TestReleaseThatFails(t *testing.T) {
	r := newReader(gpus(1)...)
	r.releaseErr = errors.New("calls still hang in NVML")
	bubble(t, Config{}, r, nil, func(n *node) {
		n.pass(time.Second)
		n.Release()
		n.pass(2 * time.Second)
		if !strings.Contains(n.logs, "stop the agent instead") || strings.Contains(n.logs, "no file of a GPU is open") {
			t.Errorf("log:\n%s", n.logs)
		}
		n.pass(ReleaseFor / 2)
		n.Release()
		n.pass(ReleaseFor * 3 / 4)
		if !n.out.last().Released() {
			t.Error("the second order did not extend the release")
		}
	})
}

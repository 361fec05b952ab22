// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

// ended returns the error with which the agent asked for its end; nil: it did not.
func (n *node) ended() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	return errors.Join(n.fails...)
}

func mismatch() error { return fmt.Errorf("%w: NVML: 18", gpu.ErrReplaced) }

// A driver that is replaced under the agent ends it after a grace period: nothing that it has
// loaded can read the new one.
func TestAReplacedDriverEndsTheAgent(t *testing.T) {
	for name, before := range map[string]error{"it was there": nil, "it was away": gpu.ErrNoDriver, "no library was there": gpu.ErrNoLibrary} {
		t.Run(name, func(t *testing.T) {
			r := newReader()
			if r.err = before; before == nil {
				r.devices = gpus(2)
			}
			bubble(t, Config{}, r, nil, func(n *node) {
				n.pass(time.Minute)
				if err := n.ended(); err != nil {
					t.Fatalf("ended before: %v", err)
				}
				r.set(func() { r.devices, r.err = nil, mismatch() })
				n.pass(replacedGrace - time.Second)
				if err := n.ended(); err != nil {
					t.Errorf("ended without a grace period: %v", err)
				}
				n.pass(3 * maxBackoff)
				err := n.ended()
				if !errors.Is(err, gpu.ErrReplaced) || !strings.Contains(err.Error(), "the driver was replaced") {
					t.Errorf("ended with %v", err)
				}
				if !strings.Contains(n.logs, "the GPU driver was replaced") {
					t.Errorf("the log is silent:\n%s", n.logs)
				}
			})
		})
	}
}

// A start that finds the old library does not end the agent again; it goes on when the new
// library is there, and then ends for the next replacement.
func TestAReplacedDriverEndsTheAgentOnce(t *testing.T) {
	r := newReader()
	r.err = mismatch()
	bubble(t, Config{}, r, nil, func(n *node) {
		n.pass(time.Hour)
		if err := n.ended(); err != nil {
			t.Fatalf("a crash loop: %v", err)
		}
		if strings.Count(n.logs, "the GPU library is not that of the driver") != 1 {
			t.Errorf("log:\n%s", n.logs)
		}
		r.set(func() { r.devices, r.err = gpus(1), nil })
		n.pass(time.Minute)
		if s := n.out.last(); len(s.Devices) != 1 || n.ended() != nil {
			t.Errorf("%d devices, ended %v", len(s.Devices), n.ended())
		}
		r.set(func() { r.devices, r.err = nil, mismatch() })
		n.pass(3 * maxBackoff)
		if n.ended() == nil {
			t.Error("the second replacement does not end it")
		}
	})
}

// A driver that is away, or whose library arrives within the grace period, ends nothing.
func TestADriverThatIsAwayEndsNothing(t *testing.T) {
	r := newReader(gpus(2)...)
	bubble(t, Config{}, r, nil, func(n *node) {
		for range 10 {
			r.set(func() { r.devices, r.err = nil, mismatch() })
			n.pass(20 * time.Second)
			r.set(func() { r.err = gpu.ErrNoDriver })
			n.pass(10 * time.Minute)
		}
		if err := n.ended(); err != nil {
			t.Errorf("ended: %v", err)
		}
	})
}

// DCGM says that there is no driver where there is another one: the kernel knows better.
func TestADriverOfAnotherVersionEndsTheAgent(t *testing.T) {
	f := func(version string, ends bool) {
		t.Helper()
		r := newReader(gpus(2)...)
		bubble(t, Config{}, r, nil, func(n *node) {
			n.setDriver("580.95.05")
			n.pass(time.Minute)
			r.set(func() { r.devices, r.err = nil, gpu.ErrNoDriver })
			n.setDriver(version)
			n.pass(5 * maxBackoff)
			if err := n.ended(); (err != nil) != ends || ends && !errors.Is(err, gpu.ErrReplaced) {
				t.Errorf("driver %q: ended with %v", version, err)
			}
		})
	}
	f("590.48.01", true)
	f("580.95.05", false)
	f("", false)
}

// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package dcgm

/*
#include "binding.h"
*/
import "C"

import (
	"fmt"
	"sync"
	"time"

	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/gpu/vendorlib"
)

// allSystems is DCGM_HEALTH_WATCH_ALL: the systems to watch, and the system of an
// incident of the GPU as a whole.
const allSystems = 0xffffffff

// watchOf returns the health watch of a system, which is a bit of
// dcgmHealthSystems_t or allSystems.
func watchOf(system C.uint) (gpu.HealthWatch, bool) {
	if system == allSystems {
		return gpu.WatchAll, true
	}
	for w := range gpu.WatchAll {
		if system == 1<<w {
			return w, true
		}
	}
	return 0, false
}

// healthWatch is what DCGM watches to judge one GPU.
type healthWatch struct {
	mu    sync.Mutex // held by health
	group group
	ready bool
	tried vendorlib.Refusal // recorded at each attempt to watch
	err   error             // why the last attempt failed
}

// health asks DCGM for its verdicts on the GPU. The first call starts the watch
// that this needs.
func (c *card) health(now time.Time) (*gpu.Verdicts, error) {
	h := &c.healthWatch
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.ready {
		if h.tried.Holds(now) {
			return nil, h.err
		}
		h.tried.Record(now)
		if h.err = c.watchHealth(h); h.err != nil {
			return nil, h.err
		}
		h.ready = true
	}
	incidents, err := c.ses.engine.health(h.group)
	if err != nil {
		return nil, c.ses.judge(err)
	}
	var out gpu.Verdicts
	for i := range incidents {
		in := &incidents[i]
		w, known := watchOf(in.system)
		if !known || in.kind != kindGPU || uint(in.id) != c.id {
			continue
		}
		out[w].Worsen(uint8(min(max(in.health, 0), gpu.HealthFail)), errorName(uint(in.code)))
	}
	return &out, nil
}

func (c *card) watchHealth(h *healthWatch) error {
	g, err := c.ses.engine.group(fmt.Sprintf("gpupilot-health-%d", c.id), entity{kindGPU, c.id})
	if err != nil {
		return c.ses.judge(err)
	}
	if err := c.ses.engine.setHealth(g); err != nil {
		c.ses.ungroup(g)
		return c.ses.judge(err)
	}
	h.group = g
	return nil
}

// setHealth starts DCGM's watch of the health of a group.
func (e *engine) setHealth(g group) error {
	return e.failed("watch the GPU's health", C.gp_health_set(e.lib, e.handle, g))
}

// health lists the health incidents of a group.
func (e *engine) health(g group) ([]C.gp_incident, error) {
	list := make([]C.gp_incident, incidentRoom)
	n := C.int(len(list))
	if err := e.failed("check the GPU's health", C.gp_health(e.lib, e.handle, g, &list[0], &n)); err != nil {
		return nil, err
	}
	return list[:n], nil
}

// incidentRoom is how many incidents of one GPU are read. DCGM gives one for each
// system and error.
const incidentRoom = 64

// Health returns DCGM's verdicts on a whole GPU. See gpu.HealthReader.
func (r *Reader) Health(uuid string) (*gpu.Verdicts, error) {
	d, ses, err := r.Enter(uuid)
	if err != nil {
		return nil, err
	}
	defer ses.Leave()
	if d.MIG != nil {
		return nil, fmt.Errorf("%s is a MIG instance: DCGM judges whole GPUs", uuid)
	}
	return d.card.health(time.Now())
}

// SPDX-License-Identifier: Apache-2.0

package page

import (
	"bytes"
	"errors"
	"math"
	"strconv"
	"time"

	"github.com/gpupilot/gpupilot/internal/base/promtext"
	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/gpu/names"
)

// HealthNames returns the metrics that ParseHealth reads, in the names of all profiles.
func HealthNames() []string {
	return []string{
		"gpupilot_device_up", "gpupilot_backend_up", "gpupilot_xid_last_seen_timestamp_seconds", gpusBySource, gpusReleased,
		"DCGM_FI_DEV_ROW_REMAP_FAILURE", "DCGM_FI_DEV_ROW_REMAP_FAILED",
	}
}

// gpusBySource counts a node's GPUs by source.
const gpusBySource = "gpupilot_gpus_by_source"

// gpusReleased is 1 while an agent reads no GPU, because it was asked to.
const gpusReleased = "gpupilot_gpus_released"

// ParseHealth reads the health of a node's GPUs from its agent's page. A page without
// gpupilot_backend_up and gpupilot_gpus_released is not an agent's, and an error.
func ParseHealth(text []byte) (*gpu.NodeHealth, error) {
	h := health{listed: map[string]bool{}}
	var l line
	for row := range bytes.Lines(text) {
		row = bytes.TrimRight(row, "\r\n")
		if len(row) == 0 || row[0] == '#' || l.Parse(row) != nil || math.IsNaN(l.Value) {
			continue
		}
		h.take(&l)
	}
	if !h.known {
		return nil, errors.New("the page has no gpupilot_backend_up: it is not an agent's")
	}
	for i := range h.node.GPUs {
		h.node.GPUs[i].Unlisted = !h.listed[h.node.GPUs[i].UUID]
	}
	return &h.node, nil
}

// health is a NodeHealth in the making.
type health struct {
	node   gpu.NodeHealth
	known  bool
	place  map[string]int
	listed map[string]bool // with gpupilot_device_up
}

func (h *health) take(l *line) {
	switch string(l.Name) {
	case "gpupilot_backend_up":
		h.known, h.node.BackendDown = true, l.Value == 0
	case "gpupilot_device_up":
		if g := h.gpu(l.Get("uuid")); g != nil {
			g.Down = l.Value == 0
			h.listed[g.UUID] = true
		}
	case gpusReleased:
		h.node.Released = l.Value == 1
		h.known = h.known || h.node.Released
	case gpusBySource:
		h.count(l)
	case "gpupilot_xid_last_seen_timestamp_seconds":
		code, err := strconv.ParseUint(string(l.Get("xid")), 10, 64)
		if g := h.gpu(l.Get("uuid")); g != nil && err == nil && l.Value > 0 && l.Value < promtext.MaxUnix {
			g.XIDs = append(g.XIDs, gpu.XIDCount{Code: code, Last: time.Unix(int64(l.Value), 0)})
		}
	default:
		r, ok := names.Resolve(string(l.Name))
		if !ok || r.Field != gpu.RowRemapFailure || l.Value <= 0 {
			return
		}
		uuid := l.Get("UUID")
		if uuid == nil {
			uuid = l.Get("uuid")
		}
		if g := h.gpu(uuid); g != nil {
			g.RowRemapFailure = true
		}
	}
}

// count takes the number of one source. A node has no more GPUs than maxGPUs.
func (h *health) count(l *line) {
	if l.Value < 0 || l.Value > maxGPUs {
		return
	}
	if h.node.Counts == nil {
		h.node.Counts = &gpu.GPUCounts{Listed: -1, Bound: -1, Allocatable: -1}
	}
	n := int(l.Value)
	switch string(l.Get("source")) {
	case gpu.SourceLibrary:
		h.node.Counts.Listed = n
	case gpu.SourcePCI:
		if string(l.Get("bound")) == gpu.NVIDIADriver {
			h.node.Counts.Bound = n
		}
	case gpu.SourceDevicePlugin:
		h.node.Counts.Allocatable = n
	}
}

// maxGPUs bounds a number that an agent claims.
const maxGPUs = 1 << 16

func (h *health) gpu(uuid []byte) *gpu.Health {
	if len(uuid) == 0 {
		return nil
	}
	i, ok := h.place[string(uuid)]
	if !ok {
		if h.place == nil {
			h.place = map[string]int{}
		}
		i = len(h.node.GPUs)
		h.place[string(uuid)] = i
		h.node.GPUs = append(h.node.GPUs, gpu.Health{UUID: string(uuid)})
	}
	return &h.node.GPUs[i]
}

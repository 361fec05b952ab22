// SPDX-License-Identifier: Apache-2.0

package scrape

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/gpu/names"
)

// healthNames returns the metrics that ReadHealth requests from an agent, in the
// names of all profiles.
func healthNames() []string {
	return []string{
		"gpupilot_device_up", "gpupilot_backend_up", "gpupilot_xid_last_seen_timestamp_seconds",
		"DCGM_FI_DEV_ROW_REMAP_FAILURE", "DCGM_FI_DEV_ROW_REMAP_FAILED",
	}
}

// maxHealth is the limit of a response in bytes. 72 devices with a few lines each
// take 30 KB.
const maxHealth = 1 << 20

// ReadHealth reads the health of a node's GPUs from its agent's metrics at address.
func ReadHealth(ctx context.Context, client Doer, address url.URL) (*gpu.NodeHealth, error) {
	req, err := newRequest(address, healthNames())
	if err != nil {
		return nil, err
	}
	resp, err := client.Do(req.WithContext(ctx))
	if err != nil {
		return nil, errors.New(describe(err))
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("answered %s", status(resp.StatusCode))
	}
	page, err := io.ReadAll(io.LimitReader(resp.Body, maxHealth+1))
	switch {
	case err != nil:
		return nil, errors.New(describe(err))
	case len(page) > maxHealth:
		return nil, fmt.Errorf("response is longer than the limit of %d bytes", maxHealth)
	}
	return parseHealth(page)
}

// parseHealth parses an agent's page. A page without gpupilot_backend_up is not an
// agent's, and an error.
func parseHealth(page []byte) (*gpu.NodeHealth, error) {
	var h health
	var l line
	for text := range bytes.Lines(page) {
		text = bytes.TrimRight(text, "\r\n")
		if len(text) == 0 || text[0] == '#' || l.parse(text) != nil || math.IsNaN(l.value) {
			continue
		}
		h.take(&l)
	}
	if !h.known {
		return nil, errors.New("the page has no gpupilot_backend_up: it is not an agent's")
	}
	return &h.node, nil
}

// health is a NodeHealth in the making.
type health struct {
	node  gpu.NodeHealth
	known bool
	place map[string]int
}

func (h *health) take(l *line) {
	switch string(l.name) {
	case "gpupilot_backend_up":
		h.known, h.node.BackendDown = true, l.value == 0
	case "gpupilot_device_up":
		if g := h.gpu(l.get("uuid")); g != nil {
			g.Down = l.value == 0
		}
	case "gpupilot_xid_last_seen_timestamp_seconds":
		code, err := strconv.ParseUint(string(l.get("xid")), 10, 64)
		if g := h.gpu(l.get("uuid")); g != nil && err == nil && l.value > 0 && l.value < maxUnix {
			g.XIDs = append(g.XIDs, gpu.XIDCount{Code: code, Last: time.Unix(int64(l.value), 0)})
		}
	default:
		r, ok := names.Resolve(string(l.name))
		if !ok || r.Field != gpu.RowRemapFailure || l.value <= 0 {
			return
		}
		uuid := l.get("UUID")
		if uuid == nil {
			uuid = l.get("uuid")
		}
		if g := h.gpu(uuid); g != nil {
			g.RowRemapFailure = true
		}
	}
}

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

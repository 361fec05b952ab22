// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package dcgm

import (
	"fmt"
	"sync"
	"time"

	"github.com/NVIDIA/go-dcgm/pkg/dcgm"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

// xidKeepSeconds is how long DCGM keeps XID samples for us: far longer than
// the time between two reads, which is all that is needed. There is one sample
// for each error, so their number needs no limit.
const xidKeepSeconds = 60

// card is a GPU with what its devices (itself, its MIG instances) share.
type card struct {
	id   uint // DCGM's
	uuid string
	ses  *session

	mu    sync.Mutex
	ready bool // XIDs are watched
	retry time.Time
	group dcgm.GroupHandle
	set   dcgm.FieldHandle
	since time.Time // of samples, by the host engine's clock

	profiling map[gpu.FieldID]bool // the fields that the GPU gives; nil: not known
	probed    time.Time
	reason    string // why there is no profiling
}

// pollXIDs counts the XID errors since the last time. Where another device of
// the card is at it, that is enough. It says whether XIDs are watched.
func (c *card) pollXIDs(now time.Time) (bool, error) {
	if !c.mu.TryLock() {
		return true, nil
	}
	defer c.mu.Unlock()
	if !c.ready {
		if now.Before(c.retry) {
			return false, nil
		}
		c.retry = now.Add(retryUnsupported)
		if err := c.watchXIDs(); err != nil {
			return false, err
		}
	}
	values, _, err := dcgm.GetValuesSince(c.group, c.set, c.since)
	if err != nil {
		return false, err
	}
	for i := range values {
		at := time.UnixMicro(values[i].TS)
		if !at.Before(c.since) {
			c.since = at.Add(time.Microsecond)
		}
		x := decode(values[i].FieldType, values[i].Status, &values[i].Value)
		if !x.ok || x.number <= 0 {
			continue
		}
		if c.ready {
			c.ses.xids.add(c.uuid, uint64(x.number), at)
		} else {
			c.ses.xids.seed(c.uuid, uint64(x.number)) // from before our time
		}
	}
	c.ready = true
	return true, nil
}

func (c *card) watchXIDs() error {
	group, err := newGroup(entity{dcgm.FE_GPU, c.id})
	if err != nil {
		return err
	}
	set, err := dcgm.FieldGroupCreate(groupName("xids", c.id), []dcgm.Short{dcgm.Short(gpu.XIDErrors)})
	if err == nil {
		err = dcgm.WatchFieldsWithGroupEx(set, group, c.ses.cfg.Interval.Microseconds(), xidKeepSeconds, 0)
	}
	if err != nil {
		_ = dcgm.DestroyGroup(group)
		return fmt.Errorf("watch XIDs: %w", err)
	}
	c.group, c.set, c.since = group, set, time.UnixMicro(0)
	return nil
}

// profiles says whether the GPU gives a profiling field. GPUs of one node
// differ, so each is asked, and asked again later where it gives none: another
// profiler may have it, or the engine may lack the rights.
func (c *card) profiles(id gpu.FieldID, now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.profiling == nil && (c.probed.IsZero() || now.Sub(c.probed) >= retryUnsupported) {
		c.probed = now
		c.probe()
	}
	return c.profiling[id]
}

func (c *card) probe() {
	groups, err := dcgm.GetSupportedMetricGroups(c.id)
	if err != nil {
		if reason := err.Error(); reason != c.reason {
			c.reason = reason
			c.ses.log.Warn("GPU gives no profiling fields", "gpu", c.id, "uuid", c.uuid, "reason", reason)
		}
		return
	}
	c.reason = ""
	c.profiling = map[gpu.FieldID]bool{}
	for _, g := range groups {
		for _, id := range g.FieldIds {
			c.profiling[gpu.FieldID(id)] = true
		}
	}
}

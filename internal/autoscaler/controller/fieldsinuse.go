// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"sync"
	"time"

	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/scale/policy"
)

// useTTL is how long a field is scraped after its last request: an HPA sends one
// every 15 s by default, a person with kubectl less often.
const useTTL = 10 * time.Minute

// alwaysScraped returns the fields that are scraped without a request: those on the
// page, and those that plain HPAs use most.
func alwaysScraped() gpu.FieldSet {
	return gpu.SetOf(gpu.GPUUtil, gpu.MemCopyUtil, gpu.FBUsed, gpu.FBFree, gpu.PowerUsage, gpu.GPUTemp)
}

// fieldUses holds the time of the last request for each field.
type fieldUses struct {
	mu   sync.Mutex
	last map[gpu.FieldID]time.Time
}

func newFieldUses() *fieldUses { return &fieldUses{last: map[gpu.FieldID]time.Time{}} }

// recordUse records a request for f, and reports whether f was not in use before.
func (u *fieldUses) recordUse(f gpu.FieldID, now time.Time) (isNew bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	last, ok := u.last[f]
	u.last[f] = now
	return !ok || now.Sub(last) > useTTL
}

// fieldsAt returns the fields in use at now.
func (u *fieldUses) fieldsAt(now time.Time) gpu.FieldSet {
	u.mu.Lock()
	defer u.mu.Unlock()
	out := alwaysScraped()
	for f, at := range u.last {
		if now.Sub(at) > useTTL {
			delete(u.last, f)
			continue
		}
		if i, ok := gpu.IndexOf(f); ok {
			out.Add(i)
		}
	}
	return out
}

// Names returns the names of the metrics in use, unsorted: GPU fields by their names
// in dcgm-exporter 4.8, and the pod metrics that autoscalers read.
func (c *Controller) Names() []string {
	var names []string
	fields := c.fieldsInUse(time.Now())
	for i, f := range gpu.Fields() {
		if fields.Has(gpu.Index(i)) {
			names = append(names, f.Name)
		}
	}
	c.mu.RLock()
	defer c.mu.RUnlock()
	for _, w := range c.workloads {
		if p := w.plan.Load(); p != nil {
			for i := range p.Sources {
				names = append(names, plainNames(p.Sources[i].Terms)...)
			}
		}
	}
	return names
}

// plainNames returns the metrics whose series are only added up per pod, so that the
// metrics API can serve them by name.
func plainNames(terms []policy.Term) (names []string) {
	for _, term := range terms {
		for i := range term {
			if m := &term[i]; m.Key() == m.Name {
				names = append(names, m.Name)
			}
		}
	}
	return names
}

// fieldsInUse returns the fields that autoscalers, the metrics API and the page read.
func (c *Controller) fieldsInUse(now time.Time) gpu.FieldSet {
	fields := c.fieldUses.fieldsAt(now)
	c.mu.RLock()
	defer c.mu.RUnlock()
	for _, w := range c.workloads {
		if p := w.plan.Load(); p != nil {
			fields = fields.Union(p.fields)
		}
	}
	return fields
}

// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"sync"
	"time"

	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/policy"
	"github.com/gpupilot/gpupilot/internal/series"
)

// keptInUse is for how long a field that was asked for is scraped on: an HPA
// asks every 15 s by default, a person with kubectl now and then.
const keptInUse = 10 * time.Minute

// always are the fields that are scraped whoever asks: what the page shows and
// what plain HPAs use most.
func always() gpu.FieldSet {
	return gpu.SetOf(gpu.GPUUtil, gpu.MemCopyUtil, gpu.FBUsed, gpu.FBFree, gpu.PowerUsage, gpu.GPUTemp)
}

// uses remembers which fields were asked for of late.
type uses struct {
	mu   sync.Mutex
	last map[gpu.FieldID]time.Time
}

func newUses() *uses { return &uses{last: map[gpu.FieldID]time.Time{}} }

// note says that f was asked for, and whether it was not in use.
func (u *uses) note(f gpu.FieldID, now time.Time) (isNew bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	last, ok := u.last[f]
	u.last[f] = now
	return !ok || now.Sub(last) > keptInUse
}

// set is what is in use at now.
func (u *uses) set(now time.Time) gpu.FieldSet {
	u.mu.Lock()
	defer u.mu.Unlock()
	out := always()
	for f, at := range u.last {
		if now.Sub(at) > keptInUse {
			delete(u.last, f)
			continue
		}
		if i, ok := gpu.IndexOf(f); ok {
			out.Add(i)
		}
	}
	return out
}

// Values gives pods' newest values to the metrics API. A field that is asked
// for is scraped from then on.
type Values struct{ c *Controller }

// Values are the store's values as the metrics API reads them.
func (c *Controller) Values() Values { return Values{c} }

// Pod is the value of a field of the pod's GPUs, as far as the API server agrees
// that it holds them.
func (v Values) Pod(namespace, pod string, f gpu.FieldID, now time.Time, maxAge time.Duration) (series.Sample, bool) {
	if v.c.uses.note(f, now) {
		v.c.discoverSoon()
	}
	p, ok := v.c.deps.Pods.Get(namespace, pod)
	if !ok {
		return series.Sample{}, false
	}
	r, ok := vetted{v.c.deps.Store, v.c.devices}.Field(p, f, now, maxAge)
	return r.Sample, ok
}

// PodMetric is the store's PodMetric.
func (v Values) PodMetric(namespace, pod, metric string, now time.Time, maxAge time.Duration) (series.Sample, bool) {
	return v.c.deps.Store.PodMetric(namespace, pod, metric, now, maxAge)
}

// Names are the names of the metrics in use: GPU fields as dcgm-exporter 4.8
// calls them, and what autoscalers have scraped from pods. In no order.
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

// plainNames are the metrics of which no more is made than the sum of a pod's
// series, so that they may be asked for by their names.
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

// fieldsInUse are the fields that autoscalers, the metrics API and the page read.
func (c *Controller) fieldsInUse(now time.Time) gpu.FieldSet {
	fields := c.uses.set(now)
	c.mu.RLock()
	defer c.mu.RUnlock()
	for _, w := range c.workloads {
		if p := w.plan.Load(); p != nil {
			fields = fields.Union(p.fields)
		}
	}
	return fields
}

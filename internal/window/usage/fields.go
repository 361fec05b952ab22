// SPDX-License-Identifier: Apache-2.0

package usage

import (
	"slices"
	"sync"
	"time"

	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/window/page"
)

// requestTTL is how long a field is scraped after its last request: an HPA sends one
// every 15 s by default, a person with kubectl less often.
const requestTTL = 10 * time.Minute

// AlwaysScraped returns the fields that are scraped without a request: those on the
// page, and those that plain HPAs use most.
func AlwaysScraped() gpu.FieldSet {
	return gpu.SetOf(gpu.GPUUtil, gpu.MemCopyUtil, gpu.FBUsed, gpu.FBFree, gpu.PowerUsage, gpu.GPUTemp)
}

// Fields knows which GPU fields are in use: of all GPUs those that were requested lately and a few that always are,
// and of the GPUs of a namespace those that its autoscalers hold. Its methods may be called concurrently.
type Fields struct {
	changed chan struct{}

	mu         sync.Mutex
	requested  map[gpu.FieldID]time.Time // the last request
	named      *page.Named               // by autoscalers
	podMetrics []string
}

// NewFields returns the fields that are always in use.
func NewFields() *Fields {
	return &Fields{changed: make(chan struct{}, 1), requested: map[gpu.FieldID]time.Time{}}
}

// Hold sets the fields that autoscalers read, beside those that are always in use, and their pod metrics.
func (f *Fields) Hold(named *page.Named, podMetrics []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.podMetrics = podMetrics; !f.named.Equal(named) {
		f.named = named
	}
}

// Named returns the fields that autoscalers hold. It is the same pointer while they hold the same.
func (f *Fields) Named() *page.Named {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.named
}

// Request has a field scraped for a while. It does not block.
func (f *Fields) Request(id gpu.FieldID, now time.Time) {
	if !f.record(id, now) {
		return
	}
	select {
	case f.changed <- struct{}{}:
	default:
	}
}

// record records a request, and reports whether there was none before.
func (f *Fields) record(id gpu.FieldID, now time.Time) (isNew bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	last, ok := f.requested[id]
	f.requested[id] = now
	return !ok || now.Sub(last) > requestTTL
}

// Changed receives after a request for a field that was not requested before.
func (f *Fields) Changed() <-chan struct{} { return f.changed }

// At returns the fields of all GPUs in use at now.
func (f *Fields) At(now time.Time) gpu.FieldSet {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := AlwaysScraped()
	for id, at := range f.requested {
		if now.Sub(at) > requestTTL {
			delete(f.requested, id)
			continue
		}
		if i, ok := gpu.IndexOf(id); ok {
			out.Add(i)
		}
	}
	return out
}

// Names returns the names of the metrics in use, unsorted: GPU fields by their names in
// dcgm-exporter 4.8, and the pod metrics that autoscalers read.
func (f *Fields) Names() []string {
	var names []string
	inUse := f.At(time.Now()).Union(f.Named().All())
	for i, field := range gpu.Fields() {
		if inUse.Has(gpu.Index(i)) {
			names = append(names, field.Name)
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return append(names, f.podMetrics...)
}

// hasPodMetric reports whether an autoscaler reads a pod metric.
func (f *Fields) hasPodMetric(name string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Contains(f.podMetrics, name)
}

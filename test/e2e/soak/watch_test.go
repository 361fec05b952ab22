// SPDX-License-Identifier: Apache-2.0

//go:build e2e && linux

package soak

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// page is one answer of /metrics.
type page struct {
	text     string
	families map[string]*dto.MetricFamily
}

// sampled is a metric that every device and MIG instance has.
const sampled = "DCGM_FI_DEV_FB_USED"

// parse takes a page as Prometheus's own parser does, and insists that no
// series is there twice, which that one does not.
func parse(text string) (page, error) {
	p := page{text: text}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	var err error
	if p.families, err = parser.TextToMetricFamilies(strings.NewReader(text)); err != nil {
		return p, err
	}
	seen := map[string]bool{}
	for name, f := range p.families {
		for _, m := range f.Metric {
			key := name + labelsOf(m)
			if seen[key] {
				return p, fmt.Errorf("%s is there twice", key)
			}
			seen[key] = true
		}
	}
	return p, nil
}

func labelsOf(m *dto.Metric) string {
	labels := map[string]string{}
	for _, l := range m.Label {
		labels[l.GetName()] = l.GetValue()
	}
	var b strings.Builder
	for _, k := range slices.Sorted(maps.Keys(labels)) {
		fmt.Fprintf(&b, ",%s=%q", k, labels[k])
	}
	return b.String()
}

// gpu is a device's label, as labels gives it.
func gpu(i int) string { return fmt.Sprintf(`gpu="%d"`, i) }

// devices counts those with series whose labels have all of these, which are
// separated by asterisks.
func (p page) devices(with string) int {
	n := 0
	for _, m := range p.families[sampled].GetMetric() {
		labels, all := labelsOf(m), true
		for l := range strings.SplitSeq(with, "*") {
			all = all && (l == "" || strings.Contains(labels+",", ","+l+","))
		}
		if all {
			n++
		}
	}
	return n
}

// value is that of a metric without labels, -1 where it is not there.
func (p page) value(name string) float64 {
	for _, m := range p.families[name].GetMetric() {
		return valueOf(m)
	}
	return -1
}

func valueOf(m *dto.Metric) float64 {
	switch {
	case m.Gauge != nil:
		return m.Gauge.GetValue()
	case m.Counter != nil:
		return m.Counter.GetValue()
	}
	return m.Untyped.GetValue()
}

// collected is when the page was collected, in seconds since 1970.
func (p page) collected() float64 { return p.value("gpupilot_collection_timestamp_seconds") }

// lastRead is when GPU i was read last, in seconds since 1970; 0: never.
func (p page) lastRead(i int) float64 {
	for _, m := range p.families["gpupilot_device_last_success_timestamp_seconds"].GetMetric() {
		if strings.HasSuffix(m.Label[0].GetValue(), fmt.Sprintf("%012d", i)) { // the fakes' UUIDs end so
			return valueOf(m)
		}
	}
	return 0
}

// readings are counted.
type readings struct{ all, late int } // late: of the collection before

// watch looks at every page.
type watch struct {
	t *testing.T

	mu      sync.Mutex
	fault   fault
	pages   int
	times   []float64            // of the collections that were seen
	read    map[string]*readings // of GPUs that should be well, by fault
	rounds  []uint64             // resident memory at the end of each
	reports int
}

// allow says what is broken now.
func (w *watch) allow(f fault) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.fault = f
}

// run looks at pages, four for each collection, until stop is closed.
func (w *watch) run(n *node, stop <-chan struct{}) {
	tick := time.NewTicker(interval / 4)
	defer tick.Stop()
	for {
		select {
		case <-stop:
			return
		case <-tick.C:
		}
		w.mu.Lock()
		before := w.fault
		w.mu.Unlock()
		text, err := n.Get(w.t.Context(), "/metrics")
		if err != nil {
			w.report(before, "no page: %v", err)
			continue
		}
		p, err := parse(text)
		if err != nil {
			w.report(before, "%v", err)
			continue
		}
		w.look(before, p)
	}
}

// look holds the GPUs that no fault touches to their series. A fault that began
// or ended while the page was on its way touches what either touches.
func (w *watch) look(before fault, p page) {
	w.mu.Lock()
	costs := slices.Concat(before.costs, w.fault.costs)
	if at := p.collected(); len(w.times) == 0 || at > w.times[len(w.times)-1] {
		w.times = append(w.times, at)
	}
	w.mu.Unlock()
	w.pages++
	seen := w.read[before.name]
	if seen == nil {
		seen = &readings{}
		w.read[before.name] = seen
	}
	for i := range gpus {
		if slices.Contains(costs, i) {
			continue
		}
		if p.devices(gpu(i)) != 1 {
			w.report(before, "GPU %d has no series", i)
		}
		if p.devices(fmt.Sprintf(`%s*pod="%s"`, gpu(i), pod(i))) != 1 {
			w.report(before, "GPU %d has lost its pod", i)
		}
		seen.all++
		if missed := w.since(p.lastRead(i)); missed > 0 {
			seen.late++
			if missed > maxMissed {
				w.report(before, "GPU %d was last read %d collections before", i, missed)
			}
		}
	}
}

// since is how many collections were seen after a time.
func (w *watch) since(at float64) (n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for n < len(w.times) && w.times[len(w.times)-1-n] > at+1e-3 {
		n++
	}
	return n
}

// awaitCollections waits until so many more collections were seen.
func (w *watch) awaitCollections(n int) {
	w.t.Helper()
	seen := func() int {
		w.mu.Lock()
		defer w.mu.Unlock()
		return len(w.times)
	}
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for from, deadline := seen(), time.Now().Add(patience); seen() < from+n; <-tick.C {
		if time.Now().After(deadline) {
			w.t.Fatalf("%d of %d collections in %v", seen()-from, n, patience)
		}
	}
}

// report fails the test, without saying the same thing for ever.
func (w *watch) report(f fault, format string, args ...any) {
	w.t.Helper()
	if w.reports++; w.reports <= 20 {
		w.t.Errorf("during %s: %s", f.name, fmt.Sprintf(format, args...))
	}
}

func (w *watch) endRound(n *node) {
	rss, err := n.RSS()
	if err != nil {
		w.t.Error(err)
	}
	w.rounds = append(w.rounds, rss)
}

// judge looks at it all.
func (w *watch) judge() {
	first, last := w.rounds[0], w.rounds[len(w.rounds)-1]
	w.t.Logf("%d rounds, %d pages; RSS %.1f MiB after the first round, %.1f after the last", len(w.rounds), w.pages, float64(first)/(1<<20), float64(last)/(1<<20))
	for fault, n := range w.read {
		w.t.Logf("during %s %d of %d readings came after their collection", fault, n.late, n.all)
		// A busy machine makes some late; a fault that holds up other GPUs makes all.
		// Between two faults there is time for a page or none.
		if fault != none.name && n.all > 0 && n.late == n.all {
			w.t.Errorf("%s holds up the other GPUs: %d of %d readings came after their collection", fault, n.late, n.all)
		}
	}
	if w.pages == 0 {
		w.t.Error("no page was seen")
	}
	if last > maxRSS || last > first+maxGrowth {
		w.t.Errorf("the agent grew to %d bytes, from %d after the first round", last, first)
	}
}

// SPDX-License-Identifier: Apache-2.0

package usage

import (
	"slices"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/window/history"
)

// shownField is a field whose aggregates are on /metrics. A value times Scale is in the base
// unit of the name.
type shownField struct {
	Field gpu.FieldID
	name  string
	Scale float64
	help  string
}

// shownFields are the fields whose aggregates are on /metrics, while they are in use.
func shownFields() []shownField {
	const mebibyte = 1 << 20
	return []shownField{
		{gpu.GPUUtil, "utilization_ratio", 0.01, "Share of time in which a kernel ran"},
		{gpu.MemCopyUtil, "memory_utilization_ratio", 0.01, "Share of time in which memory was read or written"},
		{gpu.FBUsed, "memory_used_bytes", mebibyte, "Framebuffer memory used"},
		{gpu.FBFree, "memory_free_bytes", mebibyte, "Framebuffer memory free"},
		{gpu.PowerUsage, "power_watts", 1, "Power drawn"},
		{gpu.GPUTemp, "temperature_celsius", 1, "Temperature"},
		{gpu.SMActive, "sm_active_ratio", 1, "Share of cycles in which an SM had a warp assigned"},
		{gpu.SMOccupancy, "sm_occupancy_ratio", 1, "Resident warps, of the most that fit"},
		{gpu.TensorActive, "tensor_active_ratio", 1, "Share of cycles in which the tensor pipe was active"},
		{gpu.DRAMActive, "dram_active_ratio", 1, "Share of cycles in which the device memory sent or received"},
	}
}

// scope is a kind of groups.
type scope int

// The scopes.
const (
	ofCluster scope = iota
	ofNamespace
	ofWorkload
	scopes // their number
)

// scopeNames are the names of the scopes, with their labels.
var scopeNames = [scopes]struct {
	name   string
	of     string
	labels []string
}{
	{"cluster", "of the cluster", nil},
	{"namespace", "of a namespace", []string{"namespace"}},
	{"workload", "of a workload", []string{"namespace", "kind", "name"}},
}

// labels are the names of the labels that identify a group of the scope.
func (s scope) labels() []string { return slices.Clone(scopeNames[s].labels) }

// gpus is the name of the number of a group's GPUs on /metrics.
func (s scope) gpus() string { return "gpupilot_" + scopeNames[s].name + "_gpus" }

// cost and unpriced are the names of what a group's GPUs cost on /metrics, and of the number of
// those without a price.
func (s scope) cost() string     { return "gpupilot_" + scopeNames[s].name + "_gpu_cost_usd_per_hour" }
func (s scope) unpriced() string { return "gpupilot_" + scopeNames[s].name + "_unpriced_gpus" }

// metric is the name of the field's aggregates on /metrics.
func (f *shownField) metric(s scope) string {
	return "gpupilot_" + scopeNames[s].name + "_gpu_" + f.name
}

// descs describe the aggregates on /metrics. Their number of series is bounded by
// AggregatorConfig.MaxGroups.
type descs struct {
	values  [scopes]map[gpu.FieldID]*prometheus.Desc
	gpus    [scopes]*prometheus.Desc
	cost    [scopes]*prometheus.Desc
	lacking [scopes]*prometheus.Desc // what cost lacks
	priced  bool
	scales  map[gpu.FieldID]float64
	omitted *prometheus.Desc
	without *prometheus.Desc
	held    heldDescs
}

func newDescs(priced bool) *descs {
	d := &descs{priced: priced, scales: map[gpu.FieldID]float64{}, held: newHeldDescs()}
	for s := range scopes {
		scope := &scopeNames[s]
		d.values[s] = map[gpu.FieldID]*prometheus.Desc{}
		for _, f := range shownFields() {
			d.scales[f.Field] = f.Scale
			d.values[s][f.Field] = prometheus.NewDesc(f.metric(s),
				f.help+", over the GPUs in use "+scope.of+" whose pods serve, by statistic. avg_5m is the mean of the last 5 min.",
				append(s.labels(), "in_use", "stat"), nil)
		}
		d.gpus[s] = prometheus.NewDesc(s.gpus(),
			"GPUs in use "+scope.of+": allocated to serving pods, or active: with a utilization above zero within the last minute.",
			append(s.labels(), "in_use"), nil)
		d.cost[s] = prometheus.NewDesc(s.cost(),
			"USD an hour of GPUs in use "+scope.of+" that have a price, by --gpu-price. A MIG instance and a shared GPU cost their share. Absent without prices.",
			append(s.labels(), "in_use"), nil)
		d.lacking[s] = prometheus.NewDesc(s.unpriced(), "GPUs in use "+scope.of+" without a price, which the cost lacks. Absent without prices.", append(s.labels(), "in_use"), nil)
	}
	d.omitted = prometheus.NewDesc("gpupilot_gpu_aggregates_omitted", "Workloads and namespaces whose aggregates are left out, because more than --workload-metrics of them hold GPUs.", nil, nil)
	d.without = prometheus.NewDesc("gpupilot_gpu_aggregates_missing_gpus",
		"GPUs of serving pods without a value, for which aggregates of a workload or, with an empty kind and name, of a namespace are absent.", ofWorkload.labels(), nil)
	return d
}

// Describe implements prometheus.Collector.
func (a *Aggregator) Describe(ch chan<- *prometheus.Desc) {
	for s := range scopes {
		for _, desc := range a.descs.values[s] {
			ch <- desc
		}
		ch <- a.descs.gpus[s]
		ch <- a.descs.cost[s]
		ch <- a.descs.lacking[s]
	}
	ch <- a.descs.omitted
	ch <- a.descs.without
	a.descs.held.describe(ch)
}

// Collect implements prometheus.Collector. It sends the aggregates of the last pass.
func (a *Aggregator) Collect(ch chan<- prometheus.Metric) {
	if last := a.Last(); !last.At.IsZero() {
		a.descs.collect(ch, last)
	}
	a.mu.RLock()
	defer a.mu.RUnlock()
	a.descs.held.collect(ch, &a.held)
}

// scope returns the scope of a group, and the values of its labels.
func (g Group) scope() (of scope, labels []string) {
	switch {
	case g.Name != "":
		return ofWorkload, []string{g.Namespace, g.Kind, g.Name}
	case g.Namespace != "":
		return ofNamespace, []string{g.Namespace}
	}
	return ofCluster, nil
}

// collect sends the aggregates of a pass.
func (d *descs) collect(ch chan<- prometheus.Metric, a *Aggregates) {
	ch <- prometheus.MustNewConstMetric(d.omitted, prometheus.GaugeValue, float64(a.Omitted))
	without := map[Group]int{}
	for _, g := range a.Gaps {
		without[g.Group] = max(without[g.Group], g.GPUs)
	}
	for g, gpus := range without {
		ch <- prometheus.MustNewConstMetric(d.without, prometheus.GaugeValue, float64(gpus), g.Namespace, g.Kind, g.Name)
	}
	for i := range a.Items {
		x := &a.Items[i]
		if !a.Shown[x.Group] || x.Withheld {
			continue
		}
		scope, labels := x.scope()
		if desc := d.values[scope][x.Field]; desc != nil {
			d.send(ch, desc, append(labels, allocatedGPUs), &x.Allocated, d.scales[x.Field])
			d.send(ch, desc, append(labels, activeGPUs), &x.Active, d.scales[x.Field])
		}
		if x.Field == gpu.GPUUtil {
			ch <- prometheus.MustNewConstMetric(d.gpus[scope], prometheus.GaugeValue, float64(x.Allocated.GPUs), append(labels, allocatedGPUs)...)
			ch <- prometheus.MustNewConstMetric(d.gpus[scope], prometheus.GaugeValue, float64(x.Active.GPUs), append(labels, activeGPUs)...)
			if d.priced {
				d.sendCost(ch, scope, append(labels, allocatedGPUs), &x.Allocated)
				d.sendCost(ch, scope, append(labels, activeGPUs), &x.Active)
			}
		}
	}
}

// sendCost sends what GPUs cost. If none of them has a price, the cost is absent.
func (d *descs) sendCost(ch chan<- prometheus.Metric, of scope, labels []string, s *Stats) {
	ch <- prometheus.MustNewConstMetric(d.lacking[of], prometheus.GaugeValue, s.Unpriced, labels...)
	if usd, ok := s.cost(); ok {
		ch <- prometheus.MustNewConstMetric(d.cost[of], prometheus.GaugeValue, usd, labels...)
	}
}

// send sends the statistics of one field. Without a GPU there are none: missing is not
// zero.
func (d *descs) send(ch chan<- prometheus.Metric, desc *prometheus.Desc, labels []string, s *Stats, scale float64) {
	if s.GPUs == 0 {
		return
	}
	stats := history.Statistics()
	for i, value := range []float64{s.Mean, s.Sum, s.Max, s.RollingMean} {
		ch <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, value*scale, append(labels[:len(labels):len(labels)], string(stats[i]))...)
	}
}

// Metrics returns the names of the metrics on /metrics that a gap withholds.
func (g *Gap) Metrics() (names []string) {
	of, _ := g.scope()
	for _, f := range shownFields() {
		if f.Field == g.Field {
			names = append(names, f.metric(of))
		}
	}
	if g.Field == gpu.GPUUtil {
		names = append(names, of.gpus(), of.cost(), of.unpriced())
	}
	return names
}

// Labels returns the names and values of the labels of a group on /metrics.
func (g Group) Labels() map[string]string {
	of, values := g.scope()
	set := map[string]string{}
	for i, name := range of.labels() {
		set[name] = values[i]
	}
	return set
}

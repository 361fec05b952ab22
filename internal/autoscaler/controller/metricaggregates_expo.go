// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/window/history"
)

// aggregateField is a field on /metrics. A value times scale is in the base unit of the
// name.
type aggregateField struct {
	field gpu.FieldID
	name  string
	scale float64
	help  string
}

// aggregateFields are the fields whose aggregates are on /metrics, while they are in use.
func aggregateFields() []aggregateField {
	const mebibyte = 1 << 20
	return []aggregateField{
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

// aggregateScopes are the kinds of groups, with their labels.
var aggregateScopes = [...]struct {
	name   string
	of     string
	labels []string
}{
	{"cluster", "of the cluster", nil},
	{"namespace", "of a namespace", []string{"namespace"}},
	{"workload", "of a workload", []string{"namespace", "kind", "name"}},
}

// aggregateStats are the statistics of each field on /metrics, with what the history has
// of them.
var aggregateStats = [...]struct {
	name   string
	minute history.Stat
}{{"avg", history.StatMean}, {"sum", history.StatSum}, {"max", history.StatMax}, {"avg_5m", history.StatRolling}}

// aggregateName returns the name of a field's aggregates, by the index in aggregateScopes.
func aggregateName(scope int, field string) string {
	return "gpupilot_" + aggregateScopes[scope].name + "_gpu_" + field
}

// aggregateGPUs returns the name of the number of GPUs.
func aggregateGPUs(scope int) string { return "gpupilot_" + aggregateScopes[scope].name + "_gpus" }

// aggregateDescs describe the aggregates on /metrics. Their number of series is bounded
// by Config.WorkloadMetrics.
type aggregateDescs struct {
	values  [len(aggregateScopes)]map[gpu.FieldID]*prometheus.Desc
	gpus    [len(aggregateScopes)]*prometheus.Desc
	scales  map[gpu.FieldID]float64
	omitted *prometheus.Desc
}

func newAggregateDescs() *aggregateDescs {
	d := &aggregateDescs{scales: map[gpu.FieldID]float64{}}
	for i, scope := range aggregateScopes {
		d.values[i] = map[gpu.FieldID]*prometheus.Desc{}
		for _, f := range aggregateFields() {
			d.scales[f.field] = f.scale
			d.values[i][f.field] = prometheus.NewDesc(aggregateName(i, f.name),
				f.help+", over the GPUs in use "+scope.of+" whose pods serve, by statistic. avg_5m is the mean of the last 5 min.",
				append(scope.labels[:len(scope.labels):len(scope.labels)], "in_use", "stat"), nil)
		}
		d.gpus[i] = prometheus.NewDesc(aggregateGPUs(i),
			"GPUs in use "+scope.of+": allocated to serving pods, or active: with a utilization above zero within the last minute.",
			append(scope.labels[:len(scope.labels):len(scope.labels)], "in_use"), nil)
	}
	d.omitted = prometheus.NewDesc("gpupilot_gpu_aggregates_omitted", "Workloads and namespaces whose aggregates are left out, because more than --workload-metrics of them hold GPUs.", nil, nil)
	return d
}

func (d *aggregateDescs) describe(ch chan<- *prometheus.Desc) {
	for i := range aggregateScopes {
		for _, desc := range d.values[i] {
			ch <- desc
		}
		ch <- d.gpus[i]
	}
	ch <- d.omitted
}

// scopeOfGroup returns the index in aggregateScopes and the values of its labels.
func scopeOfGroup(g GPUGroup) (scope int, labels []string) {
	switch {
	case g.Name != "":
		return scopeWorkload, []string{g.Namespace, g.Kind, g.Name}
	case g.Namespace != "":
		return scopeNamespace, []string{g.Namespace}
	}
	return scopeCluster, nil
}

// collect sends the aggregates of the last pass.
func (d *aggregateDescs) collect(ch chan<- prometheus.Metric, a *Aggregates) {
	if a.At.IsZero() {
		return
	}
	ch <- prometheus.MustNewConstMetric(d.omitted, prometheus.GaugeValue, float64(a.Omitted))
	for i := range a.Items {
		x := &a.Items[i]
		if !a.shown[x.GPUGroup] {
			continue
		}
		scope, labels := scopeOfGroup(x.GPUGroup)
		if desc := d.values[scope][x.Field]; desc != nil {
			d.send(ch, desc, append(labels, "allocated"), &x.Allocated, d.scales[x.Field])
			d.send(ch, desc, append(labels, "active"), &x.Active, d.scales[x.Field])
		}
		if x.Field == gpu.GPUUtil {
			ch <- prometheus.MustNewConstMetric(d.gpus[scope], prometheus.GaugeValue, float64(x.Allocated.GPUs), append(labels, "allocated")...)
			ch <- prometheus.MustNewConstMetric(d.gpus[scope], prometheus.GaugeValue, float64(x.Active.GPUs), append(labels, "active")...)
		}
	}
}

// send sends the statistics of one field. Without a GPU there are none: missing is not
// zero.
func (d *aggregateDescs) send(ch chan<- prometheus.Metric, desc *prometheus.Desc, labels []string, s *GPUStats, scale float64) {
	if s.GPUs == 0 {
		return
	}
	for i, value := range [len(aggregateStats)]float64{s.Mean, s.Sum, s.Max, s.RollingMean} {
		ch <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, value*scale, append(labels[:len(labels):len(labels)], aggregateStats[i].name)...)
	}
}

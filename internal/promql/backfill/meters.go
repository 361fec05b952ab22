// SPDX-License-Identifier: Apache-2.0

package backfill

import (
	"github.com/gpupilot/gpupilot/internal/base/meter"
	"github.com/gpupilot/gpupilot/internal/window/history"
)

// maxNamed bounds how many namespaces are named on /metrics.
const maxNamed = 20

// Meter collects the metrics of the history.
func (k *Keeper) Meter(to meter.Sink) {
	s := k.Store.Stats()
	to.Gauge("gpupilot_history_workloads", "Workloads with one-minute aggregates in memory.", float64(s.Workloads))
	to.Gauge("gpupilot_history_memory_bytes", "Memory that the one-minute aggregates take.", float64(s.Bytes))
	to.Gauge("gpupilot_history_memory_limit_bytes", "Limit of that memory (--history-memory).", float64(s.Limit))
	to.Counter("gpupilot_history_rows_total", "Minutes of workloads that were added, those that were read at the start included.", float64(s.Rows))
	to.Counter("gpupilot_history_evicted_rows_total", "Minutes of workloads that were dropped because of the memory limit, before they were 14 days old.", float64(s.EvictedRows))
	to.Counter("gpupilot_history_refused_values_total", "Values that were left out because their workload has too many metrics.", float64(s.RefusedMetrics))
	limited := k.Store.Limited()
	for i := range limited[:min(len(limited), maxNamed)] {
		x := &limited[i]
		to.Counter("gpupilot_history_namespace_evicted_rows_total", "Minutes of workloads that the memory limit cost a namespace; of the 20 largest.", float64(x.Evicted), "namespace", x.Namespace)
	}
	if k.volume == nil && !k.failed {
		return
	}
	var v history.VolumeStats // of no volume: not up
	if k.volume != nil {
		v = k.volume.Stats()
	}
	to.Bool("gpupilot_history_volume_up", "Whether the last write to --history-dir succeeded.", v.Healthy)
	to.Gauge("gpupilot_history_volume_bytes", "Bytes of this replica's segments on the volume.", float64(v.Bytes))
	to.Gauge("gpupilot_history_volume_limit_bytes", "Limit of these bytes: twice --history-memory.", float64(v.Limit))
	to.Counter("gpupilot_history_volume_writes_total", "Writes to the volume, one a minute, by result.", float64(v.Writes), "result", "success")
	to.Counter("gpupilot_history_volume_writes_total", "Writes to the volume, one a minute, by result.", float64(v.Failures), "result", "error")
	to.Counter("gpupilot_history_damaged_segments_total", "Segments on the volume whose end could not be read at the start.", float64(v.Damaged))
}

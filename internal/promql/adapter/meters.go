// SPDX-License-Identifier: Apache-2.0

package adapter

import "github.com/gpupilot/gpupilot/internal/base/meter"

// Meter collects the metrics of the rules.
func (s *Server) Meter(to meter.Sink) {
	to.Bool("gpupilot_adapter_config_valid", "1 if the last adapter configuration that was read had no mistakes.", !s.Broken())
	to.Bool("gpupilot_adapter_discovery_valid", "1 if the series of all rules of the adapter configuration could be read.", !s.Unreadable())
	to.Gauge("gpupilot_adapter_metrics", "Metrics of objects that the adapter configuration makes.", float64(len(s.Metrics())))
	to.Counter("gpupilot_adapter_queries_total", "Queries that were run for the metrics of the adapter configuration.", float64(s.Queries()))
}

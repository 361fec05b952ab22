// SPDX-License-Identifier: Apache-2.0

// Package meter collects metrics from numbers that others count, when /metrics is read.
package meter

import "github.com/prometheus/client_golang/prometheus"

// Func collects metrics. It is an unchecked collector: the values of their labels are not
// known in advance.
type Func func(to Sink)

// Describe implements prometheus.Collector. It sends nothing.
func (f Func) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (f Func) Collect(ch chan<- prometheus.Metric) { f(ch) }

// Sink takes the metrics of one collection. pairs are names and values of labels.
type Sink chan<- prometheus.Metric

// Counter sends the value of a counter.
func (s Sink) Counter(name, help string, v float64, pairs ...string) {
	s.send(name, help, prometheus.CounterValue, v, pairs)
}

// Gauge sends the value of a gauge.
func (s Sink) Gauge(name, help string, v float64, pairs ...string) {
	s.send(name, help, prometheus.GaugeValue, v, pairs)
}

// Bool sends a gauge that is 1 if v is true, and 0 otherwise.
func (s Sink) Bool(name, help string, v bool) {
	n := 0.0
	if v {
		n = 1
	}
	s.Gauge(name, help, n)
}

func (s Sink) send(name, help string, kind prometheus.ValueType, v float64, pairs []string) {
	var names, values []string
	for i := 0; i+1 < len(pairs); i += 2 {
		names, values = append(names, pairs[i]), append(values, pairs[i+1])
	}
	s <- prometheus.MustNewConstMetric(prometheus.NewDesc(name, help, names, nil), kind, v, values...)
}

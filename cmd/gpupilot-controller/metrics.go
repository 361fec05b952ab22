// SPDX-License-Identifier: Apache-2.0

package main

import "github.com/prometheus/client_golang/prometheus"

// sink takes metrics whose label values are not known in advance. pairs are names and
// values of labels.
type sink chan<- prometheus.Metric

func (s sink) counter(name, help string, v float64, pairs ...string) {
	s.send(name, help, prometheus.CounterValue, v, pairs)
}

func (s sink) gauge(name, help string, v float64, pairs ...string) {
	s.send(name, help, prometheus.GaugeValue, v, pairs)
}

func (s sink) send(name, help string, kind prometheus.ValueType, v float64, pairs []string) {
	var names, values []string
	for i := 0; i+1 < len(pairs); i += 2 {
		names, values = append(names, pairs[i]), append(values, pairs[i+1])
	}
	s <- prometheus.MustNewConstMetric(prometheus.NewDesc(name, help, names, nil), kind, v, values...)
}
